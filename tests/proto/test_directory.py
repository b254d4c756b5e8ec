"""The directory's parts one by one: syntax, messages, selection, limits, look-ups, deltas."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from zenjun.proto.errors import UsageError
from zenjun.proto.service.directory import lookup
from zenjun.proto.service.directory import state as state_module
from zenjun.proto.service.directory.addresses import is_address
from zenjun.proto.service.directory.copying import delta_possible, digest, removed_since
from zenjun.proto.service.directory.draft import Change
from zenjun.proto.service.directory.entries import NOWHERE, Entry, Schedule, Slot, Target, entry_row, read_entry
from zenjun.proto.service.directory.messages import (
    MAGIC,
    MESSAGE_MAX,
    Check,
    Digest,
    Due,
    End,
    HasApplied,
    Holding,
    Id,
    Malformed,
    Message,
    Next,
    OnDisk,
    TooNew,
    Update,
    check,
    decode,
    encode,
    seal,
)
from zenjun.proto.service.directory.names import is_name, is_role, lower, patterns_of
from zenjun.proto.service.directory.operations import (
    Add,
    Alias,
    Drop,
    Move,
    Operation,
    Out,
    Register,
    Remove,
    Set,
    SetSchedule,
    SetZone,
    Take,
    operation_row,
    read_operation,
)
from zenjun.proto.service.directory.selection import effective, minus_log2, select
from zenjun.proto.service.directory.state import Result, State
from zenjun.proto.service.directory.store import MemoryStore, Table
from zenjun.proto.service.directory.ttl import PAUSE_NS, TURN_NS, Ttls
from zenjun.proto.service.directory.watch import Changed, Gap, Listed, Watch
from zenjun.proto.timers import NEVER

from ..sim.directory_load import Load

ME = (1, 7)
A, B, C = "tcp://10.0.0.1:80", "tcp://10.0.0.2:80", "tcp://10.0.0.3:80"


class Directory:
    """A state, and updates at one place after the other."""

    def __init__(self, names_max: int = 1000) -> None:
        self.state = State(MemoryStore(), names_max)
        self.clock = 10
        self.state.on_view((self.clock, 1, 65535), [ME, (2, 7)])

    def do(self, *operations: Operation, roles: tuple[str, ...] = ("operator", "user:root")) -> Result:
        self.clock += 1
        update = Update(Id("0" * 16, self.clock), roles, operations)
        assert check(update) == ""
        return self.state.apply((self.clock, 1, 0), ME, encode(update))

    def code(self, *operations: Operation, roles: tuple[str, ...] = ("operator", "user:root")) -> str:
        outcome = self.do(*operations, roles=roles).outcome
        assert outcome is not None
        return outcome.code


# ---- syntax


def test_names() -> None:
    good = ["a", "a-b_c.d", "0", "a" * 63, ".".join(["a" * 62] * 4), "-", "_x"]
    bad = ["", "A", ".a", "a.", "a..b", "a b", "ä", "a" * 64, ".".join(["a" * 63] * 4), "a\n", "ａ", None, 1]
    assert all(map(is_name, good)) and not any(map(is_name, bad))
    assert lower("DB.Plant-İ") == "db.plant-İ"
    assert patterns_of("a.b.c") == ["a.b.c", "*.b.c", "*.c"]
    assert is_role("station:64") and not is_role("station:65") and not is_role("user:") and not is_role("user:a b")


def test_addresses() -> None:
    good = [A, "mac:02:00:00:00:00:07", "station:3", "station:64/editor", "x:y", "http://[::1]/%20"]
    bad = ["", "tcp", ":x", "tcp:", "a b:c", "TCP://x", "mac:2:0:0:0:0:7", "mac:02:00:00:00:00:0A", "station:0", "station:65"]
    bad += ["station:03", "station:3/", "x:" + "y" * 511, "x:ü", "x:\x7f", "x:y\n"]
    assert all(map(is_address, good)) and not any(map(is_address, bad))


# ---- messages


def messages(count: int) -> list[Message]:
    r = random.Random(7)
    load = Load(r, lambda name: (4, 1, 2))
    some: list[Message] = [load.update(1000) for _ in range(count)]
    some += [
        End((1, 5)),
        Due(7),
        Next("a", (4, 1, 2), 9, 1),
        Holding(True),
        Holding(False),
        OnDisk((4, 1, 2)),
        HasApplied((4, 1, 2)),
    ]
    return [*some, Check(), Digest((4, 1, 2), 5, 6)]


def test_a_message_comes_back_as_it_was() -> None:
    for message in messages(300):
        assert decode(encode(message)) == message


def test_no_bytes_make_decode_raise_and_what_is_accepted_is_canonical() -> None:
    r = random.Random(11)
    for message in messages(300):
        data = bytearray(encode(message))
        for _ in range(3):
            i = r.randrange(len(data))
            match r.randrange(3):
                case 0:
                    data[i] = r.randrange(256)
                case 1:
                    del data[i]
                case _:
                    data.insert(i, r.choice(b'[]{}",:0123456789aeE.-+\\u '))
        decoded = decode(bytes(data))
        if not isinstance(decoded, Malformed | TooNew):
            assert encode(decoded) == bytes(data)


def test_what_programs_send_by_mistake_stops_nobody_and_a_later_format_does() -> None:
    d = Directory()
    for i, data in enumerate([b"", b"hello directory", b"ZD", b"ZD\1", b"ZD\0{}", b"ZD\1" + b"[" * 60000, b"{}"]):
        result = d.state.apply((20 + i, 2, 0), (2, 7), data)
        assert result.outcome is not None and result.outcome.code == "malformed"
    place, main = d.state.place, d.state.main
    result = d.state.apply((40, 2, 0), (2, 7), MAGIC + b"\2" + bytes(MESSAGE_MAX))
    assert result.message == TooNew(2) and (d.state.place, d.state.main) == (place, main)
    with pytest.raises(UsageError, match="too-old"):
        d.state.apply((41, 1, 0), ME, encode(Check()))


def test_the_sender_is_told_before_it_sends() -> None:
    update = Update(Id("0" * 16, 1), ("user:u",), (Set("a", tuple(Target(f"tcp://{'x' * 490}:{i:04d}") for i in range(64))),) * 2)
    assert check(update) == "too-large"
    assert check(update._replace(operations=(Set("A"),))) == "name"
    assert check(update._replace(operations=(Set("a", (Target("no address"),)),))) == "address"


def test_a_sealed_update_is_taken_exactly_if_it_is_checked_so() -> None:
    """``seal`` looks at less than ``check``, because the operations have been read already."""
    r = random.Random(13)
    sealed = 0
    for message in messages(300):
        if not isinstance(message, Update):
            continue
        rows = [operation_row(op) for op in message.operations]
        for row in rows:  # as programs write them: what is usual, or without a meaning, is there too
            if r.random() < 0.1:
                row[r.choice(["t", "w", "p", "e", "z", "s", "x", "none"])] = r.choice([0, 1, "", "all", "a", A, [A], []])
        try:
            operations = tuple([read_operation(row) for row in rows])
        except ValueError:
            continue
        for update in (
            message._replace(operations=operations),
            message._replace(
                operations=operations, id=Id(r.choice(["", "0" * 15, "G" * 16, "f" * 16]), r.choice([-1, 0, 1 << 64]))
            ),
            message._replace(
                operations=operations, roles=r.choice([(), ("user:a", "user:b"), ("user:b", "group:a"), ("user:",)])
            ),
            message._replace(operations=(*operations, Take("a"), Take("b"))),
            message._replace(operations=(*operations, *[Set("a", (Target(f"x:{'y' * 500}"),))] * 130)),
            message._replace(operations=()),
        ):
            data, problem = seal(update)
            assert data == encode(update)
            assert bool(problem) == bool(check(update)), (update, problem, check(update))
            sealed += not problem
    assert sealed > 100


# ---- rows


def test_rows_come_back_as_they_were() -> None:
    leased = Target(A, 0, 1, "1.7.1")
    schedule = Schedule((Slot("08:00", (A,)), Slot("18:00", (B,))), 1, 500, 900, 0)
    base = Entry("a", "user:u", (5, 1, 0))
    for entry in (
        base,
        base._replace(targets=(leased,), kept=False),
        base._replace(targets=(leased,), kept=True),
        base._replace(targets=(leased,), kept=False, exclusive=True),
        base._replace(alias="b", ttl=0, meta=(("k", "é"),)),
        base._replace(targets=(Target(B, 3, 0, "station:2"),), override=(A, C), override_end=77, schedule=schedule),
        base._replace(schedule=schedule._replace(current=-1, last=0, due=0)),
    ):
        assert read_entry(entry_row(entry)) == entry


# ---- selection


def never_out(address: str) -> bool:
    return False


def test_effective_targets() -> None:
    """Rule E5, from the override down to no address."""
    targets = (Target(A), Target(B, 0, 1, "station:2"), Target(C, 1))
    entry = Entry("a", "user:u", (5, 1, 0), targets=targets)

    def used(e: Entry, up: tuple[int, ...] = (1, 2), out: tuple[str, ...] = ()) -> list[str]:
        return [t.address for t in effective(e, up, out.__contains__)]

    assert used(entry) == [A, B]
    assert used(entry, up=(1,)) == [A]
    assert used(entry, up=(1,), out=(A,)) == [C]
    assert used(entry, out=("station:2",)) == [A]
    assert used(entry, out=(A, B, C)) == []
    switched = entry._replace(override=(C, "tcp://new:1"))
    assert used(switched) == ["tcp://new:1"] and used(switched, out=("tcp://new:1",)) == [C]
    assert used(switched, out=("tcp://new:1", C)) == [A, B], "nothing of the override is left"
    slots = entry._replace(schedule=Schedule((Slot("08:00", (B,)),), 0, 5))
    assert used(slots) == [B] and used(slots, up=(1,)) == [A]
    assert used(slots._replace(override=(C,))) == [C]
    at_stations = entry._replace(targets=(Target("station:3"), Target("station:4/x", 0, 1, "5.1.1")))
    assert used(at_stations, up=(), out=("station:5",)) == ["station:3"]
    twice = entry._replace(targets=(Target(A), Target(A, 0, 1, "1.7.1")))
    assert used(twice) == [A]


def test_selection() -> None:
    targets = [Target(A), Target(B), Target(C)]
    assert [select(targets, "cyclic", 2, turn)[0].address for turn in range(4)] == [B, C, A, B]
    assert select([], "cyclic", 2) == [] and select(targets, "first", 3) == targets
    near = [Target("tcp://x:1"), Target("station:2"), Target("station:3"), Target("tcp://y:1", 0, 1, "1.7.1")]
    assert [t.address for t in select(near, "nearest", 1, near=(2,))] == ["tcp://y:1", "station:2", "tcp://x:1", "station:3"]


def test_spread_follows_the_weights_and_moves_only_the_keys_of_what_goes() -> None:
    targets = [Target(A, 0, 1), Target(B, 0, 3), Target(C, 0, 0)]
    keys = [b"%d" % i for i in range(4000)]
    first = {key: select(targets, "spread", 1, key=key)[0] for key in keys}
    shares = Counter(t.address for t in first.values())
    assert shares[C] == 0 and 0.22 < shares[A] / len(keys) < 0.28
    for key in keys:
        without = select([targets[0], targets[2]], "spread", 1, key=key)[0]
        assert first[key] != targets[0] or without == targets[0]


def test_the_logarithm() -> None:
    assert minus_log2((1 << 64) - 1) == 0 and minus_log2(0) == 64 << 16 and minus_log2((1 << 63) - 1) == 1 << 16
    assert abs(minus_log2((1 << 64) * 3 // 4) - 27200) <= 1  # -log2(0.75) = 0.41504
    values = [minus_log2(v << 50) for v in range(1 << 14)]
    assert values == sorted(values, reverse=True)


# ---- operations and limits


def test_all_or_nothing() -> None:
    d = Directory()
    before = d.state.main
    result = d.do(Set("a"), Register("b", A, 1), Take("missing"), Remove("a"))
    assert result.outcome is not None and (result.outcome.code, result.outcome.operation) == ("no-name", 2)
    assert d.state.main == before and d.state.entry("a") is None and d.state.leases == 0 and d.state.counts.get("", 0) == 0


def test_limits() -> None:
    d = Directory(names_max=2)
    assert [d.code(Set(n)) for n in ("a", "b", "c")] == ["", "", "full"]
    assert d.code(Remove("a"), Set("c")) == ""
    many = tuple(Target(f"tcp://10.0.0.1:{i:05d}") for i in range(64))
    assert d.code(Set("b", many)) == "" and d.code(Add("b", (Target(A),))) == "too-large"
    long = tuple(Target(f"tcp://{'x' * 450}:{i:04d}") for i in range(60))
    assert d.code(Set("b", long)) == ""
    assert d.code(SetZone("small", names_max=1), Move("b", "small")) == "" and d.code(Move("c", "small")) == "full"
    assert d.code(SetZone("small", remove=True)) == "exists"


def test_names_of_a_pattern_are_in_its_zone() -> None:
    d = Directory()
    user = ("user:u",)
    assert d.code(SetZone("plant", writers=("user:u",), patterns=("*.plant",))) == ""
    assert d.code(SetZone("other", patterns=("*.plant",))) == "exists"
    assert d.code(Set("a.plant"), roles=("user:v",)) == "not-permitted"
    assert d.code(Set("a.plant"), roles=user) == "" and d.code(Set("b.plant", zone="default"), roles=user) == "not-permitted"
    entry = d.state.entry("a.plant")
    assert entry is not None and entry.zone == "plant"
    assert d.code(Set("a"), roles=("user:v",)) == "" and d.code(Set("a"), roles=user) == "not-permitted"
    assert d.code(Out(A), roles=user) == "not-permitted" and d.code(Set("s1.station")) == "not-permitted"


def test_aliases_end_somewhere() -> None:
    d = Directory()
    names = [f"n{i}" for i in range(12)]
    codes = [d.code(Alias(a, b)) for a, b in pairwise(names)]
    assert codes == [""] * 11, "each looks down a chain that ends at once"
    assert d.code(Alias("n11", "n0")) == "alias-loop"
    assert lookup.follow(d.state.entry, "n0").code == "alias-loop", "too long"
    assert lookup.follow(d.state.entry, "n3").code == "no-name"
    d.do(Set("n11", (Target(A),)))
    assert lookup.follow(d.state.entry, "n3").path == tuple(names[3:]) and lookup.follow(d.state.entry, "n2").code == "alias-loop"
    found = lookup.follow(d.state.entry, "s2.station").entry
    assert found is not None and [t.address for t in effective(found, (2,), never_out)] == ["station:2"]
    assert effective(found, (1,), never_out) == []


def test_nobody_names_the_next_instant_before_the_time_is_known() -> None:
    """After a START no clock has been told. The next slot would be the first one of those missed."""
    d = Directory()
    d.do(Set("a"), SetSchedule("a", (Slot("08:00", (A,)), Slot("18:00", (B,))), 0, 500))
    d.state.on_start((50, 1, 0), [ME])
    d.state.apply((51, 1, 0), ME, encode(Holding(True)))
    assert d.state.next_due() == 0 and list(d.state.without_next()) == []
    assert d.state.due_message(ME, 90_000) == Due(90_000) and d.state.due_message((2, 7), 90_000) is None
    d.state.apply((52, 1, 0), ME, encode(Due(90_000)))
    assert d.state.time == 90_000 and [e.name for e in d.state.without_next()] == ["a"]
    assert d.state.due_message(ME, 90_001) is None


def test_take_goes_round_for_all() -> None:
    d = Directory()
    d.do(Set("a", (Target(A), Target(B))), Alias("b", "a"))
    texts = []
    for name in ("a", "b", "a"):
        outcome = d.do(Take(name), roles=("user:x",)).outcome
        assert outcome is not None
        texts.append(outcome.text)
    assert texts == [A, B, A]


def test_a_copy_of_zone_and_version_cannot_tell_what_an_update_does() -> None:
    """Why a holder of one zone cannot do with (name, zone, version) of the others: the outcome, and so the version, depends on
    the rest of the entry."""
    one, two = Directory(), Directory()
    one.do(Set("a", (Target(A),)))
    two.do(Set("a", (Target(B),)))
    entries = one.state.entry("a"), two.state.entry("a")
    assert entries[0] and entries[1] and entries[0][2:4] == entries[1][2:4], "equal version and zone"
    assert (one.code(Drop("a", (A,))), two.code(Drop("a", (A,)))) == ("", "no-address")
    after = one.state.entry("a"), two.state.entry("a")
    assert after[0] and after[1] and after[0].version != after[1].version


# ---- outcomes and deltas


def test_the_oldest_outcomes_go_and_deltas_end_where_removals_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "OUTCOMES_MAX", 3)
    monkeypatch.setattr(state_module, "GONE_MAX", 2)
    d = Directory()
    d.do(*(Set(n) for n in "abcd"))
    d.state.save()
    assert isinstance(d.state.store, MemoryStore)
    old = State(d.state.store.copy())
    for name in "ab":
        d.do(Remove(name))
    since = old.place
    assert delta_possible(d.state, since) and removed_since(d.state, since) == [(Table.ENTRY, "a"), (Table.ENTRY, "b")]
    d.do(Set("a"))
    old.merge(d.state.place, removed_since(d.state, since), d.state.store.changed_since(since))
    assert digest(old) == digest(d.state) and old.outcomes == 3 and old.counts == d.state.counts
    assert d.state.outcome(Id("0" * 16, 11)) is None and d.state.outcome(Id("0" * 16, 12)) is not None
    d.do(Remove("c"))
    assert not delta_possible(d.state, since) and delta_possible(d.state, d.state.place)
    again = State.rebuild(rows_of(d.state), d.state.place)
    assert digest(again) == digest(d.state) and not delta_possible(again, since)


def rows_of(state: State) -> MemoryStore:
    assert isinstance(state.store, MemoryStore)
    new = MemoryStore()
    for table, key, row in state.store.changed_since(NOWHERE):
        new.put(table, key, row, state.place)
    return new


def test_a_row_that_is_none_is_refused() -> None:
    store = MemoryStore()
    store.put(Table.ENTRY, "a", b'{"k":"addr","n":"b","o":"user:u","v":"1.1.1","z":"default"}', (5, 1, 0))
    with pytest.raises(ValueError, match="the row of a"):
        State.rebuild(store, (5, 1, 0))


# ---- look-ups between processes


def test_messages_of_look_ups() -> None:
    targets = (Target(A, 0, 3), Target(B, until="station:2"), Target(B, until="4.1.9"))
    for message in (
        lookup.Ask(1, "a", (5, 1, 0), (4, 1, 0), 1),
        lookup.NotHere(1, (5, 1, 0)),
        lookup.Answer(1, (6, 1, 0), "", ("b", "a"), (5, 1, 0), 60, "spread", targets, "plant", "user:x", (("k", "v"),)),
        lookup.Answer(1, (6, 1, 0), "zone-down", zone="plant"),
    ):
        data = lookup.encode((3, 7), message)
        assert lookup.decode(data) == ((3, 7), message)
        assert lookup.decode(data[:-1]) is None and lookup.decode(data.replace(b":", b": ", 1)) is None


# ---- leases with a time-out


def test_a_pause_of_the_process_ends_no_lease() -> None:
    t = Ttls()
    second = 1_000_000_000
    t.add(0, 1, second)
    t.add(0, 2)
    assert t.on_turn(0) == [] and t.next_turn() == TURN_NS
    late = 5 * second
    assert t.on_turn(late) == [], "it may have been renewed meanwhile"
    assert t.renew(late, 1) and not t.renew(late, 9)
    turns = [t.on_turn(late + k * TURN_NS) for k in range(1, 12)]
    assert turns.count([1]) == 1 and turns.index([1]) == 9 and len(t) == 1
    assert t.next_turn() == NEVER
    assert t.on_turn(late + 100 * TURN_NS + PAUSE_NS) == []


@pytest.mark.parametrize("resumes", [False, True])
def test_changes_that_come_while_a_watch_is_read_follow_it(resumes: bool) -> None:
    """Those up to the place of what was read are in it, those behind it follow: none is lost, and none told twice."""
    one, two = (Entry("web.a", "0", (place, 1, 0)) for place in (5, 7))
    watch = Watch("web.")
    watch.hold()
    assert watch.is_held and not watch.on_changes((5, 1, 0), [Change("web.a", None, one)])
    assert not watch.on_changes((7, 1, 0), [Change("web.a", one, two), Change("db", None, two)]) and not watch.read(10)
    if resumes:
        watch.resume((5, 1, 0), [one], [])
    else:
        watch.start((5, 1, 0), [one])
    assert not watch.is_held
    assert watch.read(10) == [Changed((5, 1, 0), "web.a", one), Listed((5, 1, 0)), Changed((7, 1, 0), "web.a", two)]
    assert watch.on_changes((8, 1, 0), [Change("web.a", two, None)])


def test_a_watch_goes_on_from_a_place() -> None:
    """By the places of the changes, then what is gone; who asks for too long ago gets a gap, and everything."""
    early, late = (Entry(name, "0", (place, 1, 0)) for name, place in (("web.b", 5), ("web.a", 7)))
    watch = Watch("web.")
    watch.resume((9, 1, 0), [late, early, Entry("db", "0", (6, 1, 0))], ["web.c", "dbs"])
    watch.on_changes((10, 1, 0), [Change("web.a", late, None)])
    assert watch.read(10) == [
        Changed((5, 1, 0), "web.b", early), Changed((7, 1, 0), "web.a", late), Changed((9, 1, 0), "web.c", None),
        Listed((9, 1, 0)), Changed((10, 1, 0), "web.a", None),
    ]  # fmt: skip
    watch.start((11, 1, 0), [early], missed=True)
    assert watch.read(10) == [Gap((11, 1, 0)), Changed((11, 1, 0), "web.b", early), Listed((11, 1, 0))]
