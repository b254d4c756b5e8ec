"""One rule at a time, on machines that take one order in step: who is active, who opens, the lock, what programs are told."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from zenjun.proto.service.base import Emit, Source
from zenjun.proto.service.database import messages as m
from zenjun.proto.service.database.machine import Answer, Durability, Failed, Give, Granted, Machine, Reached
from zenjun.proto.service.database.roll import NOTHING, Roll, Sites
from zenjun.proto.service.database.rows import Entry, RowsFailed, Verdict
from zenjun.proto.service.database.scrub import UNREADABLE, Compared, Sum, complained

from ..rules import rule

D = bytes(16)
ALL = Sites(frozenset({1, 2, 3}))


class MemoryRows:
    """A history without rows."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.number = b""
        self.fails = False
        self.is_open = False

    def blank(self) -> bool:
        return not self.entries

    def uuid(self) -> bytes:
        return self.number or D

    def position(self) -> m.Position:
        return self.entries[-1].position

    def create(self, uuid: bytes) -> None:
        self.number = uuid
        self.entries = [Entry(m.Position(0, 0, m.first_digest(uuid)), m.epoch_txid(0), b"")]

    def write(self, entry: Entry) -> Verdict:
        if self.fails:
            raise RowsFailed("disk full")
        self.entries.append(entry)
        return Verdict.DONE

    def highest(self, table: str) -> int | None:
        return None

    def gate(self, is_open: bool) -> None:
        if self.fails:
            raise RowsFailed("disk full")
        self.is_open = is_open

    def version_of(self, txid: m.Txid) -> int | None:
        return next((entry.position.version for entry in self.entries if entry.txid == txid), None)

    def digest_at(self, version: int) -> bytes | None:
        return next((entry.position.digest for entry in self.entries if entry.position.version == version), None)


class Order:
    """Machines that take each place together; what they emit waits until it is delivered."""

    machine_class: type[Machine] = Machine

    def __init__(self, sites: Sites = ALL) -> None:
        self.sites = sites
        self.clock = 1 << 33
        self.machines: dict[Source, Machine] = {}
        self.waiting: list[tuple[Source, bytes]] = []
        self.effects: list[tuple[Source, Any]] = []

    def take(self, source: Source, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Emit):
                self.waiting.append((source, effect.data))
            else:
                self.effects.append((source, effect))

    def view(self, *members: Source, rows: dict[int, MemoryRows] | None = None) -> None:
        """The members from here on; new ones have these rows, or none."""
        self.clock += 1
        make, given = self.machine_class, rows or {}
        self.machines = {
            who: self.machines.get(who) or make(who, self.sites, given.get(who[0]) or MemoryRows()) for who in members
        }
        self.waiting = [(who, data) for who, data in self.waiting if who in members]
        for who, machine in self.machines.items():
            self.take(who, machine.on_view((self.clock, who[0], 65535), frozenset(members)))

    def deliver(self, *kinds: type[Any], at_most: int = 1000) -> None:
        """What waits, in its order: of these kinds, or all."""
        while (
            at_most and (i := next((i for i, (_, data) in enumerate(self.waiting) if self.is_of(data, kinds)), None)) is not None
        ):
            source, data = self.waiting.pop(i)
            self.clock += 1
            at_most -= 1
            for who, machine in list(self.machines.items()):
                self.take(who, machine.on_message((self.clock, source[0], 0), source, data))

    @staticmethod
    def is_of(data: bytes, kinds: tuple[type[Any], ...]) -> bool:
        return not kinds or isinstance(m.decode(data), kinds)

    def take_effects(self, kind: type[Any]) -> list[tuple[Source, Any]]:
        found = [(who, effect) for who, effect in self.effects if isinstance(effect, kind)]
        self.effects = [(who, effect) for who, effect in self.effects if not isinstance(effect, kind)]
        return found

    def give(self) -> None:
        """Carry out what donors have to give."""
        for who, effect in self.take_effects(Give):
            donor, joiner = self.machines[who], self.machines.get(effect.to)
            if joiner is not None and isinstance(donor.rows, MemoryRows) and isinstance(joiner.rows, MemoryRows):
                joiner.rows.entries, joiner.rows.number = list(donor.rows.entries), donor.rows.number
                self.take(effect.to, joiner.restore(donor.give(joiner._kept_from)))

    def write(self, who: Source, number: int, durability: Durability = Durability.MEMORY) -> None:
        machine = self.machines[who]
        shared = machine.shared
        assert shared is not None
        write = m.Write(m.Txid(who[0], 1, who[1], number), shared.epoch, machine.rows.position().version, (), b"")
        self.take(who, machine.submit(write, durability))

    def verdicts(self) -> list[tuple[int, str]]:
        return [(effect.txid.number, effect.verdict.value) for _, effect in self.take_effects(Answer)]


