// Operations of TableCore on one answer or item of a table of groups. Every call needs the table's lock. Tables without
// groups use some of these too: there an item is its own only answer.
#pragma once

#include <string>

#include "replay/draw_set.h"
#include "replay/table_core.h"

namespace di {

// The slot of the item with this key, live, held or waiting. The key of any answer stands for its group. kNone: the
// item is gone.
u32 find_item(TableCore& core, u64 key);
bool is_complete_answer(const TableCore& core, const Item& item);  // whether its row has all late columns
// Whether a waiting group has all that can come: all answers, if inserts may bring them, and their late columns.
bool is_complete_group(TableCore& core, u32 leader);
// Ends the wait of such a group. False: it is not complete, or was complete before.
bool end_wait_of_group(TableCore& core, u32 leader);
// ", and …" with the number of items that can't be drawn yet; "": there are none.
std::string why_waiting(TableCore& core);

// One hold may remove more answers than the undo record has room for. Between two items it may commit its changes so
// far: a kill then leaves the rest undone, as between two holds.
inline u32 words_to_remove(const TableCore& core) { return core.groups.size() + 8 + kWordsOfEnded; }
inline void commit_if_short(TableCore& core, u32 words) {
  if (core.undo.left() < words) core.commit();
}

// Fills the Drawns after the group's first answer with the other answers and the facts of their group. Answers that a
// short group lacks have the entry kNone.
void describe_answers(TableCore& core, u32 leader, Drawn* first);
// Adds the other answers of the group that was drawn last. Each answer holds its own chunk by a ledger entry of a read,
// which ends as a draw's use of a chunk does but counts no sample. The set must have spare entries, and room.
void hold_answers(TableCore& core, DrawSet* set, u32 leader);

}  // namespace di
