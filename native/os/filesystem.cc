// Folders, filesystems, lock files. See filesystem.h.
#include "os/filesystem.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "os/syscalls.h"

namespace di::os {

namespace {

int open_repeated(const std::string& path, int flags, int* fd) {
  while ((*fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600)) < 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

int write_all(int fd, const std::string& text) {
  for (u64 done = 0; done < text.size();) {
    const ssize_t put = ::write(fd, text.data() + done, text.size() - done);
    if (put < 0 && errno != EINTR) return errno;
    if (put == 0) return EIO;
    if (put > 0) done += static_cast<u64>(put);
  }
  return 0;
}

}  // namespace

int open_plain_file(const std::string& path, int flags, int* fd) {
  int opened = -1;
  // O_NONBLOCK: a pipe in place of a file must not block this call. Plain files ignore the flag.
  if (const int number = open_repeated(path, flags | O_NOFOLLOW | O_NONBLOCK, &opened)) return number;
  struct stat info{};
  if (fstat(opened, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(opened);
    return EINVAL;
  }
  *fd = opened;
  return 0;
}

// -------------------------------------------------------------------------------------------------------- folders
int create_no_link(const std::string& path, int flags) {
  return ::open(path.c_str(), flags | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
}

int make_folder(const std::string& path) {
  const int number = repeated("file.make_folder", [&] { return mkdir(path.c_str(), 0700); });
  if (number != 0) return number;
  return chmod(path.c_str(), 0700) == 0 ? 0 : errno;  // the umask may have taken rights
}

int remove_file(const std::string& path) {
  return repeated("file.remove", [&] { return unlink(path.c_str()); });
}

int link_file(const std::string& from, const std::string& to) {
  return repeated("file.link", [&] { return link(from.c_str(), to.c_str()); });
}

int rename_file(const std::string& from, const std::string& to) {
  return repeated("file.rename", [&] { return rename(from.c_str(), to.c_str()); });
}

int sync_folder(const std::string& path) {
  int fd = -1;
  if (const int number = open_repeated(path, O_RDONLY | O_DIRECTORY, &fd)) return number;
  const ScopedFd folder(fd);
  return repeated("file.sync_folder", [&] { return fsync(fd); });
}

int list_folder(const std::string& path, std::vector<std::string>* names) {
  names->clear();
  if (const int number = refused("file.list")) return number;
  int fd = -1;
  if (const int number = open_repeated(path, O_RDONLY | O_DIRECTORY, &fd)) return number;
  DIR* const stream = fdopendir(fd);
  if (stream == nullptr) {
    const int number = errno;
    close(fd);
    return number;
  }
  int number = 0;
  for (;;) {
    errno = 0;
    const dirent* const entry = readdir(stream);
    if (entry == nullptr) {
      number = errno;
      break;
    }
    if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0)
      names->emplace_back(entry->d_name);
  }
  closedir(stream);
  return number;
}

int read_small(const std::string& path, std::string* text, u64 most) {
  text->clear();
  int fd = -1;
  if (const int number = open_repeated(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, &fd)) return number;
  const ScopedFd file(fd);
  std::string all(most + 1, 0);
  u64 have = 0;
  while (have < all.size()) {
    ssize_t got = 0;
    const int number = repeated("file.read_small", [&] { return got = ::read(fd, &all[have], all.size() - have); });
    if (number != 0) return number;
    if (got == 0) break;
    have += static_cast<u64>(got);
  }
  if (have > most) return EFBIG;
  all.resize(have);
  *text = std::move(all);
  return 0;
}

int write_small(const std::string& folder, const std::string& name, const std::string& text) {
  const std::string path = folder + "/" + name, fresh = path + ".new";
  int number = refused("file.write_small");
  int fd = -1;
  if (number == 0) number = open_repeated(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK, &fd);
  if (number != 0) return number;
  const ScopedFd file(fd);
  number = write_all(fd, text);
  if (number == 0 && fsync(fd) != 0) number = errno;
  if (number == 0) number = rename_file(fresh, path);
  return number != 0 ? number : sync_folder(folder);
}

int blocks_of(const std::string& path, u64* bytes) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return errno;
  if (!S_ISREG(info.st_mode)) return EINVAL;
  *bytes = static_cast<u64>(info.st_blocks) * 512;
  return 0;
}

u64 bytes_of_files(const std::string& folder, std::set<u64>* seen) {
  std::vector<std::string> names;
  if (list_folder(folder, &names) != 0) return 0;
  u64 bytes = 0;
  for (const std::string& name : names) {
    struct stat info{};
    if (lstat((folder + "/" + name).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (seen->insert(info.st_ino).second) bytes += static_cast<u64>(info.st_blocks) * 512;
  }
  return bytes;
}

u64 names_of(const std::string& path) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0 ? static_cast<u64>(info.st_nlink) : 0;
}

bool is_at(int fd, const std::string& path) {
  struct stat open{}, named{};
  return fstat(fd, &open) == 0 && lstat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

bool is_folder(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

int may_write(const std::string& folder) {
  return repeated("file.may_write",
                  [&] { return faccessat(AT_FDCWD, folder.c_str(), R_OK | W_OK | X_OK, AT_EACCESS); });
}

// ---------------------------------------------------------------------------------------------------- filesystems
namespace {

struct Magic {
  u64 magic;
  const char* kind;
  bool network;
};

constexpr Magic kMagics[] = {
    {0xef53, "ext4", false},        {0x58465342, "xfs", false},   {0x9123683e, "btrfs", false},
    {0x2fc12fc1, "zfs", false},     {0xf2f52010, "f2fs", false},  {0xca451a4e, "bcachefs", false},
    {0x794c7630, "overlay", false}, {0x01021994, "tmpfs", false}, {0x858458f6, "ramfs", false},
    {0x4d44, "vfat", false},        {0x2011bab0, "exfat", false}, {0x6969, "nfs", true},
    {0x517b, "smb", true},          {0xff534d42, "cifs", true},   {0xfe534d42, "smb2", true},
    {0x00c36400, "ceph", true},     {0x01021997, "9p", true},     {0x0bd00bd0, "lustre", true},
    {0x47504653, "gpfs", true},     {0x19830326, "beegfs", true}, {0x20030528, "orangefs", true},
    {0x5346414f, "afs", true},      {0x6b414653, "afs", true},    {0x73757245, "coda", true},
    {0x564c, "ncp", true},          {0x01161970, "gfs2", true},   {0x7461636f, "ocfs2", true},
    {0xaad7aaea, "panfs", true},    {0x786f4256, "vboxsf", true}, {0xbacbacbc, "vmhgfs", true},
};
constexpr u64 kFuse = 0x65735546;

// FUSE filesystems on disks of this machine. All other FUSE filesystems, also virtiofs, may be on other machines.
constexpr const char* kLocalFuse[] = {"fuseblk",     "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.encfs",
                                      "fuse.bindfs", "fuse.mergerfs",       "fuse.ext4",      "fuse.zfs"};

// The type of the filesystem with this device number, as it was mounted: "fuse.sshfs".
// "36 35 98:0 /root /mount rw,noatime master:1 - ext3 /dev/sda1 rw"
std::string mount_type(dev_t device) {
  std::string text;
  if (!read_text("/proc/self/mountinfo", &text)) return "";
  const std::string wanted = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  for (u64 at = 0; at < text.size();) {
    const u64 end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    char number[32], type[64];
    const u64 dash = line.find(" - ");
    if (dash != std::string::npos && std::sscanf(line.c_str(), "%*u %*u %31s", number) == 1 && wanted == number &&
        std::sscanf(line.c_str() + dash, " - %63s", type) == 1) {
      return type;
    }
  }
  return "";
}

}  // namespace

void name_filesystem(u64 magic, const std::string& mount_type, Filesystem* found) {
  if (magic == kFuse) {
    found->kind = mount_type.empty() ? "fuse" : mount_type;
    found->network = std::none_of(std::begin(kLocalFuse), std::end(kLocalFuse),
                                  [&](const char* local) { return found->kind == local; });
    return;
  }
  char number[24];
  std::snprintf(number, sizeof number, "0x%llx", static_cast<unsigned long long>(magic));
  found->kind = number;
  found->network = false;
  for (const Magic& known : kMagics) {
    if (known.magic != magic) continue;
    found->kind = known.kind;
    found->network = known.network;
  }
}

int filesystem_of(const std::string& path, Filesystem* found) {
  struct statfs info{};
  struct stat folder{};
  const int number = repeated("file.free", [&] { return statfs(path.c_str(), &info); });
  if (number != 0) return number;
  const u64 magic = static_cast<u32>(info.f_type);  // signed on some machines
  const bool fuse = magic == kFuse && stat(path.c_str(), &folder) == 0;
  name_filesystem(magic, fuse ? mount_type(folder.st_dev) : "", found);
  if (refused("file.network") != 0) found->network = true;
  found->free_bytes = static_cast<u64>(info.f_bavail) * static_cast<u64>(info.f_bsize);
  found->total_bytes = static_cast<u64>(info.f_blocks) * static_cast<u64>(info.f_bsize);
  return 0;
}

// ----------------------------------------------------------------------------------------------------- lock files
LockFile& LockFile::operator=(LockFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

int LockFile::open(const std::string& path) {
  close();
  if (const int number = refused("file.open_lock")) return number;
  return open_plain_file(path, O_RDWR | O_CREAT, &fd_);
}

bool LockFile::is_at(const std::string& path) const { return os::is_at(fd_, path); }

void LockFile::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

int LockFile::lock_exclusive() {
  return repeated("file.lock", [this] { return flock(fd_, LOCK_EX | LOCK_NB); });
}

int LockFile::lock_shared() {
  return repeated("file.lock", [this] { return flock(fd_, LOCK_SH | LOCK_NB); });
}

void LockFile::unlock() { flock(fd_, LOCK_UN); }

std::vector<u32> LockFile::holders() const { return flock_holders(fd_); }

}  // namespace di::os