def opened() -> Order:
    order = Order()
    order.view((1, 1), (2, 1), (3, 1))
    order.deliver()
    assert all(machine.is_active for machine in order.machines.values())
    return order


def stand(epoch: int, version: int, digest: bytes = D, disk: m.Disk = m.Disk.COPY) -> m.Stand:
    return m.Stand(1, False, disk, D, m.Position(epoch, version, digest), m.FORMAT, 0)


def winner(**stands: m.Stand | None) -> tuple[m.Position, list[int]] | None:
    """Position and equal sites of an opening."""
    opening = Roll(1, {(int(name[1:]), 1): s for name, s in stands.items()}).opening(ALL)
    return None if opening is None else (opening.position, sorted(station for station, _ in opening.equal))


@rule("Q4")
def test_the_greatest_epoch_wins_then_the_greatest_version() -> None:
    """The example of the design: 3 went on alone in an earlier epoch, and has the greatest version."""
    assert winner(s1=stand(3, 100), s2=stand(3, 98), s3=stand(2, 120)) == ((3, 100, D), [1])
    assert winner(s2=stand(3, 98), s3=stand(2, 120)) == ((3, 98, D), [2])
    other = b"x" * 16
    assert winner(s1=stand(3, 9, other), s2=stand(3, 9), s3=stand(3, 9)) == ((3, 9, D), [2, 3])
    assert winner(s1=stand(3, 9, other), s3=stand(3, 9)) == ((3, 9, other), [1])


@rule("Q2", "Q3")
def test_who_may_have_forgotten_does_not_count() -> None:
    blank = stand(0, 0, disk=m.Disk.BLANK)
    assert winner(s1=stand(3, 100)) is None
    assert winner(s1=blank, s2=stand(3, 100)) is None
    assert winner(s1=stand(0, 0, disk=m.Disk.UNABLE), s2=stand(3, 100)) is None
    assert winner(s1=blank, s2=blank) == (NOTHING, [1, 2])
    assert winner(s1=blank, s2=stand(0, 0, disk=m.Disk.UNABLE), s3=blank) is None
    assert winner(s1=blank, s2=stand(3, 100), s3=stand(3, 99)) == ((3, 100, D), [2])
    assert winner(s1=stand(3, 100)._replace(uuid=b"y" * 16), s2=stand(3, 100)) is None, "another database of this name"


@rule("Q8")
def test_a_database_that_begins_with_a_file() -> None:
    """Blank sites wait for the one that has it, and it waits for them."""
    first, blank = stand(0, 0, b"f" * 16), stand(0, 0, disk=m.Disk.BLANK)
    of_file = ALL._replace(from_file=True)

    def opens(sites: Sites, **stands: m.Stand | None) -> list[int] | None:
        opening = Roll(1, {(int(name[1:]), 1): s for name, s in stands.items()}).opening(sites)
        return None if opening is None else sorted(station for station, _ in opening.equal)

    assert opens(of_file, s1=blank, s2=blank, s3=blank) is None and opens(of_file, s2=first, s3=blank) is None
    assert opens(of_file, s1=blank, s2=first, s3=blank) == [2] == opens(ALL, s1=blank, s2=first, s3=blank)
    assert opens(of_file, s1=blank, s2=first, s3=stand(3, 1)) == [3], "it has been opened before"
    assert opens(of_file, s1=blank, s2=first, s3=stand(0, 0, disk=m.Disk.UNABLE)) is None
    assert opens(of_file, s1=blank, s2=first, s3=stand(0, 0, b"g" * 16)) != [2, 3]


@rule("Q9")
def test_an_operator_opens_it_with_what_there_is() -> None:
    """Two of three disks are lost: nobody opens it, until it is forced; then the others get the state, and it can be written."""
    order = opened()
    order.write((1, 1), 1)
    order.deliver()
    rows = order.machines[3, 1].rows
    position = rows.position()
    order.view()
    order.view((1, 2), (2, 2), (3, 2), rows={3: rows})  # type: ignore[dict-item]
    order.deliver()
    assert not any(machine.shared for machine in order.machines.values())
    forced = order.machines[1, 2].roll.forced(ALL)
    assert forced is not None and forced.position == position and forced.equal == {(3, 2)}
    order.take((1, 2), order.machines[1, 2].force())
    order.deliver()
    order.give()
    order.deliver()
    assert all(machine.is_active and machine.can_write for machine in order.machines.values())
    assert order.machines[1, 2].rows.digest_at(position.version) == position.digest
    order.take((2, 2), order.machines[2, 2].force())
    before = order.machines[1, 2].rows.position()
    order.deliver()
    assert order.machines[1, 2].rows.position() == before, "it is open"


