// Folders and filesystems: where the files of the disk tier lie. Calls return 0 or an errno, and are repeated after
// EINTR. Fault points: "file." and the name of the call.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "os/os.h"

namespace di::os {

// Opens a file for Python's open(): makes it if need be, with permissions by the umask; no symbolic link; CLOEXEC.
// Returns the descriptor, or -1 with errno set.
int create_no_link(const std::string& path, int flags);
int make_folder(const std::string& path);  // 0700; EEXIST. Its parent must be there
int remove_file(const std::string& path);  // ENOENT when it is gone already
int link_file(const std::string& from, const std::string& to);
int rename_file(const std::string& from, const std::string& to);  // replaces what is there, all at once
int sync_folder(const std::string& path);                         // added and removed names survive a power cut
// The names in a folder, without "." and "..", in any order.
int list_folder(const std::string& path, std::vector<std::string>* names);
// A whole small file. A write replaces it in one step: a reader sees the old or the new text, also after a power cut.
int read_small(const std::string& path, std::string* text, u64 most = 65536);  // EFBIG: it is longer
int write_small(const std::string& folder, const std::string& name, const std::string& text);
int blocks_of(const std::string& path, u64* bytes);  // bytes that a file takes; EINVAL: no plain file
// Bytes that the plain files in a folder take, without those whose inode is in `seen`, and adds them there; 0: there is
// no such folder.
u64 bytes_of_files(const std::string& folder, std::set<u64>* seen);
u64 names_of(const std::string& path);     // how many names a file has (hard links); 0: it cannot be looked at
bool is_folder(const std::string& path);   // follows symbolic links
int may_write(const std::string& folder);  // whether this user may make files there: 0, EACCES, EROFS …

struct Filesystem {
  std::string kind;      // "ext4", "nfs", "fuse.sshfs" …; a number when unknown
  bool network = false;  // or otherwise shared between machines: locks and mappings may not work there
  u64 free_bytes = 0;    // that this user may take
  u64 total_bytes = 0;
};
int filesystem_of(const std::string& path, Filesystem* found);  // fault point "file.network": a network one
// From f_type of statfs, and the type in /proc/self/mountinfo, which names the filesystem of a FUSE mount ("" when
// unknown).
void name_filesystem(u64 magic, const std::string& mount_type, Filesystem* found);

// A file that exists to be locked (flock): the kernel drops the lock with the last descriptor of the file, including
// those that forked children inherited. The file is never removed: a lock on a removed file excludes nobody. Movable.
class LockFile {
 public:
  LockFile() = default;
  LockFile(LockFile&& other) noexcept { *this = std::move(other); }
  LockFile& operator=(LockFile&& other) noexcept;
  ~LockFile() { close(); }
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

  int open(const std::string& path);  // made if need be, unlocked
  void close();                       // does not unlock while children have it open
  bool is_open() const { return fd_ >= 0; }
  bool is_at(const std::string& path) const;  // false: it was removed or renamed since it was opened
  // Without waiting: EWOULDBLOCK when others hold it. A lock of the other kind that is held already is released first:
  // another process may come in between, and after a failure no lock is held.
  int lock_exclusive();
  int lock_shared();
  void unlock();                     // for all processes that share the descriptor
  std::vector<u32> holders() const;  // pids by /proc/locks; those in other pid namespaces are missing

 private:
  int fd_ = -1;
};

}  // namespace di::os
