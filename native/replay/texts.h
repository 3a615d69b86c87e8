// Texts of a table: its name in the header, its settings and columns in meta blocks. Written under a lock, read
// without.
#pragma once

#include <string>

#include "attach/arena.h"

namespace di {

// A header is reused after a drop, so the name read may be mixed of two: the reader compares the table's generation
// before and after.
std::string read_name(const char (&name)[kNameBytes]);
void write_name(char (&name)[kNameBytes], const std::string& text);  // directory lock; zeros behind it

// `block`: descriptor + 1, as headers name it; its block is 8 bytes longer than the text.
void write_text(const Heap& heap, u32 block, const std::string& text);  // before others can see the block
bool read_text(const Arena& arena, u32 block, std::string* text);       // false: damaged, or the block is reused

}  // namespace di
