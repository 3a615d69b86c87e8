// A checksum for each page of a stored body, so that a part of it can be read and checked.
#pragma once

#include <span>
#include <vector>

#include "base/layout.h"

namespace di {

// One checksum for each kPageBytes of `body`. The last page counts as if zeros followed, as they do on disk.
std::vector<u32> page_crcs(std::span<const u8> body);
// Whether `data`, read from page `first_page` of a body on, matches page_crcs(). Also false when it reaches beyond the
// last page.
bool verify_pages(std::span<const u32> crcs, u64 first_page, std::span<const u8> data);

}  // namespace di
