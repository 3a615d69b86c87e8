"""Marks of remote writers' sessions: who claims them, what they say, and when they end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import numpy as np
import pytest
from sessions import SCHEMA, SessionWriter, items_by_call, marks_of, rows_of

import di_store
from di_store import _core

PAGE = 4096


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    """A small store, in which nothing is found wrong at the end."""
    with di_store.open(memory="32MiB") as made:
        yield made
        assert made.check() == []


@pytest.fixture
def session() -> bytes:
    """The uuid of a remote writer."""
    return uuid.uuid4().bytes


def steps(store: di_store.Store, name: str = "t", **options: object) -> di_store.Table:
    """A table of single rows."""
    return store.create_table(name, **{"capacity": 5_000, "schema": SCHEMA, **options})  # type: ignore[arg-type]


def fixed(store: di_store.Store) -> int:
    """Bytes of the store's headers and tables of fixed size."""
    return int(store._backend.session.arena.stats()["fixed"])


def test_local_writers_have_no_marks(store: di_store.Store, session: bytes) -> None:
    """No page of marks is there before a session needs one; the second session shares it."""
    table = steps(store)
    before = fixed(store)
    with table.writer() as writer:
        writer.append({"call": 1, "at": 0})
    table.extend(rows_of(2, 100))
    assert (marks_of(store, session), fixed(store)) == ({}, before)
    first = SessionWriter(table, session=session)
    second = SessionWriter(table, session=uuid.uuid4().bytes)
    assert fixed(store) == before + PAGE
    assert first.native is not second.native
    for number in range(70):
        SessionWriter(table, session=number.to_bytes(16, "little"))
    assert fixed(store) == before + 2 * PAGE
    assert store.check(repair=True) == []
    assert fixed(store) == before + 2 * PAGE, "a rebuild counts the pages of marks too"


def test_a_mark_records_the_last_completed_call(store: di_store.Store, session: bytes) -> None:
    """Of one item, of many, and of none: that leaves it as it is."""
    table = steps(store)
    writer = SessionWriter(table, session=session)
    assert marks_of(store, session) == {"t": (0, 0, False)}
    writer.native.begin_call(1)
    writer.native.append({"call": 1, "at": 0}, None, None, None, None)
    assert marks_of(store, session) == {"t": (1, 1, True)}
    writer.extend(2, 200)
    assert marks_of(store, session) == {"t": (2, 200, True)}
    writer.extend(9, 64)
    assert marks_of(store, session) == {"t": (9, 64, True)}
    writer.end_episode(10)
    assert marks_of(store, session) == {"t": (9, 64, True)}
    assert items_by_call(table) == {1: 1, 2: 200, 9: 64}


def test_each_table_of_a_stream_has_its_own_mark(store: di_store.Store, session: bytes) -> None:
    """Each table has a mark of its own: items of two rows begin with the second row."""
    one, two = steps(store, "one"), steps(store, "two", view=di_store.Sequence(2, period=1))
    writer = SessionWriter(two, one, session=session)
    writer.extend(1, 1)
    assert marks_of(store, session) == {"one": (1, 1, True), "two": (0, 0, False)}
    writer.extend(2, 130)
    assert marks_of(store, session) == {"one": (2, 130, True), "two": (2, 130, True)}
    writer.end_episode(3)
    writer.extend(4, 1)
    assert marks_of(store, session) == {"one": (4, 1, True), "two": (2, 130, True)}


def test_finish_counts_as_one_call(store: di_store.Store, session: bytes) -> None:
    """The items at the ends of episodes and of streams, as a local writer makes them."""
    view = di_store.Sequence(4, period=3, cross_episodes=True)
    local, remote, plain = (steps(store, name, view=view) for name in ("local", "remote", "plain"))
    with local.writer(lanes=2) as writer:
        for at in range(5):
            writer.append({"call": [at] * 2, "at": [at] * 2})
    native = SessionWriter(plain, remote, session=session, lanes=2).native
    for at in range(5):
        native.begin_call(1 + at)
        native.append({"call": [at] * 2, "at": [at] * 2}, *[None] * 4)
    before = len(remote)
    with pytest.raises(ValueError, match=r"needs begin_call\(seq\)"):
        native.finish()
    native.begin_call(6)
    finished = native.finish()
    assert marks_of(store, session)["remote"] == (6, len(finished[0][0]), True)
    assert len(finished[0][0]) == len(remote) - before > 0
    native.close()
    one, two = (table.peek(table.keys()).data for table in (local, remote))
    assert all(np.array_equal(one[name], two[name]) for name in ("call", "at"))


