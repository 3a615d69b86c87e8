#include "rows/late.h"

#include <algorithm>
#include <cstring>

#include "os/os.h"

namespace di {
namespace {

constexpr u64 kWord = 8;

u64 round_up(u64 value, u64 to) { return (value + to - 1) / to * to; }
u64 words_size(u64 rows, u64 tables) { return round_up(rows * (sizeof(LateWord) + tables * sizeof(u32)), 64); }

// Copies word by word with atomic loads, because an update may overwrite the source meanwhile. The reader then notices
// that and reads again.
void copy_out(u8* to, const u8* from, u64 bytes) {
  for (u64 at = 0; at < bytes; at += kWord) {
    const u64 word = __atomic_load_n(reinterpret_cast<const u64*>(from + at), __ATOMIC_RELAXED);
    std::memcpy(to + at, &word, std::min(kWord, bytes - at));
  }
}

void copy_in(u8* to, const u8* from, u64 bytes) {
  for (u64 at = 0; at < bytes; at += kWord) {
    u64 word = 0;
    std::memcpy(&word, from + at, std::min(kWord, bytes - at));
    __atomic_store_n(reinterpret_cast<u64*>(to + at), word, __ATOMIC_RELAXED);
  }
}

}  // namespace

u64 late_size(u64 rows, u64 tables, u64 late_bytes) {
  return late_bytes == 0 ? 0 : words_size(rows, tables) + rows * 2 * late_bytes;
}

LateRows late_rows(u8* at, u32 rows, u32 tables, u64 late_bytes) {
  LateRows late;
  late.rows = rows;
  late.tables = tables;
  late.bytes = late_bytes;
  late.words = reinterpret_cast<LateWord*>(at);
  late.waiting = reinterpret_cast<Shared<u32>*>(at + u64{rows} * sizeof(LateWord));
  late.values = at + words_size(rows, tables);
  return late;
}

LateRows late_rows_in(u8* at, u64 bytes, u32 rows, u32 tables, u64 late_bytes) {
  if (tables > kMaxTables || reinterpret_cast<std::uintptr_t>(at) % kWord != 0) return {};
  const u64 words = words_size(rows, tables);
  if (words > bytes || (late_bytes != 0 && rows > (bytes - words) / (2 * late_bytes))) return {};
  return late_rows(at, rows, tables, late_bytes);
}

void read_late(const LateRows& late, u32 row, const ColumnLayout& column, u8* to) {
  for (;;) {
    const u64 before = late.words[row].word.load(std::memory_order_acquire);
    if ((late_there(before) >> column.index & 1) == 0) {
      std::memset(to, 0, column.row_bytes);
      return;
    }
    copy_out(to, late.value(row, late_copies(before) >> column.index & 1, column), column.row_bytes);
    std::atomic_thread_fence(std::memory_order_acquire);  // orders the copy before the second look
    if (late.words[row].word.load(std::memory_order_relaxed) == before) return;
  }
}

void write_late_first(const LateRows& late, u32 row, const ColumnLayout& column, const u8* from) {
  Shared<u64>& word = late.words[row].word;
  const u64 was = word.load(std::memory_order_relaxed);
  copy_in(late.value(row, 0, column), from, column.row_bytes);
  word.store(late_word(0, late_there(was) | 1u << column.index, 0), std::memory_order_relaxed);
}

LateChange::LateChange(const LateRows& late, u32 row) : late_(late), row_(row) {
  const u64 word = late.words[row].word.load(std::memory_order_relaxed);
  there_ = late_there(word);
  copies_ = late_copies(word);
  changes_ = static_cast<u32>(word >> 32);
  // A reader that sees a value written after this fence also sees the word of the previous update.
  std::atomic_thread_fence(std::memory_order_release);
}

void LateChange::set(const ColumnLayout& column, const u8* from) {
  const u32 copy = ~copies_ >> column.index & 1;
  copy_in(late_.value(row_, copy, column), from, column.row_bytes);
  copies_ ^= 1u << column.index;
  there_ |= 1u << column.index;
}

void LateChange::show() {
  DI_FAULT("late.before_show");
  // release: a reader that sees the word also sees the values. A value that is still being read is in the other copy.
  late_.words[row_].word.store(late_word(changes_ + 1, there_, copies_), std::memory_order_release);
}

}  // namespace di
