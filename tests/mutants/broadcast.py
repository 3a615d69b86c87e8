"""Mutants of weights that go from node to node."""

from __future__ import annotations

from mutants.mutant import Mutant

TALK = "tests/server/test_conversation.py"
TRANSFER = "tests/broadcast/test_transfer.py"
CHAIN_TESTS = "tests/broadcast/test_chain.py"
GROUP_TESTS = "tests/cluster/test_groups.py"

MUTANTS = [
    Mutant(
        "two-members-wait-for-each-other",
        "chain",
        "src/di_store/broadcast/transfer.py::Transfer.heard",
        "if have <= self.have and not (source is self._sources[0] and source.before):",
        "if False:",
        (f"{TRANSFER}::test_sources_are_tried_in_order",),
    ),
    Mutant(
        "silent-sources-are-kept",
        "chain",
        "src/di_store/broadcast/transfer.py::Transfer.tired",
        "now - self._heard >= SILENT_SECONDS",
        "False",
        (f"{TRANSFER}::test_one_member_that_fails_delays_the_others_by_two_seconds",),
    ),
    Mutant(
        "any-number-of-children",
        "chain",
        "src/di_store/broadcast/children.py::Children.admit",
        "len(others) >= MAX_CHILDREN",
        "False",
        (f"{TRANSFER}::test_hanging_children_do_not_count_as_children",),
    ),
    Mutant(
        "stopped-members-take-all-places",
        "chain",
        "src/di_store/broadcast/announcement.py::Announcement.due",
        "if member in self.doubtful and",
        "if False and",
        (f"{TRANSFER}::test_hanging_members_leave_room_for_others",),
    ),
    Mutant(
        "old-epochs-are-accepted",
        "chain",
        "src/di_store/broadcast/chain.py::Chain.accept.change",
        "if note.epoch < known.epoch:",
        "if False:",
        (f"{CHAIN_TESTS}::test_an_old_publisher_is_refused",),
    ),
    Mutant(
        "every-newer-version-abandons",
        "chain",
        "src/di_store/broadcast/requested.py::Requested.replaced",
        "return not self._must_finish or idle > STUCK_SECONDS",
        "return True",
        (f"{TRANSFER}::test_the_newest_version_is_fetched",),
    ),
    Mutant(
        "offers-wait-for-nobody",
        "chain",
        "src/di_store/broadcast/offer.py::Offer.waits",
        "return max(0.0, self._told_at + OFFER_SECONDS - now)",
        "return 0.0",
        (f"{TRANSFER}::test_a_version_is_kept_for_members_that_were_told",),
    ),
    Mutant(
        "two-threads-send-on-one-connection",
        "chain",
        "src/di_store/server/conversation.py::Conversation.take_over",
        "            self._working = False\n        return self.connection",
        "            self._working = self._working\n        return self.connection",
        (f"{CHAIN_TESTS}::test_no_other_message_is_sent_between_pieces",),
    ),
    Mutant(
        "two-threads-send-beside-a-copy",
        "remote",
        "src/di_store/server/copies.py::_copy_payload",
        "talk.take_over()  # the client reads",
        "talk.warned()  # the client reads",
        (f"{TALK}::test_no_other_message_is_sent_within_a_payload",),
    ),
    Mutant(
        "another-version-of-that-number-is-served",
        "chain",
        "src/di_store/broadcast/chain.py::Chain.holding",
        "(found[0].size, found[0].check) != (size, check)",
        "False",
        (f"{CHAIN_TESTS}::test_a_source_with_other_bytes_of_a_version_is_not_used",),
    ),
    Mutant(
        "what-came-is-not-checked-as-a-whole",
        "chain",
        "src/di_store/broadcast/pulling.py::VersionPull._fetched",
        "if self._check == self._note.check:",
        "if True:",
        (f"{CHAIN_TESTS}::test_bytes_with_a_wrong_checksum_are_not_published",),
    ),
    Mutant(
        "a-list-forgets-who-joined-meanwhile",
        "chain",
        "src/di_store/broadcast/record.py::Known.joined_since",
        "self.joined[len(self.joined) - later :] if later < len(self.joined) else self.joined",
        "[]",
        (f"{CHAIN_TESTS}::test_a_new_member_missing_in_an_old_list_is_told",),
    ),
    Mutant(
        "a-first-version-is-refused",
        "chain",
        "src/di_store/cluster/groups.py::GroupWeights.publish",
        "if name in self._claims or deadline.left == 0:",
        "if True:",
        (f"{GROUP_TESTS}::test_concurrent_publishers_get_consistent_versions",),
    ),
    Mutant(
        "a-name-is-of-two-groups",
        "chain",
        "src/di_store/cluster/groups.py::_check_of_group",
        "if owner.group != group:",
        "if False:",
        (f"{GROUP_TESTS}::test_a_name_stays_in_its_group",),
    ),
    Mutant(
        "members-publish-for-themselves",
        "chain",
        "src/di_store/cluster/groups.py::GroupWeights.check_alone",
        "if isinstance(name, str) and self._record.known(name) != Known():",
        "if False:",
        (f"{GROUP_TESTS}::test_a_name_stays_in_its_group",),
    ),
]
