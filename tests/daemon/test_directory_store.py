"""The directory's file and copy: transactions, damage, whose it is, and state transfer from one copy to another."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from zenjun.daemon.directory import store
from zenjun.daemon.directory.copy import Copy, Heard, Seen
from zenjun.daemon.directory.store import File, Rows, StoreError
from zenjun.proto.service.directory import copying
from zenjun.proto.service.directory.entries import Entry, Target, entry_row
from zenjun.proto.service.directory.messages import ONDISK, Id, OnDisk, Update, encode
from zenjun.proto.service.directory.operations import (
    Alias,
    Drop,
    Operation,
    Out,
    Register,
    Remove,
    Set,
    SetZone,
    Switch,
    Take,
)
from zenjun.proto.service.directory.state import State
from zenjun.proto.service.directory.store import Table
from zenjun.proto.service.stateapi import Offer, Snapshot

WHO = (1, 7)
CLIENT = "0123456789abcdef"


def copy_at(folder: Path, station: int = 1, cluster: str = "c") -> Copy:
    return Copy(File(folder, cluster, station))


def update(counter: int, *operations: Operation, flags: int = 0) -> bytes:
    return encode(Update(Id(CLIENT, counter), ("operator", "user:root"), operations, flags))


def set_name(name: str, port: int = 1) -> Set:
    return Set(name, (Target(f"tcp://10.0.0.1:{port}"),))


def filled(folder: Path, count: int = 100) -> Copy:
    copy = copy_at(folder)
    copy.apply([Seen((1, 1, 0), (WHO,), (WHO,))])
    copy.apply([Heard((k + 2, 1, 0), WHO, update(k, set_name(f"n{k}"))) for k in range(count)])
    return copy


def filled_row(port: int) -> bytes:
    """The row of n1 as ``filled`` has made it."""
    target = Target(f"tcp://10.0.0.1:{port}")
    return entry_row(Entry("n1", "user:root", (3, 1, 0), targets=(target,)))


def close(*copies: Copy) -> None:
    for copy in copies:
        copy.rows.close()


def restored(source: Copy, target: Copy, snapshot: Snapshot) -> bytes | None:
    """Carry a snapshot over; the digest of what came."""
    assert snapshot.digest == copying.digest(source.state)
    offer = Offer(source.state.place, WHO, snapshot.delta, snapshot.digest, -1, -1)
    building = target.restore(offer)
    for key, data in snapshot.chunks:
        building.chunk(key, data)
    digest = building.end()
    if digest == snapshot.digest:
        building.commit(offer)
    else:
        building.abort()
    assert snapshot.close is not None
    snapshot.close()
    return digest


def test_a_batch_is_one_transaction_and_is_there_after_a_restart(tmp_path: Path) -> None:
    copy = filled(tmp_path)
    applied = copy.apply([Heard((200, 1, 0), WHO, update(200, set_name("last"), flags=ONDISK))])
    assert applied.durable and applied.facts.names == 101
    digest = copying.digest(copy.state)
    close(copy)
    again = copy_at(tmp_path)
    assert copying.digest(again.state) == digest and again.state.place == (200, 1, 0)
    skipped = again.apply([Heard((200, 1, 0), WHO, update(200, set_name("last"))), Heard((3, 1, 0), WHO, b"old")])
    assert all(r.skipped for r in skipped.results), "nothing is applied twice"
    close(again)


def test_a_transaction_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = filled(tmp_path)
    digest, place = copying.digest(copy.state), copy.state.place

    def full() -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(copy.rows, "commit", full)
    with pytest.raises(sqlite3.OperationalError):
        copy.apply([Heard((500, 1, 0), WHO, update(500, set_name("lost")))])
    assert (copying.digest(copy.state), copy.state.place) == (digest, place)
    assert copy.state.entry("lost") is None
    monkeypatch.undo()
    copy.apply([Heard((500, 1, 0), WHO, update(500, set_name("found")))])
    assert copy.state.entry("found") is not None
    close(copy)


def test_rows_of_a_transaction_are_read_in_it(tmp_path: Path) -> None:
    """A transaction's rows are kept for its end; each way of reading knows them all the same."""
    copy = filled(tmp_path, 10)
    rows = copy.rows
    rows.begin()
    rows.put(Table.OUT, "b", b"1", (900, 1, 0))
    rows.put(Table.OUT, "a", b"0", (900, 1, 0))
    rows.delete(Table.ENTRY, "n3")
    assert rows.get(Table.OUT, "b") == b"1" and rows.get(Table.ENTRY, "n3") is None and rows.get(Table.ENTRY, "n4") is not None
    assert [key for key, _ in rows.scan(Table.OUT, "", "~")] == ["a", "b"]
    rows.put(Table.OUT, "c", b"2", (900, 1, 0))
    assert rows.count(Table.OUT) == 3 and rows.count(Table.ENTRY) == 9
    assert "n3" not in [key for key, _ in rows.scan(Table.ENTRY, "", "~")]
    rows.put(Table.OUT, "c", b"3", (901, 1, 0))
    rows.delete(Table.OUT, "b")
    rows.commit()
    with closing(copy.file.reader().connection) as other:
        assert Rows(other).get(Table.OUT, "c") == b"3" and Rows(other).count(Table.OUT) == 2
    rows.begin()
    rows.delete(Table.OUT, "c")
    rows.roll_back()
    assert rows.get(Table.OUT, "c") == b"3"
    close(copy)


