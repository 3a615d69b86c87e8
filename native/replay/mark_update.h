// The change that one hold of a table's lock makes to a session's mark, together with the items it inserts
// (session_marks.h).
#pragma once

#include "process/undo.h"

namespace di {

constexpr u32 kWordsOfMark = 1;  // of the undo record, for each commit

struct MarkUpdate {
  SessionMark& mark;
  u64 seq;     // of the call
  u64 before;  // items of the call that earlier holds have inserted into the table
  u64 total;   // items that the call makes in the table

  // Call under the table's lock once `fresh` more items are in, and before their commit. The mark changes through the
  // same undo record: a kill leaves both the mark and the items, or neither.
  void set(Undo& undo, u64 fresh) const {
    DI_FAULT("marks.set");
    const u64 done = before + fresh;
    undo.set(mark.word, mark_word(seq, done, done == total));
  }
};

}  // namespace di
