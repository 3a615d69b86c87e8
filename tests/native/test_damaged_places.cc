// Numbers in shared memory that say where something lies, each set to a place outside: the calls that follow them end with
// kCorruptData, and change nothing there.
#include "answer_fixture.h"

using namespace di;

namespace {

struct Scene {
  std::shared_ptr<Arena> arena = make_store("places", 24 * kMiB);
  std::shared_ptr<Table> groups = TableDirectory(arena).create(answer_shape("groups", 16, true), soon());
  std::shared_ptr<Table> single = TableDirectory(arena).create(answer_shape("single", 60, false), soon());
  AnswerWriter writer{groups, single, 1024};

  Scene() {
    for (int i = 0; i < 4; ++i) CHECK(writer.write().why == Blocked::Why::kNothing);
  }
  u64 give_rewards() const {
    return give_late(groups, groups->reads.waiting(soon()), "reward", kRewardBytes, {kAnswers, 0}, soon());
  }
  u64 give_advantages() const { return give_late(single, keys(), "advantage", kAdvantageBytes, {0, 1}, soon()); }
  std::vector<u64> keys() const { return single->reads.waiting(soon()); }
  ChunkHeader& chunk() const {
    const Item& item = single->core.items[key_slot(keys().front())];
    return arena->heap().chunk_memory.head(item.chunk());
  }
  u32 number() const { return single->core.items[key_slot(keys().front())].chunk(); }
};

template <class Body>
bool refuses(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code() == Code::kCorruptData;
  }
  return false;
}

// Unaligned, with room for no word at the chunk's end, and behind it.
void late_columns() {
  for (u64 i = 0; i < 5; ++i) {
    const Scene scene;
    ChunkHeader& header = scene.chunk();
    const u64 was = header.late_offset, end = scene.arena->heap().descriptor(scene.number()).bytes;
    const u64 offsets[] = {was + 1, end - 8, u64{1} << 20, u64{1} << 40, ~u64{0} - 7};
    header.late_offset = offsets[i];
    CHECK(refuses([&] { scene.give_rewards(); }));
    CHECK(scene.keys().size() == 32);  // the table can be used
    CHECK(refuses([&] { give_late(scene.single, scene.keys(), "advantage", kAdvantageBytes, {0, 1}, soon()); }));
    header.late_offset = was;
    CHECK(scene.give_rewards() != 0);
  }
}

void heads() {
  const Scene scene;
  const std::vector<u64> keys = scene.keys();
  ChunkHeader& header = scene.chunk();
  const u64 marks = header.marks_offset;
  const u32 capacity = header.row_capacity;
  for (const u64 offset : {marks + 1, u64{1} << 20, ~u64{0} - 7}) {
    header.marks_offset = offset;
    CHECK(refuses([&] { scene.single->reads.places(keys, soon()); }));
  }
  header.marks_offset = marks;
  header.row_capacity = 1;  // fewer than are published
  CHECK(refuses([&] { scene.single->reads.places(keys, soon()); }));
  header.row_capacity = capacity;
  Descriptor& entry = scene.arena->heap().descriptor(scene.number());
  const u64 bytes = entry.bytes;
  entry.bytes = sizeof(ChunkHeader) - 1;
  CHECK(refuses([&] { scene.single->reads.places(keys, soon()); }));
  entry.bytes = bytes;
  CHECK(scene.single->reads.places(keys, soon()).front().rows == 1);
}

