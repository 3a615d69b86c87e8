// What one hold of a table's lock writes to a session's mark, with the items that it inserts (session_marks.h).
#pragma once

#include "arena/undo.h"

namespace di {

constexpr u32 kWordsOfMark = 1;  // of the undo record, for each commit

struct MarkUpdate {
  SessionMark& mark;
  u64 seq;     // of the call
  u64 before;  // items of the call that earlier holds have inserted into the table
  u64 total;   // items that the call makes in the table

  // Under the table's lock: `fresh` more items are in. Through the undo record of their words, before its commit: a kill
  // leaves both or neither.
  void set(Undo& undo, u64 fresh) const {
    DI_FAULT("marks.set");
    const u64 done = before + fresh;
    // mutant: the-mark-is-no-part-of-the-undo
    undo.set(mark.word, mark_word(seq, done, done == total));
  }
};

}  // namespace di
