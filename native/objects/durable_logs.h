// Tidies the files of durable objects: says which records in them count, and removes files that nobody needs.
//
// A file is removed when no object names it any more. Before that, all marks are synced to the disk, and the logs of
// dead processes are settled. Otherwise an older record of a deleted object could count again, because the file with
// the mark is gone.
#pragma once

#include "attach/arena.h"

namespace di {

// Marks records that no object names as void, in the logs of dead processes. Such a process had appended them, and died
// before anybody could read the object. A kill leaves a part of the work done; the next call starts again.
void void_stray_records(Arena& arena, Deadline deadline);
bool remove_unneeded_logs(Arena& arena, Deadline deadline);  // false: there was none
// The same, and copies the needed records of some logs to this process's own log: of logs of which less than half is
// needed. After a kill some records exist twice: an object names one of the two, and void_stray_records() finds the
// other.
bool tidy_logs(Arena& arena, Deadline deadline);

}  // namespace di
