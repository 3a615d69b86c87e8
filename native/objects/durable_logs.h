// What becomes of the files of durable objects: which records in them count, and when a file may go.
//
// A file goes when no object names it any more. Before that all marks are on disk, and the logs of processes that died are
// settled: so no older record of an object that was deleted counts again because the one that says so is gone.
#pragma once

#include "attach/arena.h"

namespace di {

// In logs of processes that are gone: marks records that no object names as void. Such a process had appended them, and died
// before anybody could read the object. Killed: done in part; it is begun anew.
void settle_logs(Arena& arena, Deadline deadline);
bool remove_unneeded_logs(Arena& arena, Deadline deadline);  // files that nobody needs; false: there was none
// The same, and some logs less than half of which is needed are copied to this process's own. Killed: records that are there
// twice, of which one is named; the other one is found by settle_logs().
bool tidy_logs(Arena& arena, Deadline deadline);

}  // namespace di
