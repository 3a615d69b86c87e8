// Gathers a batch when the bodies of some items are not in memory: first the items that are in memory, then the others
// from disk.
//
// The others are read in portions, sorted by chunk, while earlier portions are copied. So the memory for reading and
// unpacking is bounded however large the batch is: an item of packed rows takes whole blocks, several times its own
// bytes.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "rows/views.h"
#include "tier/body_reader.h"

namespace di {

class ColdGather {
 public:
  static constexpr u64 kPortionBytes = 4 << 20;  // memory that a portion is read into, if it has more than one item
  static constexpr u64 kMostBytes = 16 << 20;    // memory of all portions being read at once

  // Finds the items whose bodies are not in memory; reads heads only. `outputs`: the wanted outputs of the plan. The
  // arguments must outlive this object, and an item's chunks stay held until the item is no longer open.
  ColdGather(Gather& gather, BodyReader& reader, const ViewPlan& plan, std::span<const Span> spans,
             const std::vector<u32>& outputs);
  ~ColdGather();
  ColdGather(const ColdGather&) = delete;
  ColdGather& operator=(const ColdGather&) = delete;

  // By item: not in memory and not copied yet.
  const std::vector<bool>& open() const { return open_; }
  // Does what Gather::measure() does, for each wanted ragged output. `offsets`: by output of the plan. Reads records
  // from disk.
  void measure(std::vector<std::vector<i64>>* offsets);
  // Copies the items that are in memory.
  void copy_present(const Target* targets, const Identities& to);
  // Begins to read portions of the other items, as many as may be read at once. True: those were the last portions. If
  // this or copy_portion() throws, each later call throws the same again: the portion's items are no longer copied.
  bool read_ahead();
  // Copies one portion of the other items, and begins to read the next ones. False: no portion is left.
  bool copy_portion(const Target* targets, const Identities& to);

 private:
  struct Portion;
  template <class Work>
  bool or_fail(Work&& work);
  bool begin_some();
  std::unique_ptr<Portion> begin_portion(const std::vector<u32>& outputs);
  void await(Portion* portion, const std::vector<u32>& outputs);
  template <class Work>
  void with(const Portion& portion, Work&& work);

  Gather& gather_;
  BodyReader& reader_;
  const ViewPlan& plan_;
  const std::span<const Span> spans_;
  const std::vector<u32>& outputs_;
  std::vector<bool> open_;
  std::vector<u64> bytes_;  // by item: the most memory that it is read into
  std::vector<u32> order_;  // order of the items that are not in memory
  std::size_t next_ = 0;    // the next one in order_
  u64 flying_bytes_ = 0;
  std::deque<std::unique_ptr<Portion>> flying_;
  std::exception_ptr error_;
};

}  // namespace di
