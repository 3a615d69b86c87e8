// Moves the rows of a remote writer from its socket into the tables without the interpreter. With 500 writers, an
// interpreter that takes part in each call costs more than the copies.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/writer_rows.h"
#include "net/incoming.h"
#include "net/rows.h"

namespace di::py {

// Why `RowService::serve` has returned.
enum class Stopped : u32 {
  kOther,  // the next message is for the package
  kLook,   // no message: it is time to look after the writer
  kRows,   // a call has to wait, or was refused: `Served` has its message
  kTorn,   // bytes that are no message, or a message cut off: the connection is unusable
};

struct Served {
  Stopped why = Stopped::kOther;
  u64 done = 0;                                               // the last call that was made
  u64 calls = 0;                                              // calls that were made; `made` has more
  u64 acknowledged = 0;                                       // the last call that the client knows of
  std::vector<std::pair<u64, net::RowAcknowledgement>> kept;  // by last call; calls that the client may not know of
  std::vector<u8> meta, body;                                 // kRows: of the message
  std::unique_ptr<RowsMade> made;                             // the results of the message's calls
};

// Memory for a message body. It is reused: fresh pages would cost more than the copies.
class BodyBuffer {
 public:
  BodyBuffer();
  ~BodyBuffer();
  BodyBuffer(const BodyBuffer&) = delete;
  BodyBuffer& operator=(const BodyBuffer&) = delete;
  u8* bytes() { return memory_.get(); }

 private:
  std::unique_ptr<u8[]> memory_;
};

class RowService {
 public:
  RowService(PyWriter& writer, std::vector<u32> order) : writer_(writer), order_(std::move(order)) {}

  bool knows(const std::string& text) const;
  // From now on rows of this form are made here, until other forms have taken its place. text: RowRuns::of. lanes: the
  // lanes of each call, by number.
  void learn(std::string text, const RowForm& form, std::vector<u32> lanes);
  std::unique_ptr<Served> serve(net::Incoming& incoming, int socket, u64 most_bytes, u64 done, u64 epoch);

 private:
  struct Known {
    RowForm form;
    std::vector<u32> lanes;
  };

  // Each function performs one step for one message. False: there is no further step, and `served` says why.
  bool take_message(net::Incoming& incoming, int socket, u64 epoch, Served* served);
  bool make(const net::RowRuns& calls, const u8* body, u64 epoch, Served* served);
  std::optional<net::RowRuns> find(const net::Incoming& incoming, u64 epoch, u64 done) const;

  WriterRows writer_;
  std::vector<u32> order_;
  std::vector<std::string> texts_;
  std::vector<Known> known_;
};

void bind_row_service(nb::module_& module);

}  // namespace di::py
