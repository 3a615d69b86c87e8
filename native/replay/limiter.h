// Decides when inserts and samples may pass, by pure functions of the LimiterState in the table's header. The caller
// holds the table's lock, counts the inserts and samples that passed, and waits if they may not pass. stats() and the
// texts of waits read the state without the lock: their numbers may come from different moments.
//
// The rule is Reverb's (rate_limiter.cc; Cassirer et al. 2021, section 3.3), decision by decision:
//   insert: size + 1 <= min_size, or (inserts + 1) * ratio - samples <= max_diff
//   sample: size >= min_size and inserts * ratio - samples - 1 >= min_diff
// computed in doubles, in exactly this order of operations. `size` is the number of live items.
//
// A Pace is AReaL's rule (staleness_manager.py; Fu et al. 2025): draws that are leased or acknowledged number at most
// (version - since + 1 + ahead) * batch. Here ratio is the batch, min_diff is -(1 + ahead) * batch, and draws take the
// versions since `since` in place of inserts (limiter_in_force()). The version is read without a lock: it only grows,
// and Weights::publish() wakes the draws that wait. A publisher killed before that wakes nobody; every wait looks again
// after its slice.
#pragma once

#include <string>

#include "base/layout.h"

namespace di {

// LimiterState::min_size while store.import_table() fills a table: nothing is drawn, and only the import inserts.
constexpr i64 kBeingImported = i64{1} << 62;
constexpr const char* kImportText =
    "store.import_table() is still filling the table; if the process that called it died, drop_table() and import "
    "again";
inline bool is_being_imported(const LimiterState& state) { return state.min_size == kBeingImported; }

bool may_insert(const LimiterState& state, i64 size, i64 count = 1);
bool may_sample(const LimiterState& state, i64 size);  // one sample

// How many samples in a row would pass, at most `want`, while `size` stays the same. The result equals that of a loop
// that calls may_sample() and counts each sample before the next.
u64 samples_allowed(const LimiterState& state, i64 size, u64 want);

// The limiter with its counts restarted, for a table of `size` live and `held` held items. The first min_size items
// count as inserts, so the limiter starts in the middle of its band, where both inserts and samples may pass. A queue
// still counts the items that wait in it. For a Pace see paced_anew().
LimiterState counted_anew(LimiterState state, i64 size, i64 held);
// A Pace that counts from `version` on. Of the draws of the one `before`, those ahead of its version still count.
LimiterState paced_anew(LimiterState state, const LimiterState& before, i64 version);

// The limiter for draws. If draws use items up, a finished table may be drawn until it is empty: draws need not wait
// for inserts that never come. A Pace holds to the end. `version`: the newest of its weights.
LimiterState limiter_in_force(const TableHeader& table, i64 version);
inline bool is_paced(const LimiterState& state) { return state.weights != 0; }

// Sets the limiter of a table. Word by word, since `queue` and `weights` are read without a lock.
void store_limiter(TableHeader& table, const LimiterState& state);

// The reason why the next insert or sample has to wait, with the counts and options; "" if it need not wait.
std::string why_no_insert(const LimiterState& state, i64 size);
std::string why_no_sample(const LimiterState& state, i64 size, const std::string& weights = "");  // a Pace's
// ", and …" with the number of items that wait for late columns and of incomplete groups; "": there are none.
std::string waiting_text(const TableHeader& table);

}  // namespace di
