// Gathering from chunks whose bodies may not be in memory.
#pragma once

#include <vector>

#include "bindings/bindings.h"
#include "rows/views.h"
#include "tier/cold_bodies.h"

namespace di::py {

// In one hold of a table's lock. False also when a body is not in memory: nothing is read from disk there.
template <class Work>
bool if_in_memory(Work&& work) {
  try {
    return work();
  } catch (const NotInMemory&) {
    return false;
  }
}

// Calls `work`, which gathers these outputs of the spans; if bodies are not in memory, again with what is read of them.
template <class Work>
void with_bodies(Arena& arena, Gather& gather, const std::vector<Span>& spans, const std::vector<u32>& outputs,
                 Work&& work) {
  try {
    return work();
  } catch (const NotInMemory&) {
    if (arena.tier() == nullptr) throw Error(Code::kCorruptData, "damaged store: a chunk without a body");
  }
  struct Used {
    Gather& gather;
    ~Used() { gather.use(nullptr); }
  } used{gather};
  ColdBodies bodies;
  BodyReader& reader = arena.tier()->reader();
  BodyBuffers buffers(reader.memory());
  {
    MaybeRelease release(true);
    while (gather.list_cold(spans.data(), static_cast<u32>(spans.size()), outputs, &bodies))
      reader.read(&bodies, &buffers);
  }
  gather.use(&bodies);
  work();
}

}  // namespace di::py