def test_sets_that_suffice_have_a_site_in_common() -> None:
    for sites in (Sites(frozenset(range(1, 5))), Sites(frozenset(range(1, 6)), frozenset({2}), 2)):
        sets = [{s for s in range(1, 6) if n >> s & 1} for n in range(64)]
        enough = [s for s in sets if sites.sufficient(s)]
        assert enough and all(a & b for a in enough for b in enough)


@rule("Q2")
def test_who_may_open_waits_for_the_others_first() -> None:
    order = Order()
    order.view((1, 1), (3, 1))
    order.deliver()
    first = order.machines[1, 1]
    assert not first.is_active and order.machines[3, 1].next_deadline_ns() is None
    assert first.next_deadline_ns() == 0 and first.on_timer(5) == []
    assert first.next_deadline_ns() == 5 + first.open_wait_ns
    order.take((1, 1), first.on_timer(5 + first.open_wait_ns))
    order.deliver()
    assert all(machine.is_active and machine.can_write for machine in order.machines.values())


@rule("Q1")
def test_who_followed_says_anew_what_it_has() -> None:
    order = opened()
    order.view((1, 1), (2, 1), (3, 2))
    order.deliver(m.Stand, m.Want)
    order.give()
    follower = order.machines[3, 2]
    assert follower.shared is not None and not follower.is_active
    order.view((1, 1), (2, 1), (3, 2), (4, 1))
    order.deliver(m.Stand, at_most=3)
    order.write((1, 1), 1)
    order.deliver(m.Write)
    version = follower.rows.position().version
    assert version > 1 and (stands := follower.roll.stands[3, 2]) is not None and stands.position.version < version
    order.view((3, 2), (4, 1))
    said = [m.decode(data) for who, data in order.waiting if who == (3, 2)]
    assert [s.position.version for s in said if isinstance(s, m.Stand) and s.roll == order.clock] == [version]


@rule("W1")
def test_a_state_that_does_not_come_is_asked_of_another_site() -> None:
    """The first one asked may not be able to give it, and there is one that answers at each place."""
    order = opened()
    order.view((1, 1), (2, 1), (3, 2))
    order.deliver(m.Stand)
    joiner, asked = order.machines[3, 2], Counter[Source]()
    for _ in range(20):
        order.deliver(m.Want)
        [(donor, effect)] = order.take_effects(Give)
        assert effect.to == (3, 2)
        asked[donor] += 1
        order.take((3, 2), joiner.ask_again())
    assert set(asked) == {(1, 1), (2, 1)}
    order.view((2, 1), (3, 2))
    order.deliver(m.Want)
    assert [donor for donor, _ in order.take_effects(Give)] == [(2, 1)]


@rule("W1", "W4")
def test_a_state_that_has_come_is_not_asked_for_again() -> None:
    """Its host has waited for so long that it asks again, and the state comes before the machine hears of that."""
    order = opened()
    order.view((1, 1), (2, 1), (3, 2))
    order.deliver(m.Stand, m.Want)
    joiner = order.machines[3, 2]
    [(donor, _)] = order.take_effects(Give)
    given, entries = order.machines[donor].give(joiner._kept_from), list(order.machines[1, 1].rows.entries)  # type: ignore[attr-defined]
    for number in range(1, 6):
        order.write((1, 1), number)
    order.deliver(m.Write)
    joiner.catch_up_max, joiner.rows.entries = 2, entries  # type: ignore[attr-defined]
    order.take((3, 2), joiner.restore(given))
    assert joiner.is_catching_up
    assert joiner.ask_again() == [] and joiner.is_catching_up
    while joiner.is_catching_up:
        order.take((3, 2), joiner.catch_up())
    order.deliver()
    assert joiner.is_active


