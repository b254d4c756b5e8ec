"""The directory's file and copy: transactions, damage, whose it is, and state transfer from one copy to another."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from zenjun.daemon.directory.copy import Copy, Heard, Seen
from zenjun.daemon.directory.store import File, StoreError
from zenjun.proto.service.directory import copying
from zenjun.proto.service.directory.entries import Target
from zenjun.proto.service.directory.messages import ONDISK, Id, Update, encode
from zenjun.proto.service.directory.operations import Remove, Set
from zenjun.proto.service.stateapi import Offer, Snapshot

WHO = (1, 7)
CLIENT = "0123456789abcdef"


def copy_at(folder: Path, station: int = 1, cluster: str = "c") -> Copy:
    return Copy(File(folder, cluster, station))


def update(counter: int, *operations: Set | Remove, flags: int = 0) -> bytes:
    return encode(Update(Id(CLIENT, counter), ("operator", "user:root"), operations, flags))


def set_name(name: str, port: int = 1) -> Set:
    return Set(name, (Target(f"tcp://10.0.0.1:{port}"),))


def filled(folder: Path, count: int = 100) -> Copy:
    copy = copy_at(folder)
    copy.apply([Seen((1, 1, 0), (WHO,), (WHO,))])
    copy.apply([Heard((k + 2, 1, 0), WHO, update(k, set_name(f"n{k}"))) for k in range(count)])
    return copy


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

    def full(durable: bool) -> None:
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
