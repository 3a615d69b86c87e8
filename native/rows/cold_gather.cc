#include "rows/cold_gather.h"

#include <algorithm>
#include <numeric>

#include "os/os.h"

namespace di {

struct ColdGather::Portion {
  explicit Portion(os::SpareBuffers& memory) : buffers(memory) {}

  std::vector<u32> items;
  std::vector<Span> spans;  // of the portion's items
  u64 bytes = 0;
  ColdBodies bodies;
  BodyBuffers buffers;
  std::unique_ptr<BodyReads> reads;  // declared last: they end first, and fill the buffers until then
};

ColdGather::ColdGather(Gather& gather, BodyReader& reader, const ViewPlan& plan, std::span<const Span> spans,
                       const std::vector<u32>& outputs)
    : gather_(gather),
      reader_(reader),
      plan_(plan),
      spans_(spans),
      outputs_(outputs),
      open_(spans.size(), false),
      bytes_(spans.size()) {
  u64 copied = 0;
  for (const u32 output : outputs) copied += Gather::item_bytes(plan, output);
  for (u32 i = 0; i < spans.size(); ++i) {
    ColdBodies bodies;
    gather_.list_cold(&spans[i], 1, outputs, &bodies);
    if (bodies.empty()) continue;
    // Values of variable length are not listed yet; the sizes of values with a fixed place in the batch are known.
    bytes_[i] = std::max(reader_.memory_for(bodies), copied);
    order_.push_back(i);
    open_[i] = true;
  }
  std::sort(order_.begin(), order_.end(), [&spans](u32 a, u32 b) {
    return spans[a].chunk.identity != spans[b].chunk.identity ? spans[a].chunk.identity < spans[b].chunk.identity
                                                              : spans[a].row < spans[b].row;
  });
}

ColdGather::~ColdGather() = default;

std::unique_ptr<ColdGather::Portion> ColdGather::begin_portion(const std::vector<u32>& outputs) {
  auto portion = std::make_unique<Portion>(reader_.memory());
  const u64 most = kPortionBytes;
  do {
    const u32 item = order_[next_++];
    portion->items.push_back(item);
    portion->spans.push_back(spans_[item]);
    portion->bytes += bytes_[item];
  } while (next_ < order_.size() && portion->bytes + bytes_[order_[next_]] <= most);
  const u32 count = static_cast<u32>(portion->spans.size());
  if (gather_.list_cold(portion->spans.data(), count, outputs, &portion->bodies))
    portion->reads = reader_.begin(&portion->bodies, &portion->buffers);
  return portion;
}

void ColdGather::await(Portion* portion, const std::vector<u32>& outputs) {
  if (portion->reads) portion->reads->wait();
  const u32 count = static_cast<u32>(portion->spans.size());
  while (gather_.list_cold(portion->spans.data(), count, outputs, &portion->bodies))
    reader_.read(&portion->bodies, &portion->buffers);
}

template <class Work>
void ColdGather::with(const Portion& portion, Work&& work) {
  struct Used {
    Gather& gather;
    ~Used() { gather.use(nullptr); }
  } used{gather_};
  gather_.use(&portion.bodies);
  for (std::size_t i = 0; i < portion.items.size(); ++i) work(portion.items[i]);
}

void ColdGather::measure(std::vector<std::vector<i64>>* offsets) {
  const std::vector<u32> none;  // no output: records only
  std::vector<i64> ends;
  const auto each = [&](u32 item) {
    for (const u32 number : outputs_) {
      const Output& output = plan_.outputs[number];
      if (!output.ragged) continue;
      ends.resize(output.rows() + 1);
      bytes_[item] += gather_.measure(number, &spans_[item], 1, ends.data()) * output.row_bytes;
      for (u32 row = 0; row < output.rows(); ++row)
        (*offsets)[number][u64{item} * output.rows() + row + 1] = ends[row + 1] - ends[row];
    }
  };
  for (u32 i = 0; i < spans_.size(); ++i)
    if (!open_[i]) each(i);
  while (next_ < order_.size()) {
    const std::unique_ptr<Portion> portion = begin_portion(none);
    await(portion.get(), none);
    with(*portion, each);
  }
  next_ = 0;
  for (const u32 number : outputs_) {
    if (!plan_.outputs[number].ragged) continue;
    std::vector<i64>& sums = (*offsets)[number];
    sums[0] = 0;
    std::partial_sum(sums.begin(), sums.end(), sums.begin());
  }
}

void ColdGather::copy_present(const Target* targets, const Identities& to) {
  for (u32 first = 0; first < spans_.size();) {
    u32 end = first;
    while (end < spans_.size() && !open_[end]) ++end;
    if (end != first) gather_.run(&spans_[first], end - first, first, targets, to);
    first = end + 1;
  }
}

template <class Work>
bool ColdGather::or_fail(Work&& work) {
  if (error_) std::rethrow_exception(error_);
  try {
    return work();
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
}

bool ColdGather::begin_some() {
  while (next_ < order_.size() && (flying_.empty() || flying_bytes_ + kPortionBytes <= kMostBytes)) {
    flying_.push_back(begin_portion(outputs_));
    flying_bytes_ += flying_.back()->bytes;
  }
  return next_ == order_.size();
}

bool ColdGather::read_ahead() {
  return or_fail([this] { return begin_some(); });
}

bool ColdGather::copy_portion(const Target* targets, const Identities& to) {
  return or_fail([&] {
    begin_some();
    if (flying_.empty()) return false;
    const std::unique_ptr<Portion> portion = std::move(flying_.front());
    flying_.pop_front();
    flying_bytes_ -= portion->bytes;
    await(portion.get(), outputs_);
    DI_FAULT("sample.portion_read");
    with(*portion, [&](u32 item) {
      gather_.run(&spans_[item], 1, item, targets, to);
      open_[item] = false;
    });
    return next_ < order_.size() || !flying_.empty();
  });
}

}  // namespace di