def test_a_transaction_keeps_a_bounded_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "KEPT_MAX", 10)
    copy = filled(tmp_path, 1)
    copy.rows.begin()
    for number in range(25):
        copy.rows.put(Table.OUT, f"{number:02}", b"0", (900, 1, 0))
        assert len(copy.rows._batch.get(Table.OUT, ())) < 10
    assert copy.rows.count(Table.OUT) == 25
    copy.rows.roll_back()
    close(copy)


def test_what_is_written_later_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way of reading knows the rows that SQLite has not got, before and while it gets them; another connection does not."""
    copy = filled(tmp_path, 5)
    rows = copy.rows
    before = filled_row(1)

    def apply(clock: int, *operations: Operation) -> None:
        (result,) = copy.apply([Heard((clock, 1, 0), WHO, update(clock, *operations))], later=True).results
        assert result.outcome is not None and not result.outcome.code

    apply(600, set_name("n1", 9), Remove("n2"), set_name("n10"))
    rows.take()
    apply(601, set_name("n3", 9), Remove("n10"), set_name("n11"))
    names = ["n0", "n1", "n11", "n3", "n4"]
    with closing(copy.file.reader().connection) as other:

        def look() -> tuple[list[str], bytes | None, bytes | None]:
            """The names in SQLite; the row of n1 there, and as it is."""
            assert [name for name, _ in rows.scan(Table.ENTRY, "", "~")] == names
            assert [e.name for e in copy.entries()[1]] == names
            reader = Rows(other)
            row = rows.settled(Table.ENTRY, "n1", reader)
            assert row == rows.get(Table.ENTRY, "n1") and rows.settled(Table.ENTRY, "n10", reader) is None
            return [name for name, _ in reader.scan(Table.ENTRY, "", "~")], reader.get(Table.ENTRY, "n1"), row

        stored, old, new = look()
        assert stored == ["n0", "n1", "n2", "n3", "n4"] and old == before != new
        copy.write(rows, durable=False)
        rows.written_out()
        stored, old, again = look()
        assert stored == ["n0", "n1", "n10", "n3", "n4"] and old == new == again
        assert rows.pending
        monkeypatch.setattr(copy.state, "save", lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            apply(602, Remove("n0"))
        monkeypatch.undo()
        look()
        rows.flush()
        assert look()[0] == names and not rows.pending
    close(copy)


def test_the_log_begins_anew_when_its_pages_are_carried_over(tmp_path: Path) -> None:
    """It grows while somebody reads what was before, and not for ever."""
    copy = filled(tmp_path, 200)
    frozen = copy.file.frozen()
    for number in range(300):
        copy.apply([Heard((1000 + number, 1, 0), WHO, update(1000 + number, set_name("n1", number + 1)))])
    log = tmp_path / "directory.db-wal"
    grown = log.stat().st_size
    copy.file.carry_over()
    assert frozen.get(Table.ENTRY, "n1") == filled_row(1), "who reads goes on reading what was"
    frozen.close()
    copy.file.carry_over()
    for number in range(300):
        copy.apply([Heard((2000 + number, 1, 0), WHO, update(2000 + number, set_name("n1", number + 1)))])
    copy.file.sync()
    assert log.stat().st_size <= grown * 1.2
    place, digest = copy.state.place, copying.digest(copy.state)
    close(copy)
    again = copy_at(tmp_path)
    assert (again.state.place, copying.digest(again.state)) == (place, digest)
    close(again)


def test_what_changes_no_row_is_written_with_the_next_row(tmp_path: Path) -> None:
    """It may come again after a crash, and does nothing; who is given the state gets its place all the same."""
    copy = filled(tmp_path, 3)
    place, digest = copy.state.place, copying.digest(copy.state)
    copy.apply([Heard((900, 2, 0), (2, 1), encode(OnDisk(place)))])
    assert copy.state.place == (900, 2, 0) and copy.facts().place == (900, 2, 0)
    with closing(copy.file.reader().connection) as other:
        assert State(Rows(other)).place == place, "not written yet"
    snapshot = copy.snapshot((900, 2, 0), None)
    assert snapshot.digest == copying.digest(copy.state) and snapshot.close is not None
    snapshot.close()
    with closing(copy.file.reader().connection) as other:
        assert State(Rows(other)).place == (900, 2, 0)
    copy.apply([Heard((901, 2, 0), (2, 1), encode(OnDisk(place)))])
    close(copy)
    again = copy_at(tmp_path)
    assert again.state.place == (900, 2, 0)
    repeated = again.apply([Heard((901, 2, 0), (2, 1), encode(OnDisk(place)))])
    assert not repeated.results[0].skipped and copying.digest(again.state) == digest
    close(again)


def test_damage_is_found_and_moved_away(tmp_path: Path) -> None:
    copy = filled(tmp_path)
    close(copy)
    with sqlite3.connect(tmp_path / "directory.db") as rows:
        rows.execute("UPDATE rows SET row = CAST(replace(row, '10.0.0.1', '10.0.0.2') AS BLOB) WHERE key = 'n7'")
    rows.close()
    file = File(tmp_path, "c", 1)
    fresh = Copy(file)
    assert file.moved.endswith("directory.db.bad-1") and "sums" in file.why
    assert fresh.have() is None, "blank"
    close(fresh)
    (tmp_path / "directory.db").write_bytes(b"no database at all" * 1000)
    for leftover in tmp_path.glob("directory.db-*"):
        leftover.unlink()
    file = File(tmp_path, "c", 1)
    close(Copy(file))
    assert file.moved.endswith("directory.db.bad-2")


def test_an_entry_under_another_name_is_damage(tmp_path: Path) -> None:
    """Its row has its name, and the sum is that of the rows."""
    close(filled(tmp_path))
    with sqlite3.connect(tmp_path / "directory.db") as rows:
        rows.execute("UPDATE rows SET key = 'n999' WHERE key = 'n7' AND tbl = ?", (int(Table.ENTRY),))
    rows.close()
    file = File(tmp_path, "c", 1)
    close(Copy(file))
    assert file.moved and "n999" in file.why


def test_another_stations_file_is_refused_and_named(tmp_path: Path) -> None:
    close(copy_at(tmp_path, station=1))
    for station, cluster in ((2, "c"), (1, "d")):
        with pytest.raises(StoreError, match=r"station 1 of cluster 'c'.*station \d of cluster '[cd]'"):
            copy_at(tmp_path, station, cluster)


def test_a_whole_state_is_carried_over(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "a"), copy_at(tmp_path / "b", station=2)
    snapshot = source.snapshot(source.state.place, target.have())
    assert not snapshot.delta
    source.apply([Heard((500, 1, 0), WHO, update(500, Remove("n5")))])  # the snapshot is frozen
    frozen = snapshot.digest
    assert isinstance(frozen, bytes)
    offer = Offer((101, 1, 0), WHO, False, frozen, -1, -1)
    building = target.restore(offer)
    for key, data in snapshot.chunks:
        building.chunk(key, data)
        assert snapshot.read is not None and snapshot.read(key) == data
    assert building.end() == frozen
    building.commit(offer)
    assert target.state.entry("n5") is not None and target.state.place == (101, 1, 0)
    close(target)
    again = copy_at(tmp_path / "b", station=2)
    assert copying.digest(again.state) == frozen
    close(source, again)


def test_two_copies_list_the_same_chunks_and_a_change_makes_few_other_ones(tmp_path: Path) -> None:
    source, other = filled(tmp_path / "a", 1500), filled(tmp_path / "b", 1500)
    # Rows of which few make a chunk of too many bytes.
    long = tuple(Target(f"tcp://{'x' * 480}:{number:04}") for number in range(64))
    for copy in (source, other):
        copy.apply([Heard((5000 + k, 1, 0), WHO, update(5000 + k, Set(f"long{k}", long))) for k in range(60)])
    snapshot, same = source.snapshot(source.state.place, None), other.snapshot(other.state.place, None)
    chunks = dict(snapshot.chunks)
    assert chunks == dict(same.chunks) and len(chunks) > 10
    assert (
        max(map(len, chunks.values())) < copying.CHUNK_BYTES + 50_000 and len(max(chunks.values(), key=len)) > copying.CHUNK_BYTES
    )
    assert same.read is not None and all(same.read(key) == data for key, data in reversed(chunks.items()))
    with pytest.raises(KeyError):
        same.read(b"none.0")
    other.apply([Heard((6000, 1, 0), WHO, update(6000, set_name("n700", 9)))])
    later = other.snapshot(other.state.place, None)
    after = dict(later.chunks)
    assert sum(after.get(key) != data for key, data in chunks.items()) <= 3, "that of the row, of the outcome, and the place"
    for each in (snapshot, same, later):
        assert each.close is not None
        each.close()
    close(source, other)


def test_chunks_of_an_earlier_listing_take_nothing_with_them(tmp_path: Path) -> None:
    """A donor goes, and the next one lists a later state: what of the first one's is not listed is dropped."""
    source, target = filled(tmp_path / "a", 600), copy_at(tmp_path / "b", station=2)
    first = dict(source.snapshot(source.state.place, None).chunks)
    source.apply([Heard((7000 + k, 1, 0), WHO, update(7000 + k, Remove(f"n{k}"), set_name(f"m{k}"))) for k in range(0, 600, 7)])
    snapshot = source.snapshot(source.state.place, None)
    second = dict(snapshot.chunks)
    assert isinstance(snapshot.digest, bytes)
    offer = Offer(source.state.place, WHO, False, snapshot.digest, -1, -1)
    building = target.restore(offer)
    for key, data in first.items():
        building.chunk(key, data)
    for key, data in second.items():
        if first.get(key) != data:
            building.chunk(key, data)
    for key in first.keys() - second.keys():
        building.drop(key)
    assert building.end() == snapshot.digest
    building.commit(offer)
    assert (target.state.counts, target.state.outcomes) == (source.state.counts, source.state.outcomes)
    close(target)
    again = copy_at(tmp_path / "b", station=2)
    assert not again.file.moved and copying.digest(again.state) == snapshot.digest
    close(source, again)