def test_inserts_of_whole_items_are_marked(store: di_store.Store, session: bytes) -> None:
    """`insert` of the core: rows that are items as they are."""
    table = steps(store)
    writer = SessionWriter(table, session=session).native
    writer.begin_call(1)
    writer.insert(rows_of(1, 100), [(1, 1, 0)], 100, None)
    assert marks_of(store, session) == {"t": (1, 100, True)}
    assert items_by_call(table) == {1: 100}


def test_wrong_call_numbers_are_refused(store: di_store.Store, session: bytes) -> None:
    """Each call has a number, and numbers rise; what is refused has used none."""
    table = steps(store)
    writer = SessionWriter(table, session=session)
    with pytest.raises(ValueError, match=r"needs begin_call\(seq\)"):
        writer.native.append({"call": 1, "at": 0}, *[None] * 4)
    for wrong in (0, 1 << 43):
        with pytest.raises(ValueError, match=f"seq={wrong}"):
            writer.native.begin_call(wrong)
    writer.extend(5, 3)
    with pytest.raises(ValueError, match=r"needs begin_call\(seq\)"):
        writer.native.end_episode(None, None, False)
    for used in (5, 4):
        with pytest.raises(ValueError, match=rf"seq={used}.*the last was 5"):
            writer.extend(used, 1)
    with pytest.raises(ValueError, match="capacity"):
        writer.extend(6, 5_001)
    writer.extend(6, 1)
    assert marks_of(store, session) == {"t": (6, 1, True)}
    assert items_by_call(table) == {5: 3, 6: 1}


def test_a_writer_without_a_session_has_no_numbers(store: di_store.Store) -> None:
    """And a session is named by 16 bytes."""
    table = steps(store)
    with table.writer() as writer, pytest.raises(ValueError, match="writes for no session"):
        writer._backend.stream.native.begin_call(1)  # type: ignore[union-attr]
    for wrong, kind in ((b"short", ValueError), ("x" * 16, TypeError)):
        with pytest.raises(kind, match="session"):
            SessionWriter(table, session=wrong)  # type: ignore[arg-type]
        with pytest.raises(kind, match="session"):
            marks_of(store, wrong)  # type: ignore[arg-type]


def test_a_blocked_call_keeps_its_number(store: di_store.Store, session: bytes) -> None:
    """While the limiter does not let it pass, it has used none."""
    table = steps(store, limiter=di_store.Queue(4))
    writer = SessionWriter(table, session=session)
    writer.extend(1, 4)
    for _ in range(3):
        assert type(writer.extend(2, 1)) is _core.Blocked
    assert marks_of(store, session) == {"t": (1, 4, True)}
    table.sample(1)
    assert type(writer.extend(2, 1)) is list
    assert marks_of(store, session) == {"t": (2, 1, True)}


def test_the_next_writer_of_a_session_takes_over(store: di_store.Store, session: bytes) -> None:
    """It finds how far the calls have come; the one before can write no more."""
    table = steps(store)
    first = SessionWriter(table, session=session)
    first.extend(3, 10)
    second = SessionWriter(table, session=session)
    with pytest.raises(di_store.WriterClosed, match="taken over"):
        first.extend(4, 1)
    with pytest.raises(ValueError, match="the last was 3"):
        second.extend(3, 1)
    second.extend(4, 2)
    first.native.close()
    second.extend(5, 1)
    assert marks_of(store, session) == {"t": (5, 1, True)}
    assert items_by_call(table) == {3: 10, 4: 2, 5: 1}
    second.native.close()
    assert marks_of(store, session) == {"t": (5, 1, True)}, "they stay when the writer closes"


