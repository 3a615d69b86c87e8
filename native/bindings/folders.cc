// Files and folders that Python itself writes.
#include "bindings/bindings.h"
#include "os/filesystem.h"
#include "tier/folder.h"

namespace di::py {

void bind_folders(nb::module_& module) {
  // Makes the file object that owns the descriptor in the same step: Ctrl-C between two steps would leak the
  // descriptor.
  module.def(
      "create_no_link",
      [](const std::string& path, int flags) {
        const int fd = os::create_no_link(path, flags);
        if (fd >= 0) return fd;
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
        throw nb::python_error();
      },
      nb::arg("path"), nb::arg("flags"),
      "An opener for open(): makes the file if need be, and refuses symbolic links.");
  module.def(
      "sync_folder",
      [](const std::string& path) {
        const MaybeRelease release(true);
        if (const int number = os::sync_folder(path))
          throw os::file_error("the folder " + path + " cannot be synced", number);
      },
      nb::arg("path"), "Names that came and went there survive a power cut.");
  module.def("disk_room", &TierFolder::room_in, nb::arg("folder"),
             "Bytes that a store's files may take there: what is free, and what files of the folder take.");
}

}  // namespace di::py
