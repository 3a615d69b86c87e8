"""Mutants of what lies between machines: the wire, the door of an agent, its holder."""

from __future__ import annotations

from mutants.mutant import Mutant

FRAMES = "tests/cluster/test_frames.py"
CORE = "tests/cluster/test_rows_in_core.py"
DOOR = "tests/cluster/test_door.py"
HOLDER = "tests/cluster/test_holder.py"
PEERS = "tests/cluster/test_peers.py"
DRAWN = "tests/cluster/test_interrupted.py"
DEADLINES = "tests/cluster/test_deadlines.py"
SLOW = "tests/cluster/test_slow_writers.py"
TALK = "tests/cluster/test_conversation.py"
ANEW = "tests/cluster/test_made_anew.py"

WIRE = [
    Mutant(
        "headers-are-not-verified",
        "wire",
        "check_of(head, meta) != load<u32>(head, kCheckAt)",
        "false",
        (f"{FRAMES}::test_every_flipped_byte_is_refused",),
    ),
    Mutant(
        "payloads-are-not-verified",
        "wire",
        "check != header.payload_check",
        "false",
        (f"{FRAMES}::test_every_flipped_byte_is_refused",),
    ),
    Mutant(
        "lengths-of-frames-are-not-bounded",
        "wire",
        "found.meta_bytes > kMaxMetaBytes || found.payload_bytes > kMaxPayloadBytes",
        "false",
        (f"{FRAMES}::test_lengths_above_the_limits_take_no_memory",),
    ),
    Mutant(
        "messages-of-any-size",
        "wire",
        "total_ > most_bytes_ || ",
        "",
        (f"{FRAMES}::test_lengths_above_the_limits_take_no_memory",),
    ),
    Mutant(
        "greetings-of-any-size",
        "wire",
        "header_.meta_bytes > most",
        "false",
        (f"{FRAMES}::test_before_the_handshake_messages_are_small",),
    ),
    Mutant(
        "offsets-of-the-wire-are-believed",
        "wire",
        "bool(offsets[0] >= 0 and offsets[-1] <= total and (offsets[1:] >= offsets[:-1]).all())",
        "True",
        (f"{FRAMES}::test_a_batch_that_does_not_add_up",),
    ),
    Mutant(
        "rows-of-the-wire-lie-anywhere",
        "wire",
        "if (!product_fits(row_bytes[leaf.column], rows, stride_ - leaf.at)) refuse();",
        "",
        (f"{FRAMES}::test_rows_outside_their_message",),
    ),
    Mutant(
        "rows-of-the-core-lie-behind-their-body",
        "wire",
        "if (left / run.count < stride) return std::nullopt;",
        "",
        (f"{CORE}::test_more_calls_than_the_body_has",),
    ),
    Mutant(
        "rows-of-any-size-are-read-by-the-core",
        "wire",
        "header.body_bytes == 0 || header.body_bytes > kBufferBytes",
        "header.body_bytes == 0",
        (f"{CORE}::test_frames_that_the_core_leaves_alone",),
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
        "(late = os::now_ns() > end)",
        "false",
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
        ("tests/cluster/test_addresses.py::test_addresses",),
    ),
    Mutant(
        "who-comes-back-is-forgotten",
        "door",
        "len(self.answers) or len(self.handles)",
        "False",
        (PEERS,),
    ),
    Mutant(
        "answers-that-may-be-asked-for-are-forgotten",
        "remote",
        "each < last and each not in may_repeat",
        "len(self._known) > 128",
        (f"{PEERS}::test_answers_are_kept_for_as_long_as_they_may_be_asked_for",),
    ),
    Mutant(
        "a-call-that-runs-is-made-again",
        "remote",
        "request not in self._running",
        "True",
        (f"{PEERS}::test_a_call_that_is_still_being_made_is_waited_for",),
    ),
    Mutant(
        "what-a-client-dropped-is-kept",
        "remote",
        "self.handles.let_go(number)",
        "pass",
        (f"{PEERS}::test_what_a_client_drops_is_freed",),
    ),
    Mutant(
        "each-handle-is-a-client",
        "remote",
        "found is None or",
        "True or",
        (f"{PEERS}::test_handles_of_one_process_are_one_client",),
    ),
    Mutant(
        "agents-are-started-again-and-again",
        "door",
        " if soon else 0.0",
        " if False else 0.0",
        (f"{HOLDER}::test_pauses_grow_and_are_forgotten",),
    ),
    Mutant(
        "killed-agents-come-back-late",
        "door",
        " if self._agent.returncode < 0 else ",
        " if False else ",
        (f"{HOLDER}::test_pauses_grow_and_are_forgotten",),
    ),
]