def test_an_ended_session_has_no_marks(store: di_store.Store, session: bytes) -> None:
    """Its writer can write no more, and the next one begins anew. Other sessions keep theirs."""
    one, two = steps(store, "one"), steps(store, "two")
    writer = SessionWriter(one, two, session=session)
    other = SessionWriter(one, session=b"o" * 16)
    other.extend(7, 1)
    writer.extend(1, 5)
    assert store._backend.session.arena.end_session(session, 10) == 2
    assert store._backend.session.arena.end_session(session, 10) == 0
    assert marks_of(store, session) == {}
    with pytest.raises(di_store.WriterClosed, match="has ended"):
        writer.extend(2, 1)
    assert marks_of(store, b"o" * 16) == {"one": (7, 1, True)}
    anew = SessionWriter(one, two, session=session)
    assert marks_of(store, session) == {"one": (0, 0, False), "two": (0, 0, False)}
    anew.extend(1, 1)
    writer.native.close()
    assert marks_of(store, session) == {"one": (1, 1, True), "two": (1, 1, True)}


def test_a_dropped_tables_mark_is_not_believed(store: di_store.Store, session: bytes) -> None:
    """Nor is it for a table of the same name that comes later, at the same place. Its place is used again."""
    kept, gone = steps(store, "kept"), steps(store, "gone")
    writer = SessionWriter(kept, gone, session=session)
    writer.extend(8, 70)
    before = fixed(store)
    store.drop_table("gone")
    assert marks_of(store, session) == {"kept": (8, 70, True)}
    gone = steps(store, "gone")
    assert marks_of(store, session) == {"kept": (8, 70, True)}
    fresh = SessionWriter(gone, session=session)
    assert marks_of(store, session) == {"kept": (8, 70, True), "gone": (0, 0, False)}
    fresh.extend(1, 1)
    for _ in range(200):
        store.drop_table("gone")
        SessionWriter(steps(store, "gone"), session=session).extend(1, 1)
    assert fixed(store) == before
    assert marks_of(store, session) == {"kept": (8, 70, True), "gone": (1, 1, True)}


def test_reset_keeps_marks(store: di_store.Store, session: bytes) -> None:
    """The calls have inserted their items, which the reset removed: they are not to come again."""
    table = steps(store)
    writer = SessionWriter(table, session=session)
    writer.extend(1, 100)
    table.reset()
    assert len(table) == 0
    assert marks_of(store, session) == {"t": (1, 100, True)}
    writer.extend(2, 1)
    assert marks_of(store, session) == {"t": (2, 1, True)}


def test_evicted_items_were_inserted(store: di_store.Store, session: bytes) -> None:
    """A mark counts what came in, also where the table keeps less."""
    table = steps(store, capacity=100)
    writer = SessionWriter(table, session=session)
    for seq in range(1, 5):
        writer.extend(seq, 100)
        assert marks_of(store, session) == {"t": (seq, 100, True)}
    assert items_by_call(table) == {4: 100}


def test_groups_count_answers(store: di_store.Store, session: bytes) -> None:
    """One removal changes many slots there, so a hold may commit between two items, with the mark."""
    schema = {**SCHEMA, "group": di_store.Spec((), "i8")}
    table = store.create_table("t", capacity=2, view=di_store.Group(200), schema=schema)
    writer = SessionWriter(table, session=session).native
    for seq in range(1, 8):
        rows = {**rows_of(seq, 300), "group": np.arange(300) // 150 + 10 * seq}
        writer.begin_call(seq)
        writer.extend(rows, None, None, None, None, 300)
        assert marks_of(store, session) == {"t": (seq, 300, True)}


@pytest.mark.memory_only
def test_checkpoints_hold_no_marks(store: di_store.Store, session: bytes, tmp_path: object) -> None:
    """A restored store is another one: its writers' sessions begin anew."""
    writer = SessionWriter(steps(store), session=session)
    writer.extend(1, 10)
    store.checkpoint(f"{tmp_path}/saved")
    with di_store.restore(f"{tmp_path}/saved") as restored:
        assert len(restored.table("t")) == 10
        assert marks_of(restored, session) == {}
        assert marks_of(store, session) == {"t": (1, 10, True)}
