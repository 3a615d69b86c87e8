// Gathers a batch of which some items' bodies are not in memory: first the items that are, then the others, from disk.
//
// These are read in portions, sorted by chunk, while earlier portions are copied. So the memory that they are read into, and
// unpacked, is bounded however large the batch: an item of packed rows takes whole blocks, several times its own bytes.
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
  static constexpr u64 kPortionBytes = 4 << 20;  // of memory that a portion is read into, if it has more than one item
  static constexpr u64 kMostBytes = 16 << 20;    // of all that are read at once

  // Finds the items that need a body which is not in memory; reads heads only. `outputs`: those wanted of the plan.
  // What it is given must outlive it, and the chunks stay held until their item is no longer open.
  ColdGather(Gather& gather, BodyReader& reader, const ViewPlan& plan, std::span<const Span> spans,
             const std::vector<u32>& outputs);
  ~ColdGather();
  ColdGather(const ColdGather&) = delete;
  ColdGather& operator=(const ColdGather&) = delete;

  // By item: it is not in memory, and not copied yet.
  const std::vector<bool>& open() const { return open_; }
  // As Gather::measure() of each wanted output that is ragged. `offsets`: by output of the plan. Reads records from disk.
  void measure(std::vector<std::vector<i64>>* offsets);
  // Copies the items that are in memory.
  void copy_present(const Target* targets, const Identities& to);
  // Begins to read portions of the others, as many as may be read at once. True: they are the last ones. What this throws, or
  // copy_portion(), each later call throws again: the portion's items are not copied any more.
  bool read_ahead();
  // Copies one portion of the others, and begins to read the next ones. False: none is left.
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
  std::vector<u64> bytes_;  // by item: of memory that it is read into, at most
  std::vector<u32> order_;  // of the items that are not in memory
  std::size_t next_ = 0;    // of them
  u64 flying_bytes_ = 0;
  std::deque<std::unique_ptr<Portion>> flying_;
  std::exception_ptr error_;
};

}  // namespace di
