// An undo log under a table's lock makes several words change as one. UndoRecord in layout.h describes the protocol.
// Derived words are not logged: the lock's `dirty` mark covers them.
#pragma once

#include "process/mapping.h"

namespace di {

class Undo {
 public:
  Undo(const Mapping& mapping, UndoRecord& record)
      : mapping_(mapping), record_(record), base_(mapping.at(kPageBytes, 0) - kPageBytes) {}

  template <class Word>
  void set(Word& word, u64 value) {
    static_assert(sizeof(Word) == 8);
    set_at(&word, value);
  }
  void set_at(void* word, u64 value) {  // 8 bytes, at a multiple of 8
    const u32 n = record_.count.load(std::memory_order_relaxed);
    if (n == kUndoEntries) throw Error(Code::kStoreError, "undo record overflow");
    u64* at = static_cast<u64*>(word);
    record_.entries[n] =
        UndoEntry{static_cast<u64>(reinterpret_cast<u8*>(at) - base_), __atomic_load_n(at, __ATOMIC_RELAXED)};
    record_.count.store(n + 1, std::memory_order_release);
    __atomic_store_n(at, value, __ATOMIC_RELEASE);  // after the entry; some words are read without the lock
    DI_FAULT("undo.between");
  }
  void commit() {
    DI_FAULT("undo.before_commit");
    record_.count.store(0, std::memory_order_release);
    DI_FAULT("undo.after_commit");
  }
  void roll_back() {
    u32 n = record_.count.load(std::memory_order_acquire);
    if (n > kUndoEntries) throw Error(Code::kCorruptData, "an undo record is damaged");
    while (n-- > 0) {
      const UndoEntry& entry = record_.entries[n];
      if (entry.offset % 8 != 0) throw Error(Code::kCorruptData, "an undo record is damaged");
      __atomic_store_n(reinterpret_cast<u64*>(mapping_.at(entry.offset, 8)), entry.value, __ATOMIC_RELEASE);
      record_.count.store(n, std::memory_order_release);
    }
  }
  u32 left() const { return kUndoEntries - record_.count.load(std::memory_order_relaxed); }
  bool pending() const { return record_.count.load(std::memory_order_acquire) != 0; }

 private:
  const Mapping& mapping_;
  UndoRecord& record_;
  u8* base_;
};

}  // namespace di