def test_leases_and_timers_come_with_a_full_copy(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "a", 300), copy_at(tmp_path / "b", station=2)
    operations: list[Operation] = [
        Register("lease", "tcp://10.0.0.2:1", 5),
        Register("alone", "tcp://10.0.0.2:1", 6, exclusive=True),
    ]
    operations += [Register("alone", "tcp://10.0.0.2:2", 7, exclusive=True), Out("tcp://10.0.0.3:1", 99), Take("n1")]
    operations += [Switch("n2", ("tcp://10.0.0.9:1",), 77), Alias("other", "n3"), SetZone("plant", writers=("*",))]
    operations += [Set("p", meta=(("k", 'a"\\\u00e9'),), zone="plant"), Drop("n4", ("tcp://10.0.0.1:1",))]
    outcomes = source.apply([Heard((900 + k, 1, 0), WHO, update(900 + k, op)) for k, op in enumerate(operations)]).results
    assert all(r.outcome is not None and not r.outcome.code for r in outcomes), outcomes
    restored(source, target, source.snapshot(source.state.place, None))

    def made(copy: Copy) -> list[tuple[str, bytes]]:
        return [row for table in (Table.LEASE, Table.TIMER) for row in copy.rows.scan(table, "", "~")]

    assert made(target) == made(source) and len(made(source)) == 5
    for name in ("counts", "leases", "outs", "outcomes", "members", "zones"):
        assert getattr(target.state, name) == getattr(source.state, name), name
    assert target.state.next_due() == 77
    close(source, target)


