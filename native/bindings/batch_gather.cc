#include "bindings/batch_gather.h"

namespace di::py {

BatchGather::BatchGather(BatchMaker& maker, const DrawSet& set, nb::handle beta, nb::handle which, nb::handle out,
                         bool with_live)
    : maker_(maker),
      beta_(nb::borrow(beta)),
      gather_(maker.take_gather()),
      batch_(set, maker.arrays_.size(), with_live) {
  maker.list_spans(set, true, &batch_.spans);
  batch_.places = static_cast<npy_intp>(set.items.size());
  maker.choose(which, &batch_.wanted);
  maker.measure(*gather_, &batch_);
  maker.lay_out(&batch_);
  maker.allocate(batch_.bytes, &batch_);
  maker.aim(out, &batch_);
  MaybeRelease release(batch_.bytes > kKeepGil);
  const Identities to{batch_.episodes, batch_.starts};
  if (!batch_.cold) {
    try {
      gather_->run(batch_.spans.data(), batch_.live(), 0, batch_.targets.data(), to);
      return;
    } catch (const NotInMemory&) {
    }
  }
  maker.cold(*gather_, &batch_).copy_present(batch_.targets.data(), to);
}

bool BatchGather::read_ahead() {
  if (!batch_.cold) return true;
  MaybeRelease release(true);
  return batch_.cold->read_ahead();
}

bool BatchGather::copy_portion() {
  if (!batch_.cold) return false;
  MaybeRelease release(true);
  return batch_.cold->copy_portion(batch_.targets.data(), {batch_.episodes, batch_.starts});
}

std::vector<bool> BatchGather::open() const {
  if (!batch_.cold) return {};
  std::vector<bool> open = batch_.cold->open();  // of the items that are there
  if (open.size() == batch_.set.items.size()) return open;
  std::vector<bool> all;
  for (auto at = open.begin(); const Drawn& drawn : batch_.set.items) all.push_back(maker_.is_there(drawn) && *at++);
  return all;
}

nb::object BatchGather::parts() {
  batch_.cold.reset();
  const u64 all = static_cast<u64>(batch_.places);
  if (batch_.wanted.size() == maker_.arrays_.size() && all > 0) maker_.bytes_an_item_ = batch_.bytes / all + 1;
  maker_.gathers_.push_back(std::move(gather_));
  maker_.spread(&batch_);
  return maker_.columns(batch_, beta_, maker_.data(&batch_));
}

}  // namespace di::py