@rule("Q5", "Q6")
def test_who_is_not_accepted_leaves_and_comes_again() -> None:
    """Its ACTIVE comes behind the last active site; its LEAVE says nothing of the epoch that begins then."""
    order = opened()
    order.view((1, 1), (2, 1), (3, 2))
    order.deliver(m.Stand, m.Want)
    order.give()
    late = [entry for entry in order.waiting if isinstance(m.decode(entry[1]), m.Active)]
    assert [who for who, _ in late] == [(3, 2)]
    order.waiting.clear()
    order.view((1, 2), (2, 2), (3, 2), rows={s: order.machines[s, 1].rows for s in (1, 2)})  # type: ignore[misc]
    order.waiting = [*late, *order.waiting]
    order.deliver()
    assert [machine.is_active for machine in order.machines.values()] == [True, True, True]
    leave = m.encode(m.Leave(1))
    order.waiting = [((3, 2), leave)]
    order.deliver()
    assert order.machines[3, 2].is_active, "an epoch that is over"


@rule("Q5", "Q6")
def test_what_a_site_said_of_itself_before_an_opening_has_no_effect() -> None:
    """Its message was on the way meanwhile. Whether it is active since then or not, it stays so."""
    order = opened()
    one, two, three = order.machines
    shared = order.machines[one].shared
    assert shared is not None
    before = m.encode(m.Active(m.Position(shared.epoch - 1, 1, D), 0))
    order.take(one, [Emit(before)])
    order.deliver()
    assert all(machine.is_active for machine in order.machines.values()) and not order.waiting
    order.take(three, [Emit(m.encode(m.Leave(shared.epoch)))])
    order.deliver(m.Leave)
    order.take(three, [Emit(before)])
    order.deliver(m.Active)
    for machine in order.machines.values():
        assert machine.roll.active() == [one, two], "as if it were active, nobody would open the database without it"


@rule("K5")
def test_nothing_commits_without_enough_sites() -> None:
    order = opened()
    order.view((3, 1))
    order.deliver()
    order.write((3, 1), 1)
    order.deliver()
    assert order.verdicts() == [(1, "no-quorum")] and not order.machines[3, 1].can_write


@rule("D1")
def test_a_program_is_told_when_the_disks_have_it() -> None:
    order = opened()
    for number, durability in enumerate(Durability, 1):
        order.write((1, 1), number, durability)
    order.deliver()
    assert order.verdicts() == [(1, "done")]
    last = order.machines[1, 1].rows.position().version
    assert order.machines[1, 1].durable_version() == 0
    order.take((1, 1), order.machines[1, 1].on_synced(last))
    order.waiting.append(((2, 1), m.encode(m.Synced(1, last))))  # of another epoch
    order.deliver()
    assert order.verdicts() == []
    order.take((2, 1), order.machines[2, 1].on_synced(last))
    order.deliver()
    assert order.verdicts() == [(2, "done")] and order.machines[1, 1].durable_version() == last
    order.view((1, 1), (2, 1))
    assert order.verdicts() == [(3, "done")], "all that are active"


@rule("D1")
def test_all_active_disks_are_not_enough_when_few_are_active() -> None:
    """The others have lost power: one disk of three is in no later opening's debt."""
    order = opened()
    order.write((1, 1), 1, Durability.ALL)
    order.deliver()
    order.take((1, 1), order.machines[1, 1].on_synced(order.machines[1, 1].rows.position().version))
    order.deliver()
    order.view((1, 1))
    assert order.verdicts() == []


@rule("D3")
def test_a_barrier_is_reached_behind_what_was_sent_before() -> None:
    order = opened()
    order.write((1, 1), 1)
    order.take((3, 1), order.machines[3, 1].barrier(7))
    order.deliver()
    assert order.take_effects(Reached) == [((3, 1), Reached(7, order.machines[3, 1].rows.position().version))]


@rule("H1", "H3")
def test_the_lock_makes_others_wait_and_ends_with_its_service() -> None:
    order = opened()
    first, second = m.Txid(1, 1, 1, 50), m.Txid(2, 1, 1, 51)
    order.take((1, 1), order.machines[1, 1].lock(first))
    order.take((2, 1), order.machines[2, 1].lock(second))
    order.write((3, 1), 1)
    order.deliver()
    assert [(who, e.txid) for who, e in order.take_effects(Granted)] == [((1, 1), first)] and order.verdicts() == []
    order.view((2, 1), (3, 1))
    order.deliver()
    assert [(who, e.txid) for who, e in order.take_effects(Granted)] == [((2, 1), second)]
    assert order.verdicts() == [(1, "done")]
    order.write((3, 1), 2)
    order.take((2, 1), order.machines[2, 1].unlock(second))
    order.deliver()
    assert order.verdicts() == [(2, "done")]


