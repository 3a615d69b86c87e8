"""Mutants of what lies between machines: the wire, the door of an agent, its holder."""

from __future__ import annotations

from mutants.mutant import Mutant

FRAMES = "tests/cluster/test_frames.py"
DOOR = "tests/cluster/test_door.py"
HOLDER = "tests/cluster/test_holder.py"

WIRE = [
    Mutant(
        "headers-are-not-verified",
        "wire",
        "_core.crc32c(meta, _core.crc32c(view(head)[: HEADER_BYTES - 4])) != header.check",
        "False",
        (f"{FRAMES}::test_every_flipped_byte_is_refused",),
    ),
    Mutant(
        "payloads-are-not-verified",
        "wire",
        "_core.crc32c(payload) != header.payload_check",
        "False",
        (f"{FRAMES}::test_every_flipped_byte_is_refused",),
    ),
    Mutant(
        "lengths-of-frames-are-not-bounded",
        "wire",
        "meta > MAX_META_BYTES or payload > MAX_PAYLOAD_BYTES",
        "False",
        (f"{FRAMES}::test_lengths_above_the_limits_take_no_memory",),
    ),
    Mutant(
        "messages-of-any-size",
        "wire",
        "total > self.most_bytes or ",
        "",
        (f"{FRAMES}::test_lengths_above_the_limits_take_no_memory",),
    ),
    Mutant(
        "greetings-of-any-size",
        "wire",
        "header.meta_bytes > most",
        "False",
        (f"{FRAMES}::test_before_the_handshake_messages_are_small",),
    ),
    Mutant(
        "offsets-of-the-wire-are-believed",
        "wire",
        "bool(offsets[0] >= 0 and offsets[-1] <= total and (offsets[1:] >= offsets[:-1]).all())",
        "True",
        (f"{FRAMES}::test_a_batch_that_does_not_add_up",),
    ),
]

DOORS = [
    Mutant(
        "proofs-are-not-compared",
        "door",
        "if not hmac.compare_digest(",
        "if False and not hmac.compare_digest(",
        (f"{DOOR}::test_a_wrong_token",),
    ),
    Mutant(
        "challenges-repeat",
        "door",
        "secrets.token_bytes(NONCE_BYTES)",
        "bytes(NONCE_BYTES)",
        (f"{DOOR}::test_a_recorded_handshake_proves_nothing",),
    ),
    Mutant(
        "agents-prove-nothing",
        "door",
        "if not hmac.compare_digest(",
        "if False and not hmac.compare_digest(",
        (f"{DOOR}::test_who_answers_in_place_of_the_agent_must_know_the_token",),
    ),
    Mutant(
        "a-byte-now-and-then-is-enough",
        "door",
        "self.until is not None and time.monotonic() > self.until",
        "False",
        (f"{DOOR}::test_who_takes_too_long_to_prove_itself_is_dropped",),
    ),
    Mutant(
        "who-says-nothing-keeps-its-place",
        "door",
        "len(self._sockets) > MAX_GREETINGS",
        "False",
        (f"{DOOR}::test_clients_that_say_nothing_do_not_keep_others_out",),
    ),
    Mutant(
        "names-that-begin-with-127-are-loopback",
        "door",
        "        try:\n",
        '        if self.host.startswith("127."):\n            return True\n        try:\n',
        (f"{DOOR}::test_addresses",),
    ),
    Mutant(
        "who-comes-back-is-forgotten",
        "door",
        "self._answers or self._mixtures or self._gone",
        "False",
        ("tests/cluster/test_peers.py",),
    ),
    Mutant(
        "agents-are-started-again-and-again",
        "door",
        " if soon else 0.0",
        " if False else 0.0",
        (f"{HOLDER}::test_pauses_grow_and_are_forgotten",),
    ),
]

INTERRUPTED = "tests/cluster/test_interrupted.py"
KILLED = "tests/cluster/test_killed_agents.py"
REMOTE = [
    Mutant(
        "a-call-is-done-if-one-table-has-it",
        "remote",
        "all(seq == last and complete for seq, _, complete in marks.values())",
        "True",
        ("tests/cluster/test_window.py",),
    ),
    Mutant(
        "calls-that-were-given-up-are-made",
        "remote",
        "        if self._poll.poll(0):\n            raise Cancelled\n",
        "",
        (f"{KILLED}::test_a_stopped_agent_holds_no_call_beyond_its_deadline",),
    ),
    Mutant(
        "calls-that-are-done-are-sent-again",
        "remote",
        "seq < last or (seq == last and whole)",
        "False",
        (f"{KILLED}::test_rows_come_exactly_once",),
    ),
    Mutant(
        "a-cut-lane-goes-on-in-mid-episode",
        "remote",
        "cut: Array = self._cut[call.which]",
        "cut: Array = self._cut[call.which] & False",
        (f"{KILLED}::test_rows_come_exactly_once",),
    ),
    Mutant(
        "an-interrupted-send-goes-on",
        "remote",
        "                self.torn = True\n                self.hang_up()\n",
        "",
        (INTERRUPTED,),
    ),
]

MUTANTS = [*WIRE, *DOORS, *REMOTE]