// A descriptor that leads to another chunk's head, of the same layout, or to that of an earlier chunk with its number.
void heads_of_others() {
  Scene scene;
  const Heap& heap = scene.arena->heap();
  const u32 first = scene.number();
  u32 other = first;
  for (int i = 0; other == first; ++i) {
    CHECK(i < 20 && scene.writer.write().why == Blocked::Why::kNothing);
    const u64 key = scene.keys().back();
    other = scene.single->core.items[key_slot(key)].chunk();
  }
  const std::vector<u64> keys = scene.keys();
  const auto reads = [&] {
    AllColumns source(*scene.arena, kAnswerColumns);
    u64 answer = 0;
    const Target target[] = {{reinterpret_cast<u8*>(&answer)}};
    ViewPlan plan;
    plan.outputs = {{.op = Op::kRow, .column = kAnswer, .row_bytes = 8}};
    const Span span{source.chunk(first), 0, 1, 0, 0};
    Gather(plan, source).run(&span, 1, 0, target);
    CHECK(answer == 1024);
  };
  reads();
  Descriptor& entry = heap.descriptor(first);
  const u64 was = entry.offset, word = entry.word.load();
  for (const bool earlier : {false, true}) {
    if (earlier)
      entry.word.store(word + (u64{1} << 32));
    else
      entry.offset = heap.descriptor(other).offset;
    CHECK(refuses(reads));
    CHECK(refuses([&] { scene.single->reads.places(keys, soon()); }));
    CHECK(refuses([&] { scene.give_advantages(); }));
    entry.offset = was;
    entry.word.store(word);
  }
  reads();
  CHECK(scene.single->reads.places(keys, soon()).front().rows == 1 && scene.give_advantages() != 0);
}

// A chunk that is being written, whose descriptor leads to a free block: the block that its writer fills is not given away.
void open_chunks() {
  Scene scene;
  const Heap& heap = scene.arena->heap();
  const u64 key = scene.keys().back();
  Descriptor& entry = heap.descriptor(scene.single->core.items[key_slot(key)].chunk());
  CHECK(word_state(entry.word.load()) == ObjectState::kCreating);
  const u64 was = entry.offset;
  std::vector<std::string> findings;
  entry.offset = was + 8 * kSliceBytes;
  CHECK(refuses([&] { scene.arena->heap().check(true, soon(), &findings); }));
  CHECK(refuses([&] { put_number(*scene.arena, 1, 1000); }));
  entry.offset = was;
  CHECK(put_number(*scene.arena, 1, 1000) == MakeResult::kMade && holds_number(*scene.arena, 1));
  CHECK(scene.writer.write().why == Blocked::Why::kNothing && scene.give_advantages() != 0);
}

// An answer's word names its group, and the chain of a group may lead to an answer of another one.
void answers() {
  const Scene scene;
  CHECK(scene.give_rewards() == 8);
  u32* const links = reinterpret_cast<u32*>(
      (reinterpret_cast<std::uintptr_t>(scene.arena->heap().block(scene.groups->header().groups_block - 1)) + 63) &
      ~std::uintptr_t{63});
  const std::vector<u64> keys = scene.groups->reads.keys(0, 2, soon());
  u32& next = links[6 * key_slot(keys[0]) + 2];
  const u32 was = next;
  next = links[6 * key_slot(keys[1]) + 2];
  DrawSet set;
  CHECK(refuses([&] { scene.groups->reads.peek(keys, &set, soon()); }));
  CHECK(scene.groups->reads.keys(0, 2, soon()) == keys && next == was);  // rebuilt, as after every hold that fails
  next = 0;
  CHECK(refuses([&] { scene.groups->reads.peek(keys, &set, soon()); }));
  CHECK(scene.groups->reads.keys(0, 2, soon()) == keys && next == was);
}

