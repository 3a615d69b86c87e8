#include "net/rows.h"

#include "net/msgpack.h"

namespace di::net {
namespace {

constexpr u64 kAlignment = 16;

// One run of calls, in the form of docs/wire_format.md; nullopt: of another form.
std::optional<RowRun> run_of(MsgpackReader& reader, const std::vector<std::string>& forms) {
  if (!reader.array(8)) return std::nullopt;
  const auto seq = reader.number();
  if (!seq) return std::nullopt;
  for (u64 form = 0; form < forms.size(); ++form) {
    if (!reader.skip(forms[form])) continue;
    const auto count = reader.number();
    return count ? std::optional(RowRun{*seq, *count, form}) : std::nullopt;
  }
  return std::nullopt;
}

template <class T>
void put_column(std::vector<u8>* to, std::span<const T> values) {
  const auto* const at = reinterpret_cast<const u8*>(values.data());
  to->insert(to->end(), at, at + values.size_bytes());
  to->resize((to->size() + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace

std::optional<RowRuns> RowRuns::of(std::span<const u8> meta, const std::vector<std::string>& forms) {
  MsgpackReader reader(meta);
  if (!reader.array(3)) return std::nullopt;
  const auto epoch = reader.number(), acknowledged = epoch ? reader.number() : std::nullopt;
  if (!acknowledged) return std::nullopt;
  RowRuns found{*epoch, *acknowledged, {}};
  const auto count = reader.array();
  if (!count || *count == 0) return std::nullopt;
  for (u64 i = 0; i < *count; ++i) {
    const auto run = run_of(reader, forms);
    if (!run) return std::nullopt;
    found.runs.push_back(*run);
  }
  return reader.at_end() ? std::optional(std::move(found)) : std::nullopt;
}

RowAcknowledgement::RowAcknowledgement(u64 last, u64 epoch, u64 tables, std::span<const u32> counts,
                                       std::span<const u64> keys, std::span<const i32> lanes,
                                       std::span<const i64> starts) {
  put_array(&meta, 5);
  put_number(&meta, last);
  put_number(&meta, epoch);
  put_array(&meta, counts.size() / tables);
  for (u64 i = 0; i < counts.size(); ++i) {
    if (i % tables == 0) put_array(&meta, tables);
    put_number(&meta, counts[i]);
  }
  meta.append("\xc4\x00\x90", 3);  // no failure, no warnings
  if (keys.empty()) return;
  put_column(&body, keys);
  put_column(&body, lanes);
  put_column(&body, starts);
}

}  // namespace di::net
