// The values of a table's groups that have ended: they are complete, or were removed before. The table uses them to
// recognise an answer that comes late, among the newest kEndedGroups values. The values lie in a ring in a block of the
// table. Values and their number are truths, and change through the undo record together with the group itself. The
// index by value is derived; it has the newest place of each value. Every call needs the table's lock. No call
// allocates, and none fails unless the block is damaged.
#pragma once

#include <vector>

#include "attach/arena.h"
#include "process/undo.h"

namespace di {

constexpr u64 kEndedGroups = 1 << 14;
constexpr u32 kWordsOfEnded = 2;  // of the undo record, for each group that ends

class EndedGroups {
 public:
  static constexpr u64 bytes() { return sizeof(Ring); }
  EndedGroups(TableHeader& header, Undo& undo) : header_(header), undo_(undo) {}
  void open(u8* block) { ring_ = reinterpret_cast<Ring*>(block); }  // a block of bytes()

  bool has(u64 value) const;
  void add(u64 value);
  void forget();                    // forgets all values
  void fill_index();                // for a rebuild
  std::vector<u64> values() const;  // the values in the ring, the oldest first; none in a table without groups

 private:
  struct Ring {
    u64 value[kEndedGroups];
    u32 next[kEndedGroups];   // place + 1 of the next place in its bucket; 0: none
    u32 first[kEndedGroups];  // head of each bucket
  };
  u32& bucket(u64 value) const;
  void link(u32 place);
  template <class Found>
  void take_out(u64 value, Found found);

  TableHeader& header_;
  Undo& undo_;
  Ring* ring_ = nullptr;
};

}  // namespace di
