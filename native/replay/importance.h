// Importance weights: how much less an example counts because it is drawn more often than others.
#pragma once

#include "replay/draw_set.h"

namespace di {

// Writes the weights of a drawn batch to `weights`, one for each `group` entries of the set (Schaul et al. 2016,
// section 3.4): (N P)^-beta, divided by the largest of the batch, or, with `by_table`, of the table.
void importance_weights(const DrawSet& set, u64 group, bool by_table, double beta, float* weights);

}  // namespace di