def test_too_much_behind_a_lock_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    order = opened()
    order.take((1, 1), order.machines[1, 1].lock(m.Txid(1, 1, 1, 50)))
    for machine in order.machines.values():
        monkeypatch.setattr(machine.certifier, "waiting_max", 2)
    for number in range(3):
        order.write((3, 1), number)
    order.deliver()
    assert order.verdicts() == [(2, "busy")]


def test_a_disk_that_fails_is_left_and_the_others_go_on() -> None:
    order = opened()
    rows = order.machines[2, 1].rows
    assert isinstance(rows, MemoryRows)
    rows.fails = True
    order.write((2, 1), 1)
    order.write((1, 1), 2)
    order.deliver()
    assert [(who, e.reason) for who, e in order.take_effects(Failed)] == [((2, 1), "disk full")]
    assert order.verdicts() == [(1, "undecided"), (2, "done")]
    shared = order.machines[1, 1].shared
    assert shared is not None and shared.active == {(1, 1), (3, 1)}


@rule("Q7")
def test_another_release_of_sqlite_is_refused_and_named() -> None:
    """It gets no state and is not active, and the others go on; with their release it is."""
    order = opened()
    order.view((1, 1), (2, 1))
    order.machines[3, 2] = Machine((3, 2), ALL, MemoryRows(), release=3054001)
    order.view((1, 1), (2, 1), (3, 2))
    order.deliver()
    other = order.machines[3, 2]
    assert other.shared is None and other.wanted_from is None and not order.take_effects(Give)
    assert other.unlike == "the active sites have SQLite 0.0.0; here it is 3.54.1"
    order.write((1, 1), 1)
    order.deliver()
    assert order.verdicts() == [(1, "done")]
    order.waiting = [((3, 2), m.encode(m.Active(order.machines[1, 1].rows.position(), 3054001)))]
    order.deliver()
    assert (shared := order.machines[1, 1].shared) is not None and shared.active == {(1, 1), (2, 1)}
    order.view((1, 1), (2, 1), (3, 3))
    order.deliver()
    order.give()
    order.deliver()
    assert all(machine.is_active for machine in order.machines.values())


@rule("Q7")
def test_an_epoch_has_the_release_that_most_have() -> None:
    opening = Roll(1, {(k, 1): stand(3, 9)._replace(release=release) for k, release in ((1, 7), (2, 8), (3, 8))}).opening(ALL)
    assert opening is not None and opening.release == 8 and opening.equal == {(2, 1), (3, 1)}
    roll = Roll(1, {(1, 1): stand(3, 9)._replace(active=True, format=2)})
    assert roll.unlike(0) == "the database has format 2; this release of zenjun-db knows 1"


def test_who_differs_from_most_leaves() -> None:
    order = opened()
    odd = order.machines[3, 1].rows
    assert isinstance(odd, MemoryRows)
    odd.entries[-1] = odd.entries[-1]._replace(position=odd.position()._replace(digest=b"z" * 16))
    order.take((1, 1), order.machines[1, 1].compare())
    order.deliver()
    assert [who for who, _ in order.take_effects(Failed)] == [(3, 1)]
    assert [machine.is_active for machine in order.machines.values()] == [True, True, False]
    order.take((1, 1), order.machines[1, 1].compare())
    order.deliver()
    assert not order.take_effects(Failed)


@rule("W3")
@pytest.mark.parametrize(
    ("sums", "outside", "tied"), [("aab", [3], False), ("aaa", [], False), ("abc", [], True), ("baa", [1], False),
    ("aaA", [3], False), ("AAA", [], False), ("AAa", [1, 2], False), ("AAb", [3], False), ("ab?", [3], True), ("???", [], True),
    ("A??", [2, 3], False), ("aA?", [2, 3], False), ("abA", [2, 3], False)],
)  # fmt: skip
def test_rows_are_compared(sums: str, outside: list[int], tied: bool) -> None:
    """Who differs from most leaves with a copy that is not to be used; if there is no most, nobody does. A capital: SQLite finds
    something wrong with the copy, which is damaged only if the same rows are elsewhere without that. "?": it cannot be read."""
    order = opened()
    order.take((2, 1), order.machines[2, 1].scrub(5))
    order.deliver()
    assert [who for who, effect in order.take_effects(Sum) if effect.number == 5] == [(1, 1), (2, 1), (3, 1)]
    plain = {letter: letter.encode() * 16 for letter in "abc"}
    said = plain | {letter.upper(): complained(sums) for letter, sums in plain.items()} | {"?": UNREADABLE}
    for station, letter in enumerate(sums, 1):
        order.take((station, 1), order.machines[station, 1].on_sum(5, said[letter]))
    order.deliver()
    compared = order.take_effects(Compared)
    assert len(compared) == 3 and all(
        (sorted(s for s, _ in c.outside), c.tied, c.number) == (outside, tied, 5) for _, c in compared
    )
    assert [(who[0], e.is_damaged) for who, e in order.take_effects(Failed)] == [(station, True) for station in outside]
    assert [k for (k, _), machine in order.machines.items() if not machine.is_active] == outside
    order.take((2, 1), order.machines[2, 1].on_sum(4, bytes(16)))
    order.waiting.append(((9, 9), m.encode(m.Summed(5, bytes(16)))))
    order.deliver()
    assert not order.take_effects(Compared)