INTERRUPTED = "tests/cluster/test_interrupted_writer.py"
KILLED = "tests/cluster/test_killed_agents.py"
REMOTE = [
    Mutant(
        "a-name-is-enough",
        "remote",
        'identity not in ("", handle_of(found).identity)',
        "False",
        (f"{ANEW}::test_what_was_made_of_the_old_table_under_another_agent",),
    ),
    Mutant(
        "keys-that-left-are-told-once",
        "remote",
        "turn != self._turn",
        "True",
        (f"{DRAWN}::test_keys_whose_answer_was_lost_are_told_again",),
    ),
    Mutant(
        "draws-that-nobody-knows-are-kept",
        "remote",
        "held.source == source and number not in own",
        "False",
        (f"{PEERS}::test_draws_that_a_loader_does_not_name_are_given_back",),
    ),
    Mutant(
        "an-interrupted-delivery-is-forgotten",
        "remote",
        "session.kept[place] = kept",
        "pass",
        (f"{DRAWN}::test_a_batch_stays_for_the_next_call[sample]",),
    ),
    Mutant(
        "a-batch-is-lost-with-its-interrupt",
        "remote",
        "self._interrupted.append((draws, batch, placed))",
        "pass",
        (f"{DRAWN}::test_a_batch_stays_for_the_next_call[loader]",),
    ),
    Mutant(
        "bytes-that-flow-are-silence",
        "remote",
        "max(end, self.flowed)",
        "end",
        (f"{DEADLINES}::test_bytes_that_flow_are_waited_for",),
    ),
    Mutant(
        "who-works-says-nothing",
        "remote",
        "not self._working or ",
        "True or ",
        (f"{DEADLINES}::test_a_batch_that_is_copied_for_long_is_waited_for",),
    ),
    Mutant(
        "a-call-that-is-sent-again-has-all-its-time",
        "remote",
        'min(arguments["timeout"], left)',
        'arguments["timeout"]',
        (f"{DEADLINES}::test_a_call_that_is_sent_again_has_the_time_that_is_left",),
    ),
    Mutant(
        "an-agent-that-was-stopped-gives-a-call-its-time-again",
        "remote",
        "if self.deadline.late():",
        "if False:",
        (f"{DEADLINES}::test_an_agent_that_began_late_holds_no_call_beyond_its_deadline",),
    ),
    Mutant(
        "each-message-puts-the-end-off",
        "remote",
        "self._flows or deadline.late()",
        "True",
        (f"{DEADLINES}::test_what_puts_the_end_off",),
    ),
    Mutant(
        "a-message-that-is-there-is-waited-for",
        "remote",
        "if not self._tls:",
        "if True:",
        ("tests/cluster/test_tls.py::test_a_message_that_has_come_is_not_waited_for",),
    ),
    Mutant(
        "a-copy-that-failed-is-waited-for",
        "remote",
        "_clear_frames(error)",
        "pass",
        ("tests/cluster/test_cluster.py::test_a_copy_that_failed_is_not_waited_for",),
    ),
    Mutant(
        "who-waits-for-a-copy-has-no-time-left",
        "remote",
        "deadline.flowed = time.monotonic()",
        "pass",
        ("tests/cluster/test_cluster.py::test_another_readers_copy_is_waited_for",),
    ),
    Mutant(
        "meta-of-any-size-is-sent",
        "remote",
        "len(meta) > MAX_META_BYTES and len(found) > 1",
        "False",
        (f"{SLOW}::test_priorities_of_many_rows", f"{SLOW}::test_calls_of_many_lanes"),
    ),
    Mutant(
        "bytes-over-tls-are-silence",
        "remote",
        "moved_ns_ = os::now_ns();",
        "",
        (f"{DEADLINES}::test_bytes_that_flow_are_waited_for",),
    ),
    Mutant(
        "who-sends-has-no-deadline",
        "remote",
        "self._until is not None and now > self._until and quiet",
        "False",
        (f"{SLOW}::test_a_row_that_the_agent_does_not_take",),
    ),
    Mutant(
        "others-hear-what-a-writer-has-done",
        "remote",
        " or self.broken is not None, deadline",
        ", deadline",
        (f"{SLOW}::test_a_call_says_nothing_of_a_writer_that_breaks",),
    ),
    Mutant(
        "each-writer-behind-a-call-has-a-second",
        "remote",
        "in deadline.step(2).sooner(CATCH_UP_SECONDS).steps(writers):",
        "in ((each, deadline.sooner(CATCH_UP_SECONDS).step(1, least=1.0)) for each in writers):",
        (f"{SLOW}::test_a_call_behind_many_writers",),
    ),
    Mutant(
        "each-address-has-all-the-time",
        "remote",
        "(until - time.monotonic()) / left",
        "1.0",
        (f"{DEADLINES}::test_addresses_of_a_host_share_the_time",),
    ),
    Mutant(
        "each-dropped-writer-has-a-second-of-its-own",
        "remote",
        "for each, step in Deadline(seconds).steps(those):",
        "for each, step in ((each, Deadline(seconds)) for each in those):",
        (f"{DEADLINES}::test_dropped_writers_share_one_second_at_the_end",),
    ),
    Mutant(
        "waits-end-a-tick-later",
        "remote",
        "(rest < TICK_SECONDS and not self.is_ready(rest))",
        "False",
        (f"{DEADLINES}::test_a_wait_ends_between_two_looks",),
    ),
    Mutant(
        "a-wait-that-begins-late-ends-a-tick-later",
        "remote",
        "not self.is_ready(max(rest, 0.0))",
        "False",
        (f"{DEADLINES}::test_a_read_is_looked_at_before_the_next_tick",),
    ),
    Mutant(
        "calls-wait-for-answers-that-nobody-sends",
        "remote",
        "max(self.timeout, self.tries)",
        "self.timeout + GRACE_SECONDS",
        (f"{DEADLINES}::test_a_call_without_a_connection_has_no_grace",),
    ),
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
    Mutant(
        "interrupted-writers-wait-for-room",
        "remote",
        "Deadline(0.0) if self._pipe.interrupted else deadline",
        "deadline",
        (f"{INTERRUPTED}::test_the_end_after_an_interrupt_does_not_wait_for_room",),
    ),
]