// A block that a descriptor names beyond the last one of its slice, and others that no block of its size can be.
void blocks() {
  const u64 bytes = 3000;
  const u64 size = Blocks::block_bytes(bytes), behind = kSliceBytes / size * size;
  CHECK(behind < kSliceBytes);
  for (int kind = 0; kind < 5; ++kind) {
    const auto arena = make_store("blocks", 16 * kMiB);
    CHECK(put_number(*arena, 1, bytes) == MakeResult::kMade && put_number(*arena, 2, bytes) == MakeResult::kMade);
    const Pinned first(*arena, 1), second(*arena, 2);
    Descriptor& entry = arena->heap().descriptor(first.descriptor());
    const u64 was = entry.offset, data = arena->header().data.value;
    const u64 slice = (was - data) / kSliceBytes, next = data + (slice + 1) * kSliceBytes;
    const Slice& other = arena->slice(slice + 1);
    std::vector<u8> before(sizeof other.present);
    std::memcpy(before.data(), static_cast<const void*>(other.present), before.size());
    const u64 places[] = {data + slice * kSliceBytes + behind, next - 64, was + 64,
                          arena->heap().descriptor(second.descriptor()).offset, data - 4096};
    entry.offset = places[kind];
    std::vector<std::string> findings;
    CHECK(refuses([&] { arena->heap().check(true, soon(), &findings); }));
    CHECK(std::memcmp(before.data(), static_cast<const void*>(other.present), before.size()) == 0);
    entry.offset = was;
    findings.clear();
    arena->heap().check(true, soon(), &findings);  // from the truths, which are sound again
    CHECK(holds_number(*arena, 1) && holds_number(*arena, 2));
    CHECK(arena->heap().objects.remove(ObjectId(2).bytes, soon()));
  }
}

// The same of a block that is given back: bits past the last block count as taken, so one of these would come free.
void block_behind_is_given_back() {
  const u64 bytes = 3000, size = Blocks::block_bytes(bytes), behind = kSliceBytes / size * size;
  const auto arena = make_store("behind", 16 * kMiB);
  CHECK(put_number(*arena, 1, bytes) == MakeResult::kMade);
  u32 descriptor = kNone;
  {
    const Pinned object(*arena, 1);
    descriptor = object.descriptor();
  }
  arena->ledger().sweep(soon());
  Descriptor& entry = arena->heap().descriptor(descriptor);
  const u64 data = arena->header().data.value, slice = (entry.offset - data) / kSliceBytes;
  const u64 before = arena->bitmap(slice)[kSliceBytes / size / 64];
  entry.offset = data + slice * kSliceBytes + behind;
  CHECK(refuses([&] { arena->heap().objects.remove(ObjectId(1).bytes, soon()); }));
  CHECK(arena->bitmap(slice)[kSliceBytes / size / 64] == before);
  CHECK(put_number(*arena, 2, bytes) == MakeResult::kMade && holds_number(*arena, 2));
}

