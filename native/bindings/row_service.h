// The rows of a remote writer from its socket into the tables, without the interpreter: one that takes part in the calls
// of 500 writers costs more than the copies.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/writer_rows.h"
#include "wire/row_frame.h"

namespace di::py {

// Why `RowService::serve` has returned.
enum class Stopped : u32 {
  kFrame,  // what lies in the buffer, or comes next, is for the package
  kLook,   // nothing: it is time to look after the writer
  kRows,   // a call has to wait, or was refused: `Served` has its frame
  kTorn,   // a body does not match its checksum: the connection is of no use
};

struct Served {
  Stopped why = Stopped::kFrame;
  u64 start = 0, end = 0;                                // where the rest lies in the buffer
  u64 done = 0;                                          // the last call that was made
  u64 calls = 0;                                         // that were made, except those in `made`
  u64 acknowledged = 0;                                  // the last one that the client knows of
  std::vector<std::pair<u64, RowAcknowledgement>> kept;  // by last call; those that the client may not know of
  std::vector<u8> unsent;                                // of the last one
  std::vector<u8> meta, body;                            // kRows: of the frame
  int socket = -1;
  std::unique_ptr<RowsMade> made;  // and what its calls have made
};

// The socket, and the buffer that it was read into; the package goes on with what is left there.
struct Inlet {
  int socket;
  u8* buffer;
  u64 bytes, start, end;

  std::span<const u8> have() const { return {buffer + start, end - start}; }
};

// Memory for a body that does not fit the package's buffer. Used again: fresh pages would cost more than the copies.
class BodyBuffer {
 public:
  BodyBuffer() = default;
  ~BodyBuffer();
  BodyBuffer(const BodyBuffer&) = delete;
  BodyBuffer& operator=(const BodyBuffer&) = delete;
  u8* bytes();

 private:
  std::unique_ptr<u8[]> memory_;
};

class RowService {
 public:
  RowService(PyWriter& writer, std::vector<u32> order) : writer_(writer), order_(std::move(order)) {}

  // Rows of this form are made here from now on. text: RowRuns::of. lanes: those of each call, by number.
  void learn(std::string text, const RowForm& form, std::vector<u32> lanes);
  std::unique_ptr<Served> serve(Inlet inlet, u64 done, u64 epoch);

 private:
  struct Known {
    RowForm form;
    std::vector<u32> lanes;
  };

  // Each is a step of one frame. False: there is no further one, and `served` says why.
  bool take_frame(Inlet* inlet, u64 epoch, Served* served);
  bool make(const RowRuns& calls, const u8* body, u64 epoch, Served* served);
  std::optional<RowRuns> find(const Inlet& inlet, const RowFrame& frame, u64 epoch, u64 done) const;

  WriterRows writer_;
  std::vector<u32> order_;
  std::vector<std::string> texts_;
  std::vector<Known> known_;
};

void bind_row_service(nb::module_& module);

}  // namespace di::py
