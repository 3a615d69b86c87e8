// Makes the results of sample() and peek(). The bytes of drawn items are copied into one pooled buffer, and nested
// dicts of arrays share it. Further arrays hold the items' keys, priorities and so on.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "rows/buffers.h"
#include "rows/cold_gather.h"

namespace di::py {

struct OutputArray {             // the array of one output of the plan, and its place in the nested dict
  std::vector<nb::object> path;  // interned keys
  nb::object dtype;
  std::vector<npy_intp> shape;  // of one item; ragged: of one element
  std::string name;

  PyArray_Descr* descr() const { return reinterpret_cast<PyArray_Descr*>(dtype.ptr()); }
};

class LayoutSource;
struct Assembly;

// Takes a buffer for arrays. The returned object owns it and gives it back to the pool.
nb::object take_buffer(BufferPool& pool, u64 bytes, u8** data);

class BatchMaker {
 public:
  BatchMaker(TablePointer table, nb::dict plan);
  ~BatchMaker();
  BatchMaker(const BatchMaker&) = delete;
  BatchMaker& operator=(const BatchMaker&) = delete;

  // Returns the tuple from which Python's Batch is made. `which`: numbers of the wanted outputs, None: all. `out`: a
  // dict of arrays to fill instead of fresh ones, or None. with_live: an array tells which items live. Every item of the
  // set has a place, which is zeros if the item is gone, and so has every answer of a short group. The caller holds the
  // items' chunks.
  nb::object make(const DrawSet& set, nb::handle beta, nb::handle which, nb::handle out, bool with_live);
  // Draws, copies and delivers n items in one hold of the table's lock, with all outputs. Returns an invalid object if
  // this batch needs make(); then nothing was drawn. `set`: says what is drawn; its lease gets the draws' number.
  nb::object draw(DrawSet& set, u32 n, nb::handle beta, Deadline deadline);
  // Does what make() with_live does, in one hold of the table's lock: for the fixed-size outputs of a small batch of
  // items, without a ledger entry for each. Returns an invalid object if this batch needs make().
  nb::object look(std::span<const u64> keys, nb::handle beta, nb::handle which, Deadline deadline);
  // Bytes of the variable-length values in a batch of these items. The caller holds the items' chunks.
  u64 ragged_bytes(const DrawSet& set);

 private:
  friend class BatchGather;
  bool is_there(const Drawn& drawn) const;
  bool list_spans(const DrawSet& set, bool learn, std::vector<Span>* spans);
  std::unique_ptr<Gather> take_gather();
  void choose(nb::handle which, std::vector<u32>* wanted) const;
  void measure(Gather& gather, Assembly* batch) const;
  ColdGather& cold(Gather& gather, Assembly* batch) const;
  void lay_out(Assembly* batch) const;
  void allocate(u64 bytes, Assembly* batch) const;
  void aim(nb::handle out, Assembly* batch) const;
  nb::object given(nb::handle out, u32 output, u32 items) const;
  void spread(Assembly* batch) const;
  void spread_ragged(const DrawSet& set, u64 rows, std::vector<i64>* ends) const;
  nb::dict data(Assembly* batch) const;
  nb::object array(Assembly* batch, u32 output) const;
  nb::object columns(const Assembly& batch, nb::handle beta, const nb::dict& data) const;
  nb::object weights(const DrawSet& set, nb::handle beta) const;

  TablePointer table_;
  ViewPlan plan_;
  u32 group_ = 1;          // rows of one item that is a group; each row is gathered as its own item
  u64 item_bytes_ = 0;     // bytes of one item in all outputs of fixed size
  bool varies_ = false;    // some outputs are ragged
  u64 bytes_an_item_ = 0;  // bytes per item of the last batch that make() made with all outputs
  std::vector<OutputArray> arrays_;
  std::unique_ptr<LayoutSource> source_;
  std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();
  std::vector<std::unique_ptr<Gather>> gathers_;  // idle ones; a thread takes one for a call
};

}  // namespace di::py