// A table's header that names a block of somebody else: nothing is read or written there.
void blocks_of_others() {
  const Scene scene;
  Arena& arena = *scene.arena;
  CHECK(put_number(arena, 1, 300'000) == MakeResult::kMade);
  const Pinned object(arena, 1);
  TableHeader &header = scene.single->header(), &other = scene.groups->header();
  const u32 others[] = {object.descriptor() + 1, scene.number() + 1, other.segment_block[0], other.groups_block};
  for (u32* const named : {&header.segment_block[0], &header.links_block, &header.dense_block}) {
    const u32 was = *named;
    CHECK(was != 0);
    for (const u32 block : others) {
      *named = block;
      const auto again = TableDirectory(scene.arena).find("single");
      CHECK(refuses([&] { again->reads.waiting(soon()); }));
      *named = was;
      CHECK(again->reads.waiting(soon()) == scene.keys() && holds_number(arena, 1));
    }
  }
  CHECK(scene.give_advantages() != 0);
  DrawSet set;
  std::string why;
  header.dense_count = u64{1} << 62;  // more than it has slots
  CHECK(refuses([&] { scene.single->draws.draw(&set, 4, {}, soon(), &why); }));
  CHECK(scene.single->draws.draw(&set, 4, {}, soon(), &why) == 4);
}

// The same where the descriptor of one of its blocks leads to the block of a chunk.
void places_of_others() {
  const Scene scene;
  Arena& arena = *scene.arena;
  const Descriptor& chunk = arena.heap().descriptor(scene.number());
  const TableHeader& header = scene.groups->header();
  const std::vector<u64> waiting = scene.groups->reads.waiting(soon());
  for (const u32 block : {header.segment_block[0], header.links_block, header.groups_block}) {
    CHECK(block != 0);
    Descriptor& entry = arena.heap().descriptor(block - 1);
    const u64 was = entry.offset;
    entry.offset = chunk.offset;
    const auto again = TableDirectory(scene.arena).find("groups");
    CHECK(refuses([&] { again->reads.waiting(soon()); }));
    entry.offset = was;
    CHECK(again->reads.waiting(soon()) == waiting);
  }
  CHECK(scene.give_rewards() == 8 && scene.give_advantages() == 32);
}

// The same of the index of ids, which is made anew.
void index_of_ids() {
  const auto arena = make_store("index", 16 * kMiB);
  CHECK(put_number(*arena, 1, 9000) == MakeResult::kMade);
  const Pinned first(*arena, 1);
  HeapHeader& heap = arena->heap_header();
  const auto recovers = [&](u64 number) {
    CHECK(refuses([&] { put_number(*arena, number, 1000); }));
    CHECK(put_number(*arena, number, 1000) == MakeResult::kMade && holds_number(*arena, number));
    CHECK(holds_number(*arena, 1));
  };
  heap.index_block = first.descriptor() + 1;
  recovers(2);
  const u64 buckets = heap.index_buckets;
  u64 number = 2;
  // 2^62 more buckets have as many bytes, counted in 64 bits.
  for (const u64 wrong : {u64{1} << 62, (u64{1} << 62) + buckets, buckets / 2, buckets * 2, buckets + 1, buckets - 1}) {
    heap.index_buckets = wrong;
    recovers(++number);
  }
  Descriptor& block = arena->heap().descriptor(heap.index_block - 1);
  block.offset += 4;
  CHECK(refuses([&] { put_number(*arena, 100, 1000); }));
  block.offset -= 4;
  const u64 place = block.offset;
  block.offset = arena->heap().descriptor(first.descriptor()).offset;
  CHECK(refuses([&] { put_number(*arena, 101, 1000); }));
  block.offset = place;
  CHECK(holds_number(*arena, 1));
  CHECK(put_number(*arena, 100, 1000) == MakeResult::kMade && holds_number(*arena, 1));
}

// What a store's header says is looked at when a process attaches, and never again.
void header() {
  const auto arena = make_store("header", 16 * kMiB);
  ArenaHeader& header = arena->header();
  const Offset data = header.data, slices = header.slices, marks = header.marks, tables = header.tables;
  header.data = header.slices = header.marks = header.tables = Offset{u64{1} << 40};
  header.slice_count *= 1000;
  CHECK(put_number(*arena, 1, 3 * kMiB) == MakeResult::kMade && holds_number(*arena, 1));
  CHECK(TableDirectory(arena).create(table_shape("t", 10, 10), soon()) != nullptr);
  header.slice_count /= 1000;
  header.data = data;
  header.slices = slices;
  header.marks = marks;
  header.tables = tables;
  std::vector<std::string> findings;
  arena->heap().check(false, soon(), &findings);
  CHECK(findings.empty());
}

// An object whose record is said to lie on a disk that the store does not have.
void records() {
  const auto arena = make_store("records", 16 * kMiB);
  CHECK(put_number(*arena, 1, 1000) == MakeResult::kMade);
  u32& flags = arena->heap().descriptor(Pinned(*arena, 1).descriptor()).flags;
  flags |= kFlagLogged;
  CHECK(refuses([&] { arena->heap().objects.remove(ObjectId(1).bytes, soon()); }));
  flags &= ~kFlagLogged;
  CHECK(holds_number(*arena, 1) && arena->heap().objects.remove(ObjectId(1).bytes, soon()));
}

}  // namespace

int main() {
  late_columns();
  heads();
  heads_of_others();
  open_chunks();
  answers();
  blocks();
  block_behind_is_given_back();
  blocks_of_others();
  places_of_others();
  index_of_ids();
  header();
  records();
  std::puts("damaged places ok");
}