TRANSFER = "tests/cluster/test_transfer.py"
CHAIN_TESTS = "tests/cluster/test_chain.py"
GROUP_TESTS = "tests/cluster/test_groups.py"

CHAIN = [
    Mutant(
        "two-members-wait-for-each-other",
        "chain",
        "if have <= self.have and not (source is self._sources[0] and source.before):",
        "if False:",
        (f"{TRANSFER}::test_the_order_of_sources",),
    ),
    Mutant(
        "silent-sources-are-kept",
        "chain",
        "now - self._heard >= SILENT_SECONDS",
        "False",
        (f"{TRANSFER}::test_one_member_that_fails_delays_the_others_by_two_seconds",),
    ),
    Mutant(
        "any-number-of-children",
        "chain",
        "len(others) >= MAX_CHILDREN",
        "False",
        (f"{TRANSFER}::test_children_are_few_and_those_that_hang_are_not_counted",),
    ),
    Mutant(
        "stopped-members-take-all-places",
        "chain",
        "if member in self.doubtful and",
        "if False and",
        (f"{TRANSFER}::test_members_that_hang_leave_room_for_the_others",),
    ),
    Mutant(
        "old-epochs-are-accepted",
        "chain",
        "if note.epoch < known.epoch:",
        "if False:",
        (f"{CHAIN_TESTS}::test_an_old_publisher_is_refused",),
    ),
    Mutant(
        "every-newer-version-abandons",
        "chain",
        "return not self._must_finish or idle > STUCK_SECONDS",
        "return True",
        (f"{TRANSFER}::test_which_version_is_fetched",),
    ),
    Mutant(
        "offers-wait-for-nobody",
        "chain",
        "return max(0.0, self._told_at + OFFER_SECONDS - now)",
        "return 0.0",
        (f"{TRANSFER}::test_a_version_waits_for_those_who_were_told_of_it",),
    ),
    Mutant(
        "two-threads-send-on-one-connection",
        "chain",
        "            self._working = False\n        return self.connection",
        "            self._working = self._working\n        return self.connection",
        (f"{CHAIN_TESTS}::test_nobody_else_speaks_while_a_version_is_sent",),
    ),
    Mutant(
        "two-threads-send-beside-a-copy",
        "remote",
        "talk.take_over()  # the client reads",
        "talk.warned()  # the client reads",
        (f"{TALK}::test_nobody_else_speaks_while_a_payload_is_sent",),
    ),
    Mutant(
        "another-version-of-that-number-is-served",
        "chain",
        "(found[0].size, found[0].check) != (size, check)",
        "False",
        (f"{CHAIN_TESTS}::test_a_source_with_other_bytes_of_that_number_is_left",),
    ),
    Mutant(
        "what-came-is-not-checked-as-a-whole",
        "chain",
        "if self._check == self._note.check:",
        "if True:",
        (f"{CHAIN_TESTS}::test_bytes_of_another_version_are_not_published",),
    ),
    Mutant(
        "a-list-forgets-who-joined-meanwhile",
        "chain",
        "self.joined[len(self.joined) - later :] if later < len(self.joined) else self.joined",
        "[]",
        (f"{CHAIN_TESTS}::test_who_joins_is_told_though_a_list_of_before_lacks_it",),
    ),
    Mutant(
        "a-first-version-is-refused",
        "chain",
        "if name in self._claims or deadline.left == 0:",
        "if True:",
        (f"{GROUP_TESTS}::test_publishers_that_begin_at_the_same_moment",),
    ),
    Mutant(
        "a-name-is-of-two-groups",
        "chain",
        "if word.group != group:",
        "if False:",
        (f"{GROUP_TESTS}::test_a_name_stays_in_its_group",),
    ),
    Mutant(
        "members-publish-for-themselves",
        "chain",
        "if isinstance(name, str) and self._record.known(name) != Known():",
        "if False:",
        (f"{GROUP_TESTS}::test_a_name_stays_in_its_group",),
    ),
]

MUTANTS = [*WIRE, *DOORS, *REMOTE, *CHAIN]