def test_a_file_of_format_1_is_taken_over(tmp_path: Path) -> None:
    source, other = filled(tmp_path / "a", 500), filled(tmp_path / "b", 500)
    close(source)
    with closing(sqlite3.connect(tmp_path / "a" / "directory.db")) as rows, rows:
        rows.executescript(
            """DROP INDEX rows_changed; DROP INDEX rows_first; UPDATE rows SET bucket = 7 WHERE bucket >= 0;
               CREATE INDEX rows_place ON rows (place); CREATE INDEX rows_bucket ON rows (bucket); PRAGMA user_version = 1;"""
        )
    again = copy_at(tmp_path / "a")
    assert not again.file.moved and copying.digest(again.state) == copying.digest(other.state)
    place = again.state.place
    assert dict(again.snapshot(place, None).chunks) == dict(other.snapshot(place, None).chunks)
    close(again, other)
    close(copy_at(tmp_path / "a"))


def test_a_delta_carries_what_has_changed(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "a"), copy_at(tmp_path / "b", station=2)
    restored(source, target, source.snapshot(source.state.place, None))
    source.apply([Heard((500, 1, 0), WHO, update(500, Remove("n5"), set_name("n6", 9), set_name("new")))])
    snapshot = source.snapshot(source.state.place, target.have())
    assert snapshot.delta
    assert restored(source, target, snapshot) == copying.digest(source.state) == copying.digest(target.state)
    assert target.state.entry("n5") is None and target.state.entry("new") is not None
    close(source, target)


def test_a_delta_onto_another_past_is_found_and_dropped(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "a"), copy_at(tmp_path / "b", station=2)
    restored(source, target, source.snapshot(source.state.place, None))
    have = target.have()
    target.apply([Heard((400, 1, 0), WHO, update(400, set_name("mine-alone")))])
    before = copying.digest(target.state)
    source.apply([Heard((500, 1, 0), WHO, update(500, set_name("new")))])
    snapshot = source.snapshot(source.state.place, have)
    assert snapshot.delta and restored(source, target, snapshot) != copying.digest(source.state)
    assert copying.digest(target.state) == before
    close(source, target)
