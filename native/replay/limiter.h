// When inserts and samples may pass. Pure functions over the LimiterState in the table's header; the caller holds the
// table's lock, counts what passed (inserts, samples) and waits where something did not.
//
// The rule is Reverb's (rate_limiter.cc; Cassirer et al. 2021, section 3.3), decision by decision:
//   insert: size + 1 <= min_size, or (inserts + 1) * ratio - samples <= max_diff
//   sample: size >= min_size and inserts * ratio - samples - 1 >= min_diff
// in doubles, in just this order of operations. `size` is the number of live items.
#pragma once

#include <string>

#include "base/layout.h"

namespace di {

bool may_insert(const LimiterState& state, i64 size, i64 count = 1);
bool may_sample(const LimiterState& state, i64 size);  // one sample

// How many samples in a row would pass, at most `want`, while `size` stays the same: what a loop over may_sample()
// would decide, counting each sample before the next, without the loop.
u64 samples_allowed(const LimiterState& state, i64 size, u64 want);

// The limiter with counts that start over, for a table of `size` items and `held` drawn and not yet delivered ones. The
// first min_size items count as inserts that have just come, so it starts in the middle of its band and both sides can
// move. A queue keeps counting the items that wait in it.
LimiterState counted_anew(LimiterState state, i64 size, i64 held);

// The limiter for draws. Where draws use items up, a finished table may be drawn to its end: no insert will come that
// they could run ahead of.
LimiterState limiter_in_force(const TableHeader& table);

// Why the next insert or sample has to wait, with counts, naming the option that decides; "" when it need not.
std::string why_no_insert(const LimiterState& state, i64 size);
std::string why_no_sample(const LimiterState& state, i64 size);

}  // namespace di
