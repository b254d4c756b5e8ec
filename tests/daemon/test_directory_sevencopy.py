"""The copy under ``update = "seven"``: what is kept counts after the end of all, once, and only on the state that it changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from zenjun.daemon.directory.sevencopy import SevenCopy, base_of, decode_many, encode_left, encode_many
from zenjun.daemon.directory.store import File
from zenjun.proto.service.directory import copying
from zenjun.proto.service.directory.entries import NOWHERE, Place, Target, Who
from zenjun.proto.service.directory.messages import Id, Update, encode
from zenjun.proto.service.directory.operations import Register, Set
from zenjun.proto.service.directory.seventypes import Commit, Keep
from zenjun.proto.service.directory.sevenwire import Asking

from ..rules import rule

ONE: Who = (1, 7)
TWO: Who = (2, 9)
START: Place = (1 << 32, 1, 5)


def update(k: int, name: str) -> bytes:
    return encode(Update(Id("0123456789abcdef", k), ("operator", "user:root"), (Set(name, (Target(f"tcp://10.0.0.{k}:1"),)),)))


def keep(base: Place, place: Place, data: bytes) -> Keep:
    return Keep(Asking(TWO, START, 1), TWO, base, place, False, True, data)


@pytest.fixture
def copy(tmp_path: Path) -> SevenCopy:
    made = SevenCopy(File(tmp_path, "c", 1))
    made.start(START, (ONE, TWO))
    return made


def again(copy: SevenCopy, tmp_path: Path) -> SevenCopy:
    """As after the end of the process."""
    copy.rows.close()
    return SevenCopy(File(tmp_path, "c", 1))


def names(copy: SevenCopy) -> list[str]:
    return [entry.name for entry in copy.entries()[1]]


@rule("U6")
def test_what_is_kept_counts_at_a_start(copy: SevenCopy, tmp_path: Path) -> None:
    base = base_of(copy.state.place)
    place = (START[0] + 1, 2, 0)
    copy.keep(keep(base, place, update(1, "db")))
    assert names(copy) == []
    copy = again(copy, tmp_path)
    have = copy.have()
    assert have is not None and have.place == place and names(copy) == [], "it is told, and not answered"
    copy.start((START[0] + 9, 1, 0), (ONE, TWO))
    assert names(copy) == ["db"] and copy.state.place == (START[0] + 9, 1, 0)
    told = copy.have()
    assert told is not None and told.place == copy.state.place, "nothing is kept any more"


@rule("U5", "U6")
def test_a_commit_is_done_once_and_ends_what_is_kept(copy: SevenCopy, tmp_path: Path) -> None:
    base, place = base_of(copy.state.place), (START[0] + 1, 2, 0)
    copy.keep(keep(base, place, update(1, "db")))
    commit = Commit(place, TWO, False, update(1, "db"))
    applied, heard = copy.carry_out(commit)
    assert [c.name for c in applied.results[0].changes] == ["db"] and heard[0].sender == TWO
    assert copy.carry_out(commit)[0].results[0].skipped
    copy = again(copy, tmp_path)
    have = copy.have()
    assert have is not None and have.place == place and names(copy) == ["db"]


def test_an_attempt_commits_all_updates_that_wait(copy: SevenCopy, tmp_path: Path) -> None:
    base, place = base_of(copy.state.place), (START[0] + 1, 2, 0)
    updates = [update(1, "a"), update(2, "b"), update(1, "c"), update(3, "a")]
    data = encode_many(updates)
    assert decode_many(data) == updates and decode_many(encode_many(updates[:1])) == updates[:1]
    for broken in (data[:-1], data + b"x", data[:2], b"", data[:3]):
        assert decode_many(broken) == [broken]
    copy.keep(keep(base, place, data))
    copy = again(copy, tmp_path)
    have = copy.have()
    assert have is not None and have.place == (place[0], 2, 3) and base_of(have.place) == place
    applied, inputs = copy.carry_out(Commit(place, TWO, False, data))
    assert [r.place[2] for r in applied.results] == [0, 1, 2, 3] and [i.place for i in inputs] == [
        r.place for r in applied.results
    ]
    assert [r.repeated for r in applied.results] == [False, False, True, False], "an id counts once"
    assert names(copy) == ["a", "b"] and copy.state.place == (place[0], 2, 3)
    assert all(r.skipped for r in copy.carry_out(Commit(place, TWO, False, data))[0].results)
    copy = again(copy, tmp_path)
    assert names(copy) == ["a", "b"] and copy.have() == have._replace(digest=copying.digest(copy.state)), "nothing is kept"
    copy.rows.close()


def test_what_is_kept_on_another_state_does_not_count(copy: SevenCopy) -> None:
    base = base_of(copy.state.place)
    copy.carry_out(Commit((START[0] + 1, 1, 0), ONE, False, update(1, "a")))
    copy.keep(keep(base, (START[0] + 1, 2, 0), update(2, "b")))
    have = copy.have()
    assert have is not None and have.place == (START[0] + 1, 1, 0)
    copy.keep(keep((START[0] + 1, 1, 0), (START[0] + 2, 2, 0), update(2, "b")))
    copy.drop_kept()
    copy.start((START[0] + 9, 1, 0), (ONE, TWO))
    assert names(copy) == ["a"]


@rule("U9", "U10")
def test_who_enters_is_active_and_who_has_left_takes_its_leases(copy: SevenCopy) -> None:
    clock = START[0]
    copy.carry_out(Commit((clock + 1, 2, 0), TWO, True, b""))
    assert copy.state.active() == [TWO]
    leased = Update(Id("0123456789abcdef", 5), ("operator", "user:root"), (Register("web", "tcp://10.0.0.2:80", 1),))
    copy.carry_out(Commit((clock + 2, 2, 0), TWO, False, encode(leased)))
    assert names(copy) == ["web"]
    copy.carry_out(Commit((clock + 3, 1, 0), ONE, False, encode_left([TWO])))
    assert names(copy) == [] and copy.state.active() == [] and set(copy.state.members) == {ONE}
    copy.carry_out(Commit((clock + 4, 2, 0), TWO, False, encode(leased._replace(id=Id("0123456789abcdef", 6)))))
    assert names(copy) == [], "a process that is not in the group registers nothing"


def test_a_blank_copy_has_nothing(tmp_path: Path) -> None:
    blank = SevenCopy(File(tmp_path, "c", 1))
    assert blank.have() is None and blank.state.place == NOWHERE
