// Texts of a table: its name in the header, its settings and columns in meta blocks. The name is written under the
// directory lock, and a block before other processes can find it. Both are read without a lock.
#pragma once

#include <string>

#include "attach/arena.h"

namespace di {

// A header is reused after a drop, so a name may be read half old, half new. The reader compares the table's generation
// before and after.
std::string read_name(const char (&name)[kNameBytes]);
void write_name(char (&name)[kNameBytes], const std::string& text);  // under the directory lock

// `block`: descriptor + 1, as in a header. The block holds the text's size in 8 bytes, then the text.
void write_text(const Heap& heap, u32 block, const std::string& text);  // before others can see the block
bool read_text(const Arena& arena, u32 block, std::string* text);       // false: damaged, or the block is reused

}  // namespace di
