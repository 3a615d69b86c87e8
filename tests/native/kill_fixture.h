// Children that die at a chosen fault point, and a board in shared memory that tells what they had been promised.
#pragma once

#include <sys/mman.h>

#include "store_fixture.h"

namespace di {

enum class Mark : u8 { kNone = 0, kStarted, kDone, kEnding, kEnded };

class Board {  // one mark per number
 public:
  explicit Board(u64 count) : count_(count) {
    void* at = mmap(nullptr, count + kTextBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    marks_ = static_cast<std::atomic<u8>*>(at);
  }
  ~Board() { munmap(marks_, count_ + kTextBytes); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  void set(u64 number, Mark mark) { marks_[number % count_].store(static_cast<u8>(mark)); }
  void replace(u64 number, Mark from, Mark to) {
    u8 seen = static_cast<u8>(from);
    marks_[number % count_].compare_exchange_strong(seen, static_cast<u8>(to));
  }
  Mark get(u64 number) const { return static_cast<Mark>(marks_[number % count_].load()); }
  char* text() { return reinterpret_cast<char*>(marks_ + count_); }
  static constexpr u64 kTextBytes = 65536;

 private:
  u64 count_;
  std::atomic<u8>* marks_;
};

// Every fault point that `body` passes when nothing stops it, run in a child.
inline std::vector<std::string> points_of(Board& board, const std::function<void()>& body) {
  Child child([&] {
    body();
    std::string all;
    for (const std::string& point : os::fault_points()) all += point + "\n";
    CHECK(all.size() < Board::kTextBytes);
    std::memcpy(board.text(), all.c_str(), all.size() + 1);
    return 0;
  });
  CHECK(child.wait() == 0);
  std::vector<std::string> points;
  const std::string all = board.text();
  for (std::size_t at = 0, end; (end = all.find('\n', at)) != std::string::npos; at = end + 1)
    points.push_back(all.substr(at, end - at));
  return points;
}

// Runs `body` in children that die at the count-th passing of each point, count = 1, 2, 3, 5, 8 … as far as it is
// passed; `meanwhile` goes on in this process, `after` judges what is left. How many died.
inline u64 die_everywhere(const std::vector<std::string>& points, u64 most, const std::function<void()>& body,
                          const std::function<void()>& meanwhile,
                          const std::function<void(const std::string&)>& after) {
  u64 deaths = 0;
  for (const std::string& point : points)
    for (u64 count = 1, before = 1; count <= most;) {
      const std::string spec = point + ":" + std::to_string(count);
      Child child([&] {
        os::arm_fault(spec);
        body();
        return 0;
      });
      meanwhile();
      const int end = child.wait();
      if (end != 0 && end != -SIGKILL) std::fprintf(stderr, "at %s the child ended with %d\n", spec.c_str(), end);
      CHECK(end == 0 || end == -SIGKILL);
      after(spec);
      if (end == 0) break;
      ++deaths;
      const u64 sum = before + count;
      before = count;
      count = std::max(count + 1, sum);
    }
  return deaths;
}

}  // namespace di
