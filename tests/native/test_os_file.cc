// Files, memory for direct ones, folders, lock files, kinds of filesystems: against the real kernel, with refused calls.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/status.h"
#include "check.h"
#include "child.h"
#include "folder_fixture.h"
#include "os/file.h"
#include "os/filesystem.h"
#include "os/os.h"

using namespace di;
using os::AlignedBuffer;
using os::File;
using os::FileAccess;
using os::kDirectBytes;
using os::PageCache;

namespace {

constexpr u64 kMiB = u64{1} << 20;

void arm(const std::string& spec) {
#ifdef DI_FAULTS
  os::arm_fault(spec);
#else
  static_cast<void>(spec);
#endif
}

#ifdef DI_FAULTS
constexpr bool kHasFaults = true;
#else
constexpr bool kHasFaults = false;
#endif

void fill(const AlignedBuffer& buffer, u8 first) {
  for (u64 i = 0; i < buffer.bytes(); ++i) buffer.data()[i] = static_cast<u8>(first + i % 251);
}

bool holds(const AlignedBuffer& buffer, u64 from, u64 bytes, u8 first) {
  for (u64 i = 0; i < bytes; ++i)
    if (buffer.data()[from + i] != static_cast<u8>(first + i % 251)) return false;
  return true;
}

void test_buffers() {
  AlignedBuffer buffer(1);
  CHECK(buffer.bytes() == kDirectBytes && reinterpret_cast<u64>(buffer.data()) % kDirectBytes == 0);
  CHECK(buffer.data()[0] == 0);
  u8* const at = buffer.data();
  AlignedBuffer moved(std::move(buffer));
  CHECK(moved.data() == at && buffer.data() == nullptr && buffer.bytes() == 0);
  at[5] = 7;

  // In the child the pages are not there, and the destructor leaves alone what lies there since.
  Child child([&] {
    int fds[2];
    CHECK(pipe(fds) == 0);
    CHECK(is_emulated() || (write(fds[1], at, 1) == -1 && errno == EFAULT));  // qemu-user has no MADV_DONTFORK
    moved.clear();
    return 3;
  });
  CHECK(child.wait() == 3);
  CHECK(moved.data()[5] == 7);
  bool refused = false;
  try {
    const AlignedBuffer huge(~u64{0} - 5);
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  CHECK(refused);
}

// On the device.
u64 blocks_bytes(const std::string& path) {
  struct stat info{};
  CHECK(stat(path.c_str(), &info) == 0);
  return static_cast<u64>(info.st_blocks) * 512;
}

// Written, read back whole and in parts, across the end.
void test_file(const std::string& folder) {
  const std::string path = folder + "/one";
  File file;
  CHECK(file.open(path, FileAccess::kRead, PageCache::kPast) == ENOENT && !file.is_open());
  CHECK(file.open(path, FileAccess::kCreate, PageCache::kPast) == 0 && file.is_open());
  CHECK((fcntl(open(path.c_str(), O_RDONLY | O_CLOEXEC), F_GETFD) & FD_CLOEXEC) != 0);
  struct stat info{};
  CHECK(stat(path.c_str(), &info) == 0 && (info.st_mode & 07777) == 0600);
  CHECK(file.preallocate(2 * kMiB) == 0 && file.bytes() == 2 * kMiB && blocks_bytes(path) >= 2 * kMiB);

  AlignedBuffer out(kMiB), in(kMiB);
  fill(out, 3);
  CHECK(file.write(kMiB, out.data(), kMiB) == 0 && file.sync() == 0);
  u64 got = 0;
  CHECK(file.read(kMiB + 8192, in.data(), 4096, &got) == 0 && got == 4096);
  CHECK(std::memcmp(in.data(), out.data() + 8192, 4096) == 0);
  CHECK(file.read(0, in.data(), kMiB, &got) == 0 && got == kMiB);
  CHECK(std::count(in.data(), in.data() + kMiB, 0) == static_cast<i64>(kMiB));
  CHECK(file.read(2 * kMiB - 4096, in.data(), kMiB, &got) == 0 && got == 4096);
  CHECK(file.read(4 * kMiB, in.data(), 4096, &got) == 0 && got == 0);
  if (file.is_direct()) {
    CHECK(file.read(1, in.data(), 4096, &got) == EINVAL && file.read(0, in.data() + 8, 4096, &got) == EINVAL);
    CHECK(file.read(0, in.data(), 100, &got) == EINVAL && file.write(0, in.data(), 100) == EINVAL);
  }

  File other;
  CHECK(other.open(path, FileAccess::kCreate, PageCache::kPast) == EEXIST);
  CHECK(other.open(path, FileAccess::kRead, PageCache::kPast) == 0 && other.id() == file.id());
  CHECK(other.write(0, out.data(), 4096) == EBADF);
  other = std::move(file);
  CHECK(!file.is_open() && other.write(0, out.data(), 4096) == 0);

  // A length that is no multiple of the alignment: the rest at the end is read, no more.
  CHECK(truncate(path.c_str(), 4096 + 100) == 0);
  CHECK(other.read(0, in.data(), 16384, &got) == 0 && got == 4196 && holds(in, 0, 4096, 3));
  other.close();
  CHECK(symlink(path.c_str(), (folder + "/link").c_str()) == 0);
  CHECK(file.open(folder + "/link", FileAccess::kRead, PageCache::kPast) == ELOOP);
  CHECK(mkfifo((folder + "/pipe").c_str(), 0600) == 0);
  CHECK(file.open(folder + "/pipe", FileAccess::kReadWrite, PageCache::kPast) == EINVAL && !file.is_open());
}

// Share of the file's pages that lie in the page cache.
double cached(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const u64 bytes = os::file_bytes(fd), pages = bytes / kPageBytes;
  u8* const at = os::map(fd, bytes, false);
  CHECK(fd >= 0 && at != nullptr);
  std::vector<u8> there(pages);
  os::resident(at, pages, there.data());
  os::unmap(at, bytes);
  os::close_fd(fd);
  return static_cast<double>(std::count(there.begin(), there.end(), 1)) / static_cast<double>(pages);
}

// What is written and read does not fill the page cache, direct or not.
void test_cache(const std::string& folder) {
  os::Filesystem found;
  CHECK(os::filesystem_of(folder, &found) == 0);
  if (found.kind == "tmpfs" || is_emulated()) return;  // its pages are the file; qemu-user has no mincore of files
  const std::string path = folder + "/cached";
  File file;
  CHECK(file.open(path, FileAccess::kCreate, PageCache::kPast) == 0);
  AlignedBuffer buffer(4 * kMiB);
  u64 got = 0;
  for (const char* fault : {"", "file.write:1:EINVAL"}) {  // the second time not direct
    if (kHasFaults) arm(fault);
    CHECK(file.write(0, buffer.data(), buffer.bytes()) == 0 && file.sync() == 0);
    CHECK(cached(path) < 0.25);
    CHECK(file.read(0, buffer.data(), buffer.bytes(), &got) == 0 && got == buffer.bytes());
    CHECK(cached(path) < 0.25);
  }
}

// Where the filesystem has taken O_DIRECT and refuses a call all the same, the file goes on through the cache.
void test_fallback(const std::string& folder) {
  if (!kHasFaults) return;
  for (const char* call : {"file.write", "file.read"}) {
    const std::string path = folder + "/" + call;
    File file;
    CHECK(file.open(path, FileAccess::kCreate, PageCache::kPast) == 0);
    if (!file.is_direct()) return;
    AlignedBuffer out(kMiB), in(kMiB);
    fill(out, 9);
    u64 got = 0;
    arm(std::string(call) + ":1:EINVAL");
    CHECK(file.write(0, out.data(), kMiB) == 0 && file.sync() == 0);
    CHECK(file.read(0, in.data(), kMiB, &got) == 0 && got == kMiB && holds(in, 0, kMiB, 9));
    CHECK(!file.is_direct());
    CHECK(file.write(17, out.data(), 100) == 0 && file.sync() == 0);  // no alignment from now on
    CHECK(file.read(17, in.data(), 100, &got) == 0 && got == 100 && holds(in, 0, 100, 9));
  }
}

void test_refusals(const std::string& folder) {
  if (!kHasFaults) return;
  File file;
  const AlignedBuffer buffer(4096);
  u64 got = 0;
  arm("file.open:1:EIO");
  CHECK(file.open(folder + "/two", FileAccess::kCreate, PageCache::kPast) == EIO && !file.is_open());
  CHECK(file.open(folder + "/two", FileAccess::kCreate, PageCache::kPast) == 0);
  arm("file.preallocate:1:ENOSPC");
  CHECK(file.preallocate(kMiB) == ENOSPC);
  arm("file.preallocate:1:EINTR");
  CHECK(file.preallocate(kMiB) == 0 && file.bytes() == kMiB);
  arm("file.preallocate:1:EOPNOTSUPP");  // zeros are written instead, and what is there stays
  CHECK(file.write(0, buffer.data(), 4096) == 0);
  CHECK(file.preallocate(3 * kMiB + 5) == 0 && file.bytes() >= 3 * kMiB + 5 &&
        blocks_bytes(folder + "/two") >= 3 * kMiB);
  for (const char* number : {"EIO", "EINTR"}) {
    const int wanted = std::string(number) == "EIO" ? EIO : 0;
    arm(std::string("file.write:1:") + number);
    CHECK(file.write(0, buffer.data(), 4096) == wanted);
    arm(std::string("file.read:1:") + number);
    CHECK(file.read(0, buffer.data(), 4096, &got) == wanted);
    arm(std::string("file.sync:1:") + number);
    CHECK(file.sync() == wanted);
    arm(std::string("file.rename:1:") + number);
    CHECK(os::rename_file(folder + "/two", folder + "/three") == wanted);
    arm(std::string("file.link:1:") + number);
    CHECK(os::link_file(folder + (wanted == 0 ? "/three" : "/two"), folder + "/four") == wanted);
    arm(std::string("file.sync_folder:1:") + number);
    CHECK(os::sync_folder(folder) == wanted);
  }
  arm("");
}

// Several threads through one descriptor, and a limit of file sizes, which would kill.
void test_threads_and_limits(const std::string& folder) {
  File file;
  CHECK(file.open(folder + "/threads", FileAccess::kCreate, PageCache::kPast) == 0);
  std::vector<std::thread> threads;
  for (u8 i = 0; i < 4; ++i) {
    threads.emplace_back([&file, i] {
      AlignedBuffer out(64 << 10), in(64 << 10);
      fill(out, i);
      u64 got = 0;
      for (u64 turn = 0; turn < 8; ++turn) {
        const u64 offset = (turn * 4 + i) * out.bytes();
        CHECK(file.write(offset, out.data(), out.bytes()) == 0);
        CHECK(file.read(offset, in.data(), in.bytes(), &got) == 0 && got == in.bytes() && holds(in, 0, got, i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Child child([&folder] {
    const rlimit small{kMiB, kMiB};
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    File limited;
    CHECK(limited.open(folder + "/limited", FileAccess::kCreate, PageCache::kPast) == 0);
    CHECK(limited.preallocate(2 * kMiB) == EFBIG && limited.preallocate(kMiB) == 0);
    return 5;
  });
  CHECK(child.wait() == 5);
}

void test_folders(const std::string& folder) {
  const std::string made = folder + "/made";
  CHECK(!os::is_folder(made) && os::make_folder(made) == 0 && os::make_folder(made) == EEXIST && os::is_folder(made));
  CHECK(os::make_folder(folder + "/no/such") == ENOENT && os::may_write(made) == 0 &&
        os::may_write(made + "/none") == ENOENT);
  CHECK(os::write_small(made, "epoch", "12") == 0 && os::write_small(made, "epoch", "13") == 0);
  std::string text;
  CHECK(os::read_small(made + "/epoch", &text) == 0 && text == "13");
  CHECK(os::read_small(made + "/epoch", &text, 1) == EFBIG && text.empty());
  CHECK(os::read_small(made + "/none", &text) == ENOENT);
  std::vector<std::string> names;
  CHECK(os::list_folder(made, &names) == 0 && names == std::vector<std::string>{"epoch"});
  CHECK(os::link_file(made + "/epoch", made + "/again") == 0 && os::list_folder(made, &names) == 0);
  CHECK(names.size() == 2 && os::remove_file(made + "/again") == 0 && os::remove_file(made + "/again") == ENOENT);
  CHECK(os::list_folder(made + "/none", &names) == ENOENT && names.empty());
  if (kHasFaults) {  // a write that fails leaves the old text
    arm("file.rename:1:EIO");
    CHECK(os::write_small(made, "epoch", "14") == EIO);
    CHECK(os::read_small(made + "/epoch", &text) == 0 && text == "13");
    arm("");
  }
}

void test_filesystems(const std::string& folder) {
  os::Filesystem found;
  CHECK(os::filesystem_of(folder, &found) == 0 && !found.network && !found.kind.empty());
  CHECK(found.free_bytes > 0 && found.free_bytes <= found.total_bytes);
  CHECK(os::filesystem_of(folder + "/none", &found) == ENOENT);
  const auto named = [](u64 magic, const char* type) {
    os::Filesystem one;
    os::name_filesystem(magic, type, &one);
    return one.kind + (one.network ? " network" : "");
  };
  CHECK(named(0xef53, "") == "ext4" && named(0x01021994, "") == "tmpfs" && named(0x794c7630, "") == "overlay");
  CHECK(named(0x6969, "nfs4") == "nfs network" && named(0xff534d42, "") == "cifs network");
  CHECK(named(0x0bd00bd0, "") == "lustre network" && named(0x01021997, "") == "9p network");
  CHECK(named(0x65735546, "fuse.sshfs") == "fuse.sshfs network" && named(0x65735546, "") == "fuse network");
  CHECK(named(0x65735546, "fuseblk") == "fuseblk" && named(0x65735546, "virtiofs") == "virtiofs network");
  CHECK(named(0x123, "") == "0x123");
}

void test_locks(const std::string& folder) {
  const std::string path = folder + "/lock";
  os::LockFile mine;
  CHECK(mine.open(path) == 0 && mine.lock_exclusive() == 0);
  CHECK(mine.holders() == std::vector<u32>{os::pid()} || mine.holders().empty());
  Child child([&path] {
    os::LockFile theirs;
    CHECK(theirs.open(path) == 0 && theirs.lock_shared() == EWOULDBLOCK);
    Child::ready();
    Child::wait_go();
    CHECK(theirs.lock_shared() == 0);
    Child::ready();
    Child::wait_go();
    return 4;
  });
  CHECK(child.wait_ready());
  CHECK(mine.lock_shared() == 0);
  child.go();
  CHECK(child.wait_ready());
  CHECK(mine.lock_exclusive() == EWOULDBLOCK);
  mine.close();
  CHECK(mine.open(path) == 0 && mine.lock_exclusive() == EWOULDBLOCK);
  child.go();
  CHECK(child.wait() == 4);
  CHECK(mine.lock_exclusive() == 0);
  mine.unlock();
  CHECK(mkfifo((folder + "/pipe").c_str(), 0600) == 0);
  CHECK(mine.open(folder + "/pipe") == EINVAL);
}

void test_errors() {
  CHECK(os::file_error("x", ENOSPC).code() == Code::kStoreFull &&
        os::file_error("x", EDQUOT).code() == Code::kStoreFull);
  CHECK(os::file_error("x", EROFS).code() == Code::kAccessDenied &&
        os::file_error("x", EIO).code() == Code::kStoreError);
  for (const int number : {ENOSPC, EDQUOT, EACCES, EROFS, EMFILE, ENFILE, EFBIG, EIO, ENOENT, EXDEV}) {
    const Error error = os::file_error("the file x cannot be read", number);
    CHECK(error.is_told() && std::string(error.what()).starts_with("the file x cannot be read: "));
    CHECK(std::strchr(error.what(), ';') != nullptr);
  }
}

}  // namespace

int main() {
  test_buffers();
  test_errors();
  std::vector<std::string> places{std::filesystem::temp_directory_path()};
  if (os::is_folder("/dev/shm") && os::may_write("/dev/shm") == 0) places.emplace_back("/dev/shm");
  for (const std::string& place : places) {
    for (const auto test : {test_file, test_cache, test_fallback, test_refusals, test_threads_and_limits, test_folders,
                            test_filesystems, test_locks}) {
      const TempFolder folder(place);
      test(folder.path());
    }
  }
  std::puts("ok");
  return 0;
}
