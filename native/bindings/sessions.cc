// Sessions of remote writers: reads their marks, and ends sessions.
#include <algorithm>
#include <cstring>

#include "bindings/bindings.h"
#include "replay/session_marks.h"

namespace di::py {
namespace {

nb::dict session_marks(const ArenaPointer& arena, nb::handle session, Deadline deadline) {
  arena->enter();
  const SessionId id = session_id(session);
  nb::dict all = new_dict();
  for (const MarkOf& mark : SessionMarks(arena).list(id, deadline))
    all[nb::str(mark.table.c_str(), mark.table.size())] =
        new_tuple(nb::int_(mark.seq), nb::int_(mark.done), nb::bool_(mark.complete));
  return all;
}

}  // namespace

SessionId session_id(nb::handle bytes) {
  if (!PyBytes_Check(bytes.ptr())) throw Error(Code::kType, "a session is named by bytes");
  SessionId id{};
  if (static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr())) != id.size())
    throw Error(Code::kInvalid, "a session is named by " + std::to_string(id.size()) + " bytes");
  std::memcpy(id.data(), PyBytes_AS_STRING(bytes.ptr()), id.size());
  return id;
}

void bind_sessions(nb::class_<Arena>& type) {
  type.def(
          "session_marks", &session_marks, nb::arg("session"), nb::arg("timeout") = 60.0,
          nb::sig("def session_marks(self, session: bytes, timeout: float = 60.0) -> dict[str, tuple[int, int, bool]]"))
      .def(
          "claim_session",
          [](const ArenaPointer& arena, nb::handle session, Deadline deadline) {
            arena->enter();
            return SessionMarks(arena).claim_all(session_id(session), deadline);
          },
          nb::arg("session"), nb::arg("timeout"),
          nb::sig("def claim_session(self, session: bytes, timeout: float) -> int"))
      .def(
          "keep_session",
          [](const ArenaPointer& arena, nb::handle session) {
            arena->enter();
            SessionMarks(arena).keep(session_id(session));
          },
          nb::arg("session"), nb::sig("def keep_session(self, session: bytes) -> None"))
      .def(
          "end_session",
          [](const ArenaPointer& arena, nb::handle session, Deadline deadline) {
            arena->enter();
            return SessionMarks(arena).end(session_id(session), deadline);
          },
          nb::arg("session"), nb::arg("timeout"),
          nb::sig("def end_session(self, session: bytes, timeout: float) -> int"));
}

}  // namespace di::py
