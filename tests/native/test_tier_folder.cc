// One folder, one store: who may open it, what refuses it, kills on the way, and which segments are left.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/status.h"
#include "child.h"
#include "folder_fixture.h"
#include "segment_fixture.h"
#include "tier/folder.h"

using namespace di;

namespace {

Deadline soon() { return Deadline::in(u64{60} * 1'000'000'000); }

struct Refusal {
  Code code = Code::kEndOfData;  // nothing under test throws this by itself
  std::string text, culprit;
};

template <class Body>
Refusal refusal_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.is_told());
    return {error.code(), error.what(), error.culprit()};
  }
  return {};
}

template <class Body>
Code code_of(const Body& body) {
  return refusal_of(body).code;
}

void open_once(const std::string& path) { TierFolder::open(path, soon()); }

void test_one_after_the_other(const std::string& parent) {
  const std::string path = parent + "/store";
  Uuid uuid;
  {
    const TierFolder folder = TierFolder::open(path, soon());
    CHECK(folder.epoch() == 1 && folder.segments().empty() && folder.uuid() != Uuid{});
    struct stat info{};
    CHECK(stat(path.c_str(), &info) == 0 && (info.st_mode & 07777) == 0700);
    uuid = folder.uuid();
    CHECK(TierFolder::room_in(path) > 0);
    folder.check_space(4096);
    CHECK(code_of([&] { folder.check_space(~u64{0}); }) == Code::kStoreFull);
  }
  const TierFolder again = TierFolder::open(path + "/", soon());
  CHECK(again.epoch() == 2 && again.uuid() == uuid);
}

// A process that has it open keeps others out; those that join it do too, and children that are forked.
void test_one_at_a_time(const std::string& parent) {
  const std::string path = parent + "/store";
  {
    TierFolder folder = TierFolder::open(path, soon());
    const Refusal here = refusal_of([&] { open_once(path); });
    CHECK(here.code == Code::kStoreError && here.text.find("another store lives in " + path) == 0);
    Child joins([&] {
      const Refusal there = refusal_of([&] { open_once(path); });
      const std::string owner = "pid " + std::to_string(getppid());
      CHECK(there.code == Code::kStoreError && (there.culprit == owner || there.culprit.empty()));
      const TierFolder joined = TierFolder::join(path, folder.uuid(), 1, soon());
      {
        const TierFolder inherited = std::move(folder);
      }  // it lets go what it has from its parent
      Child::ready();
      Child::wait_go();
      return 3;
    });
    CHECK(joins.wait_ready());
    {
      const TierFolder gone = std::move(folder);
    }
    CHECK(code_of([&] { open_once(path); }) == Code::kStoreError);
    joins.go();
    CHECK(joins.wait() == 3);
  }
  auto folder = std::make_unique<TierFolder>(TierFolder::open(path, soon()));
  CHECK(folder->epoch() == 2);
  Child inherits([] {
    Child::ready();
    Child::wait_go();
    return 4;
  });
  CHECK(inherits.wait_ready());
  folder.reset();
  CHECK(code_of([&] { open_once(path); }) == Code::kStoreError);
  inherits.go();
  CHECK(inherits.wait() == 4);
  open_once(path);
}

void test_join(const std::string& parent) {
  const std::string path = parent + "/store";
  const TierFolder folder = TierFolder::open(path, soon());
  CHECK(TierFolder::join(path, folder.uuid(), 1, soon()).epoch() == 1);
  CHECK(code_of([&] { TierFolder::join(path, folder.uuid(), 2, soon()); }) == Code::kStoreError);
  CHECK(code_of([&] { TierFolder::join(path, Uuid{}, 1, soon()); }) == Code::kStoreError);
  CHECK(code_of([&] { TierFolder::join(parent + "/none", folder.uuid(), 1, soon()); }) == Code::kStoreError);
  Child opens([&] {
    os::LockFile lock;
    CHECK(lock.open(path + "/open.lock") == 0 && lock.lock_exclusive() == 0);
    Child::ready();
    Child::wait_go();
    return 5;
  });
  CHECK(opens.wait_ready());
  const Refusal late = refusal_of([&] { TierFolder::join(path, folder.uuid(), 1, Deadline::in(20'000'000)); });
  CHECK(late.code == Code::kTimeout && late.text.find("open.lock") != std::string::npos);
  opens.go();
  CHECK(opens.wait() == 5);
  CHECK(TierFolder::join(path, folder.uuid(), 1, soon()).uuid() == folder.uuid());
}

void test_bad_places(const std::string& parent) {
  write_file(parent + "/file", {1});
  CHECK(code_of([&] { open_once("relative"); }) == Code::kInvalid && code_of([&] { open_once(""); }) == Code::kInvalid);
  const Refusal orphan = refusal_of([&] { open_once(parent + "/no/such"); });
  CHECK(orphan.code == Code::kInvalid && orphan.text.find("mkdir -p " + parent + "/no") != std::string::npos);
  CHECK(code_of([&] { open_once(parent + "/file"); }) == Code::kInvalid);
  CHECK(code_of([&] { open_once(parent + "/file/below"); }) == Code::kInvalid);
}

// In a child with mounts of its own, where the system lets it have them.
void test_read_only(const std::string& parent) {
  Child child([&] {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 6;
    if (mount("tmpfs", parent.c_str(), "tmpfs", MS_RDONLY, nullptr) != 0) return 6;
    CHECK(code_of([&] { open_once(parent + "/store"); }) == Code::kAccessDenied);
    CHECK(code_of([&] { open_once(parent); }) == Code::kAccessDenied);
    return 6;
  });
  CHECK(child.wait() == 6);
}

