// A folder of a test's own, removed with what is in it.
#pragma once

#include <filesystem>
#include <string>

#include <stdlib.h>

#include "check.h"

class TempFolder {
 public:
  explicit TempFolder(const std::string& under = std::filesystem::temp_directory_path()) {
    std::string path = under + "/di-store-test-XXXXXX";
    CHECK(mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};
