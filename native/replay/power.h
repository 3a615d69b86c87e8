// p^alpha for many priorities at once. libm's pow would take a third of the time of a priority update, and its last bit
// depends on machine and libc. This function uses only additions, multiplications and one division, so the same seed
// gives the same draws on every machine.
#pragma once

#include "base/layout.h"

namespace di {

// base^exponent, both finite; a base of 0 counts as a positive number below all others. Relative error below 1e-13
// (2e-15 for bases from 2^-20 to 2^20). A result outside the range of normal numbers becomes the end of that range: it
// is never 0 or infinite.
double power(double base, double exponent);
void powers(const double* bases, u32 count, double exponent, double* results);  // results may be bases

}  // namespace di