// A filesystem that is too small: the folder opens, the segment is refused and leaves nothing.
void test_full(const std::string& parent) {
  Child child([&] {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 6;
    if (mount("tmpfs", parent.c_str(), "tmpfs", 0, "size=1m") != 0) return 6;
    const TierFolder folder = TierFolder::open(parent + "/store", soon());
    CHECK(TierFolder::room_in(folder.path()) <= 1 << 20);
    CHECK(code_of([&] { folder.check_space(4 << 20); }) == Code::kStoreFull);
    CHECK(code_of([&] { SegmentWriter::create(folder.path(), {}, 4 << 20); }) == Code::kStoreFull);
    CHECK(folder.segments().empty() && TierFolder::room_in(folder.path()) > 512 << 10);
    return 6;
  });
  CHECK(child.wait() == 6);
}

void test_damaged_epoch(const std::string& parent) {
  const std::string path = parent + "/store";
  open_once(path);
  std::string good;
  CHECK(os::read_small(path + "/epoch", &good) == 0);
  for (u64 at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] ^= 1;
    CHECK(os::write_small(path, "epoch", bad) == 0);
    const Code code = code_of([&] { open_once(path); });
    CHECK(code == (at == std::strlen("di-store-tier ") ? Code::kLayoutMismatch : Code::kCorruptData));
  }
  for (const std::string& bad : {std::string(), good.substr(0, 20), good + "x", std::string(5000, 'x')}) {
    CHECK(os::write_small(path, "epoch", bad) == 0);
    CHECK(code_of([&] { open_once(path); }) == Code::kCorruptData);
  }
  CHECK(os::write_small(path, "epoch", "di-store-tier 2 whatever") == 0);
  CHECK(code_of([&] { open_once(path); }) == Code::kLayoutMismatch);
  CHECK(os::write_small(path, "epoch", good) == 0);
  {
    const TierFolder folder = TierFolder::open(path, soon());
    CHECK(folder.epoch() == 2);
    write_file(folder.segment_path(1), {1});
  }
  CHECK(os::remove_file(path + "/epoch") == 0);  // now nothing says whose segment that is
  CHECK(code_of([&] { open_once(path); }) == Code::kCorruptData);
}

void test_segments(const std::string& parent) {
  const TierFolder folder = TierFolder::open(parent + "/store", soon());
  const auto make = [&](u32 number, u64 epoch, const Uuid& uuid) {
    SegmentOwner owner;
    owner.number = number;
    owner.epoch = epoch;
    owner.uuid = uuid;
    SegmentWriter::create(folder.path(), owner, 64 << 10);
  };
  make(3, 1, folder.uuid());
  make(1, 2, folder.uuid());
  make(0x12345678, 1, folder.uuid());
  make(5, 1, Uuid{7});
  write_file(folder.segment_path(9), Bytes(100, 0));  // its maker was killed
  write_file(folder.path() + "/segment-9", {1});      // not ours
  CHECK(os::link_file(folder.segment_path(3), folder.segment_path(4)) == 0);
  const std::vector<SegmentFile> files = folder.segments();
  CHECK(files.size() == 6 && files[0].number == 1 && files[5].number == 0x12345678);
  CHECK(files[1].bytes >= 64 << 10);
  folder.sweep();
  const std::vector<SegmentFile> left = folder.segments();
  CHECK(left.size() == 1 && left[0].number == 5);  // of another store
  folder.remove_segment(5);
  folder.remove_segment(5);
  CHECK(folder.segments().empty() && os::remove_file(folder.path() + "/segment-9") == 0);
}

#ifdef DI_FAULTS

void test_errors(const std::string& parent) {
  const std::string path = parent + "/store";
  const auto code_with = [&](const char* fault) {
    os::arm_fault(fault);
    const Code code = code_of([&] { open_once(path); });
    os::arm_fault("");
    return code;
  };
  CHECK(code_with("file.make_folder:1:ENOSPC") == Code::kStoreFull);
  CHECK(code_with("file.write_small:1:ENOSPC") == Code::kStoreFull);
  CHECK(code_with("file.network:1:EIO") == Code::kInvalid);
  CHECK(code_with("file.rename:1:EIO") == Code::kStoreError);
  CHECK(code_with("file.open_lock:2:EIO") == Code::kStoreError);
  CHECK(code_with("file.lock:2:EIO") == Code::kStoreError);
  const TierFolder folder = TierFolder::open(path, soon());
  CHECK(folder.epoch() == 1);
  os::arm_fault("file.remove:1:EIO");
  CHECK(code_of([&] { folder.remove_segment(1); }) == Code::kStoreError);
  os::arm_fault("file.list:1:EIO");
  CHECK(code_of([&] { folder.segments(); }) == Code::kStoreError);
  os::arm_fault("");
}

// Killed while it opens a folder, a process leaves one that can be opened.
void test_kills(const std::string& parent) {
  const std::string path = parent + "/store";
  u64 epoch = 0;
  for (const char* point : {"folder.before_epoch:1", "folder.after_epoch:1", "folder.before_epoch:1"}) {
    Child child([&] {
      os::arm_fault(point);
      open_once(path);
      return 0;
    });
    CHECK(child.wait() == -SIGKILL);
    const TierFolder folder = TierFolder::open(path, soon());
    CHECK(folder.epoch() > epoch);
    epoch = folder.epoch();
  }
  CHECK(epoch == 4);
}

#else

void test_errors(const std::string&) {}
void test_kills(const std::string&) {}

#endif

}  // namespace

int main() {
  for (const auto test : {test_one_after_the_other, test_one_at_a_time, test_join, test_bad_places, test_read_only,
                          test_full, test_damaged_epoch, test_segments, test_errors, test_kills}) {
    const TempFolder folder;
    test(folder.path());
  }
  std::puts("ok");
  return 0;
}