@rule("W3")
def test_a_damaged_copy_is_replaced_by_all_pages() -> None:
    """It promises nothing in a roll call, and asks for everything."""
    order = opened()
    order.view((1, 1), (2, 1))
    damaged = Machine((3, 2), ALL, order.machines[1, 1].rows)
    damaged.distrusts = True
    order.machines[3, 2] = damaged
    stood = damaged.stand()
    assert (stood.disk, stood.position) == (m.Disk.UNABLE, NOTHING)
    order.view((1, 1), (2, 1), (3, 2))
    order.deliver(m.Stand)
    assert [m.decode(data) for who, data in order.waiting if who == (3, 2)] == [m.Want(NOTHING)]
    order.deliver()
    order.give()
    order.deliver()
    assert damaged.is_active and not damaged.distrusts


@rule("W3")
def test_who_goes_during_a_comparison_is_not_waited_for() -> None:
    order = opened()
    order.take((2, 1), order.machines[2, 1].scrub(5))
    order.deliver()
    for station in (1, 2):
        order.take((station, 1), order.machines[station, 1].on_sum(5, b"a" * 16))
    order.deliver()
    assert not order.take_effects(Compared)
    order.view((1, 1), (2, 1))
    assert [c for _, c in order.take_effects(Compared)] == [Compared(5, frozenset(), False)] * 2


def test_what_is_no_message_or_comes_from_strangers_changes_nothing() -> None:
    order = opened()
    shared = order.machines[2, 1].shared
    assert shared is not None
    later = m.encode(m.Synced(shared.epoch, order.machines[2, 1].rows.position().version + 1))
    order.waiting = [((1, 1), b"\xff"), ((9, 9), m.encode(m.Leave(0))), ((1, 1), later), ((1, 1), later[:-1])]
    order.deliver()
    assert order.machines[2, 1].dropped == {"malformed": 2, "stranger": 1, "future": 1}
    assert shared.active == {(1, 1), (2, 1), (3, 1)} and not shared.synced


def test_what_is_of_another_epoch_changes_nothing() -> None:
    """Of one that is over, or that nobody knows; a transaction is rejected, so that its program learns it."""
    order = opened()
    shared = order.machines[1, 1].shared
    assert shared is not None
    order.take_effects(Answer)
    for number, epoch in enumerate((shared.epoch - 1, shared.epoch + 9)):
        write = m.Write(m.Txid(3, 1, 1, number), epoch, order.machines[3, 1].rows.position().version, (), b"")
        order.take((3, 1), order.machines[3, 1].submit(write, Durability.MEMORY))
        for message in (m.Lock(m.Txid(1, 1, 1, 1), epoch), m.Check(epoch), m.Scrub(epoch, 5), m.Leave(epoch), m.Synced(epoch, 0)):
            order.waiting.append(((3, 1), m.encode(message)))
    order.deliver()
    assert order.verdicts() == [(0, "stale"), (1, "stale")]
    for machine in order.machines.values():
        assert machine.shared is not None and len(machine.shared.active) == 3
        assert (
            not machine.shared.locks and not machine.shared.check and not machine.shared.scrub.sums and not machine.shared.synced
        )


def test_what_is_under_way_when_the_order_ends_is_undecided() -> None:
    order = opened()
    order.write((1, 1), 1, Durability.ALL)
    order.deliver()
    order.write((1, 1), 2)
    order.take((1, 1), order.machines[1, 1].on_lost())
    assert sorted(order.verdicts()) == [(1, "undecided"), (2, "undecided")]
    assert order.machines[1, 1].shared is None
