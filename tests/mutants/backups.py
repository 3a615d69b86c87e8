"""Mutants of what lies on the disks of other nodes."""

from __future__ import annotations

from mutants.mutant import Mutant

TESTS = "tests/cluster/test_backups.py"
TAKEN = "tests/cluster/test_taken_over.py"

MUTANTS = [
    Mutant(
        "sync-returns-without-the-other-node",
        "backups",
        "src/di_store/cluster/backups.py::Backups._send_all",
        "for node in nodes:",
        "for node in nodes[:0]:",
        (f"{TESTS}::test_synced_rows_survive_their_nodes",),
    ),
    Mutant(
        "a-node-says-that-it-is-served-before-it-has-the-tables",
        "backups",
        "src/di_store/cli/serve.py::serve",
        "if rejoin is not None:  # who",
        "if False:  # who",
        (f"{TESTS}::test_synced_rows_survive_their_nodes",),
    ),
    Mutant(
        "sync-returns-though-another-node-has-the-table",
        "backups",
        "src/di_store/cluster/backups.py::Backups._check_own",
        "if lost := taken_over(self._session) - self._lost:",
        "if lost := set[str]():",
        (f"{TAKEN}::test_sync_raises_if_another_node_has_the_table",),
    ),
    Mutant(
        "a-table-that-was-taken-over-is-used-on",
        "backups",
        "native/replay/table_core.h::require_not_taken_over",
        "if (core.header.finished == kTakenOver)",
        "if (false)",
        (f"{TAKEN}::test_a_resumed_node_gives_up_tables_taken_over_by_another",),
    ),
    Mutant(
        "nobody-asks-for-a-node-that-is-not-served",
        "backups",
        "src/di_store/cluster/taken_over.py::Watch.look",
        "if _unasked(arena) > UNASKED_SECONDS:",
        "if False:",
        (f"{TAKEN}::test_programs_of_a_node_that_is_not_served_are_told",),
    ),
    Mutant(
        "outdated-rows-are-read-on",
        "backups",
        "src/di_store/cluster/taken_over.py::Watch.look",
        "self._session.end_some(why_outdated)",
        "pass",
        (f"{TAKEN}::test_programs_of_a_node_that_is_not_served_are_told",),
    ),
    Mutant(
        "backups-keep-files-that-have-changed",
        "backups",
        "src/di_store/server/backups.py::_taken_over",
        " or last[1].files.get(name) != coming.files[name]",
        " or name not in last[1].files",
        (f"{TESTS}::test_only_changed_files_are_sent_again",),
    ),
    Mutant(
        "backups-write-anywhere",
        "backups",
        "src/di_store/client/backup.py::is_file",
        "name in (MANIFEST, NAME) or FILE.fullmatch(name) is not None",
        "bool(name)",
        (f"{TESTS}::test_invalid_backup_calls_are_refused",),
    ),
    Mutant(
        "newer-tables-are-replaced-by-a-backup",
        "backups",
        "src/di_store/cluster/rejoining.py::fetch",
        "os.path.exists(folder.at(MANIFEST))",
        "False",
        (f"{TESTS}::test_only_lost_nodes_can_be_taken_over",),
    ),
    Mutant(
        "tables-that-agents-make-are-not-written",
        "backups",
        "src/di_store/checkpoint/store/durable.py::made",
        'settings.durability == "disk"',
        "False",
        (f"{TESTS}::test_a_durable_table_made_by_a_client_is_backed_up",),
    ),
    Mutant(
        "a-node-that-is-not-listed-is-taken-over",
        "backups",
        "src/di_store/cluster/rejoining.py::_newest",
        "if _answers(sessions, lost):",
        "if _answers(sessions, lost) and lost.address in [each.address for _, each in found]:",
        ("tests/cluster/test_backups.py::test_only_lost_nodes_can_be_taken_over",),
    ),
]
