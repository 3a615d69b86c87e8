// p^alpha for many priorities at once. libm's pow would take a third of a priority update, and its last bit depends on
// the machine and its libc. This one uses additions, multiplications and one division, so the same seed gives the same
// draws on every machine.
#pragma once

#include "base/layout.h"

namespace di {

// Both finite; a base of 0 counts as a number below all others. Relative error below 1e-13 (2e-15 for bases within
// 2^-20 and 2^20). A result that leaves the range of normal numbers is the end of that range: never 0 or infinite.
double power(double base, double exponent);
void powers(const double* bases, u32 count, double exponent, double* results);  // results may be bases

}  // namespace di
