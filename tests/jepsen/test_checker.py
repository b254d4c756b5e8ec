"""The judge itself: a right history passes every check, and each kind of violation, planted in it, is found by its check."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from zenjun.tools.histories.checker import CHECKS, judge
from zenjun.tools.histories.history import SLOTS, VIEW_INDEX, History, Unreadable, load, read
from zenjun.tools.histories.recorder import Journal, body, parse
from zenjun.tools.scenario.model import KINDS, RANDOM_KINDS
from zenjun.tools.scenario.plan import LONG_MS, NETWORK_MAX, draw

Record: TypeAlias = dict[str, Any]
Records: TypeAlias = dict[int, list[Record]]
"""By station; 0: the runner's marks."""


class World:
    """Makes the records of a small cluster that does everything right: three stations, a program per level at each."""

    def __init__(self) -> None:
        self.records: Records = {0: [], 1: [], 2: [], 3: []}
        self._times = itertools.count(1000, 1000)
        self._clock = 2**32
        self._instance = 1
        self._incarnations = {1: 101, 2: 201, 3: 301}
        self._client = {slot: k for k, slot in enumerate(SLOTS, 1)}
        self._numbers: dict[tuple[int, str], int] = {}
        self._in: set[int] = set()

    def id(self, station: int, slot: str) -> str:
        return f"{station}.{slot[0]}.1"

    def put(self, where: int, kind: str, /, **record: Any) -> Record:
        entry = {"t": next(self._times), "k": kind, **record}
        self.records[where].append(entry)
        return entry

    def _everybody(self, kind: str, **record: Any) -> None:
        for station in sorted(self._in):
            for slot in SLOTS:
                self.put(station, kind, c=self.id(station, slot), **copy.deepcopy(record))

    def start(self) -> None:
        for station in (1, 2, 3):
            for slot in SLOTS:
                self.put(
                    station,
                    "connect",
                    c=self.id(station, slot),
                    station=station,
                    slot=slot,
                    client=self._client[slot],
                    level=slot,
                )
        self._in = {1, 2, 3}
        self.group("join")

    def group(self, reason: str) -> None:
        """A view of the group at the next place, for everybody who is in."""
        self._clock += 10
        members = [[s, self._client[slot], self.id(s, slot)] for s in sorted(self._in) for slot in SLOTS]
        joined = members if reason == "join" else []
        place = [self._clock, 1, 0]
        self._everybody("group", p=place, instance=self._instance, reason=reason, members=members, joined=joined, left=[])

    def say(self, station: int, slot: str, *, level: str = "preack", result: str | None = "done", kind: str = "r") -> str:
        """A message: sent, delivered to everybody who is in, its sender told."""
        number = self._numbers[station, slot] = self._numbers.get((station, slot), 0) + 1
        name = f"{self.id(station, slot)}.{number}.{kind}"
        self.put(station, "send", c=self.id(station, slot), m=name, level=level)
        if station in self._in:
            self._clock += 10
            place = [self._clock, station, 0]
            self._everybody("message", m=name, p=place, whole=True, **{"from": [station, self._client[slot]]})
        if result is not None:
            self.put(station, "result", c=self.id(station, slot), m=name, r=result)
        return name

    def view(self, joined: list[int], left: list[int]) -> None:
        """The next instance; whoever is let in is told that the cluster was opened anew, and begins with the view."""
        self._instance += 1
        self._clock = self._instance * 2**32
        for station in joined:
            self._incarnations[station] += 1
        self._in = (self._in - set(left)) | set(joined)
        for station in joined:
            for slot in SLOTS:
                sent = self._numbers.get((station, slot), 0)
                count = 1 if sent else 0
                detail = {
                    "event": "reopened", "instance": self._instance, "members": sorted(self._in), "undecided": count,
                    "first": sent - count + 1, "joined": True,
                }  # fmt: skip
                self.put(station, "event", c=self.id(station, slot), name="reopened", detail=detail)
        members = [[s, self._incarnations[s]] for s in sorted(self._in)]
        place = [self._clock, 1, VIEW_INDEX]
        self._everybody("view", p=place, instance=self._instance, members=members, joined=joined, left=left)

    def expel(self, station: int) -> None:
        for slot in SLOTS:
            self.put(station, "event", c=self.id(station, slot), name="expelled", detail={"event": "expelled"})

    def finish(self) -> None:
        self.put(0, "healed")
        self.put(0, "converged", took_ms=1)
        for station in (1, 2, 3):
            for slot in SLOTS:
                self.say(station, slot, level="ack", kind="l1")
        self.put(0, "round", number=1, complete=True)
        for station in (1, 2, 3):
            for slot in SLOTS:
                self.put(station, "end", c=self.id(station, slot), why="bye")


def right() -> Records:
    """A history without a fault: station 3 is removed with a message under way each, and let in again."""
    world = World()
    world.start()
    for _ in range(3):
        for station in (1, 2, 3):
            for slot in SLOTS:
                world.say(station, slot)
    world._in.discard(3)
    for slot in SLOTS:
        name = world.say(3, slot, result=None)
        world.put(3, "result", c=world.id(3, slot), m=name, r="undecided", reached=None)
    world.view([], [3])
    world.group("death")
    world.expel(3)
    for station in (1, 2):
        world.say(station, "preack")
    world.view([3], [])
    world.group("join")
    for station in (1, 2, 3):
        world.say(station, "ack")
    world.finish()
    return world.records


def history(records: Records) -> History:
    out = History(3, 2)
    for station in sorted(records):
        load(out, sorted(records[station], key=lambda r: r["t"]), f"station {station}")
    return out


def of(records: Records, station: int, slot: str, kind: str) -> list[Record]:
    """Records of one connection."""
    return [r for r in records[station] if r["k"] == kind and r.get("c") == f"{station}.{slot[0]}.1"]


def everywhere(records: Records, kind: str) -> list[Record]:
    return [r for station in records.values() for r in station if r["k"] == kind]


def drop(records: Records, station: int, record: Record) -> None:
    records[station].remove(record)


# ---- the violations, each as an edit of a right history ----


def swap(r: Records) -> None:
    a, b = of(r, 2, "preack", "message")[4:6]
    a["p"], b["p"] = b["p"], a["p"]


def back(r: Records) -> None:
    of(r, 2, "preack", "message")[5]["p"][0] -= 25


def no_join(r: Records) -> None:
    """Also for those that have been let in: what comes before the own join cannot be told from a hole."""
    drop(r, 3, of(r, 3, "preack", "group")[-1])


def other_content(r: Records) -> None:
    """Two messages have changed places at one station, which by itself looks right."""
    a, b = of(r, 2, "ack", "message")[4:6]
    for key in ("m", "from"):
        a[key], b[key] = b[key], a[key]


def hole(r: Records) -> None:
    drop(r, 1, of(r, 1, "preack", "message")[6])


def hole_at_ordered(r: Records) -> None:
    """At ordered it counts as well, as long as the station had later ones safe; station 3 is expelled later."""
    drop(r, 3, of(r, 3, "ordered", "message")[6])


def group_hole(r: Records) -> None:
    drop(r, 2, of(r, 2, "ack", "group")[1])


def group_differs(r: Records) -> None:
    of(r, 2, "ack", "group")[1]["members"].pop()


def twice(r: Records) -> None:
    first, second = of(r, 1, "ack", "message")[0], of(r, 1, "ack", "message")[12]
    second["m"], second["from"] = first["m"], first["from"]


def unsent(r: Records) -> None:
    for record in everywhere(r, "message"):
        if record["m"] == "1.p.1.2.r":
            record["m"] = "1.p.7.2.r"


def too_early(r: Records) -> None:
    send = of(r, 3, "ack", "send")[1]
    next(m for m in of(r, 1, "preack", "message") if m["m"] == send["m"])["t"] = send["t"] - 1


def wrong_sender(r: Records) -> None:
    for record in everywhere(r, "message"):
        if record["m"] == "1.p.1.2.r":
            record["from"] = [2, 1]


def refused(r: Records) -> None:
    of(r, 1, "preack", "result")[1]["r"] = "refused"


def damaged(r: Records) -> None:
    of(r, 1, "ordered", "message")[2]["whole"] = False


def overtakes(r: Records) -> None:
    """Everywhere alike, so that only the sender's order is broken."""
    names = {"1.p.1.1.r": "1.p.1.2.r", "1.p.1.2.r": "1.p.1.1.r"}
    for record in everywhere(r, "message"):
        record["m"] = names.get(record["m"], record["m"])
    for record in r[1]:
        if record["k"] == "send" and record["m"] == "1.p.1.2.r":
            record["t"] = of(r, 1, "preack", "send")[0]["t"] + 1


def lost_in_the_middle(r: Records) -> None:
    """Nobody has it, and the sender was told nothing."""
    for station in (1, 2, 3):
        r[station] = [x for x in r[station] if not (x["k"] in ("message", "result") and x["m"] == "2.a.1.2.r")]


def other_incarnation(r: Records) -> None:
    of(r, 2, "ack", "view")[1]["members"][0][1] += 1


def other_stations(r: Records) -> None:
    of(r, 3, "ack", "event")[1]["detail"]["members"] = [1, 3]


def view_elsewhere(r: Records) -> None:
    of(r, 2, "preack", "view")[0]["p"][0] += 1


def view_lies(r: Records) -> None:
    for record in everywhere(r, "view"):
        if record["instance"] == 3:
            record["joined"] = []


def minority(r: Records) -> None:
    for record in everywhere(r, "view"):
        if record["instance"] == 2:
            record["members"] = record["members"][:1]


def side_by_side(r: Records) -> None:
    """Instance 3, of stations 2 and 3, has begun in the middle of instance 2, in which stations 1 and 2 go on."""
    for station in (2, 3):
        for record in r[station]:
            if "p" in record and record["p"][0] >= 3 * 2**32:
                record["p"][0] -= 2**32 - 5


def number_falls(r: Records) -> None:
    for record in everywhere(r, "view"):
        if record["instance"] == 3:
            record["instance"] = 1


def same_life_again(r: Records) -> None:
    for record in everywhere(r, "view"):
        for member in record["members"]:
            if member[0] == 3:
                member[1] = 301
    # An instance that still had it, so that somebody knows: station 2 is let in a moment before.
    for station in (1, 2, 3):
        for record in of(r, station, "preack", "view")[:1]:
            if station != 3:
                early = copy.deepcopy(record)
                early["t"] = of(r, station, "preack", "message")[0]["t"] - 1
                early.update(
                    instance=1, p=[2**32 + 11, 1, VIEW_INDEX], members=[[1, 101], [2, 201], [3, 301]], joined=[2], left=[]
                )
                r[station].append(early)


def not_for_a_survivor(r: Records) -> None:
    """Told done at preack, and nowhere: no two stations disagree, but everybody who went on lacks it."""
    for station in (1, 2, 3):
        r[station] = [x for x in r[station] if not (x["k"] == "message" and x["m"] == "2.a.1.3.r")]


def safe_by_the_count(r: Records) -> None:
    """The sender asked for nothing, but reopened counts it as safe, and nobody has it."""
    of(r, 3, "ack", "send")[2]["level"] = "sent"
    for station in (1, 2, 3):
        r[station] = [x for x in r[station] if not (x["k"] == "message" and x["m"] == "3.a.1.3.r")]


def both_done_and_undecided(r: Records) -> None:
    of(r, 3, "ack", "event")[1]["detail"].update(first=3, undecided=2)


def undecided_of_nothing(r: Records) -> None:
    of(r, 3, "ack", "event")[1]["detail"].update(first=4, undecided=70)


def undecided_uncounted(r: Records) -> None:
    of(r, 3, "ack", "event")[1]["detail"].update(first=5, undecided=0)


def died(r: Records) -> None:
    r[0].append({"t": 1, "k": "died", "station": 2, "code": 1, "log": "internal error"})


def fenced(r: Records) -> None:
    r[1].append({"t": 10**9, "k": "event", "c": "1.p.1", "name": "fenced", "detail": {"event": "fenced", "at": 1, "with": 2}})


def protocol_error(r: Records) -> None:
    of(r, 1, "ack", "end")[0].update(why="the daemon sent nonsense", error="ProtocolError")


def never_together(r: Records) -> None:
    r[0] = [x for x in r[0] if x["k"] != "converged"]


def no_last_word(r: Records) -> None:
    r[0][-1]["complete"] = False


def last_word_missing(r: Records) -> None:
    """The very last one, so that no range of places has a hole."""
    drop(r, 2, of(r, 2, "ack", "message")[-1])


def somebody_missing(r: Records) -> None:
    of(r, 3, "ordered", "end")[0].update(why="the daemon closed the connection", error="ConnectionClosed")


PLANTED: list[tuple[str, Callable[[Records], None]]] = [
    ("places_grow", swap),
    ("places_grow", back),
    ("begins_with_join", no_join),
    ("one_place", swap),
    ("one_place", other_content),
    ("one_place", group_differs),
    ("common_order", hole),
    ("common_order", hole_at_ordered),
    ("common_order", group_hole),
    ("no_duplicate", twice),
    ("no_invention", unsent),
    ("no_invention", too_early),
    ("no_invention", wrong_sender),
    ("no_invention", refused),
    ("no_invention", damaged),
    ("sender_order", overtakes),
    ("sender_order", lost_in_the_middle),
    ("same_members", other_incarnation),
    ("same_members", other_stations),
    ("same_view", view_elsewhere),
    ("same_view", view_lies),
    ("quorate", minority),
    ("one_instance_at_a_time", side_by_side),
    ("numbers_grow", number_falls),
    ("numbers_grow", same_life_again),
    ("acknowledged", not_for_a_survivor),
    ("acknowledged", safe_by_the_count),
    ("undecided", both_done_and_undecided),
    ("undecided", undecided_of_nothing),
    ("undecided", undecided_uncounted),
    ("no_breakdown", died),
    ("no_breakdown", fenced),
    ("no_breakdown", protocol_error),
    ("convergence", never_together),
    ("convergence", no_last_word),
    ("convergence", last_word_missing),
    ("convergence", somebody_missing),
]


def test_a_right_history_has_no_violation() -> None:
    report = judge(history(right()))
    assert not report.violations, report.text
    assert report.figures["lives"] == 12 and report.figures["instances"] == 3
    assert report.figures["delivered_safe"] == 2 * (27 * 3 + 2 * 2 + 3 * 3 + 9 * 3), "at preack and at ack, as the script says"


@pytest.mark.parametrize(("check", "plant"), PLANTED, ids=[f"{check}-{plant.__name__}" for check, plant in PLANTED])
def test_planted_violation_is_found(check: str, plant: Callable[[Records], None]) -> None:
    records = right()
    plant(records)
    assert check in judge(history(records)).violations


def test_every_check_has_a_planted_violation() -> None:
    assert {check for check, _ in PLANTED} == set(CHECKS)


def test_what_was_only_ordered_where_a_station_was_expelled_is_not_judged() -> None:
    """Its last messages at ordered, which nobody else has, are excused; the same thing at preack is not."""
    for slot, excused in (("ordered", True), ("preack", False)):
        records = right()
        expelled = of(records, 3, slot, "event")[0]
        lone = copy.deepcopy(of(records, 3, slot, "message")[-1])
        lone.update(t=expelled["t"] - 1, m=f"3.{slot[0]}.1.4.r", p=[2**32 + 2000, 3, 0])
        lone["from"] = [3, SLOTS.index(slot) + 1]
        records[3].append(lone)
        # Somebody else has something further on in that range, at which the two disagree.
        other = of(records, 1, "preack", "message")[27]
        assert other["p"][0] > lone["p"][0]
        report = judge(history(records))
        assert ("common_order" not in report.violations) is excused, report.text


def test_the_last_line_of_a_killed_recorder_may_be_cut(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "station-1.jsonl")
    for record in right()[1]:
        journal.write({key: value for key, value in record.items() if key != "t"})
    journal.close()
    whole = read([tmp_path / "station-1.jsonl"], 3, 2)
    data = (tmp_path / "station-1.jsonl").read_bytes()
    (tmp_path / "station-1.jsonl").write_bytes(data[:-9])
    cut = read([tmp_path / "station-1.jsonl"], 3, 2)
    assert [c.end for c in whole.connections] == ["bye"] * 3
    assert [c.end for c in cut.connections] == ["bye", "bye", None]
    assert len(cut.sent) == len(whole.sent)


def test_a_history_that_contradicts_itself_is_refused() -> None:
    edits: list[Callable[[Records], None]] = [
        lambda r: r[1].append(dict(of(r, 1, "ack", "send")[0])),
        lambda r: r[1].append(dict(of(r, 1, "ack", "result")[0])),
        lambda r: r[1].append({"t": 1, "k": "message", "c": "9.p.1"}),
        lambda r: r[1].append({"t": 10**9, "k": "message", "c": "1.p.1"}),
    ]
    for edit in edits:
        records = right()
        edit(records)
        with pytest.raises(Unreadable):
            history(records)


def test_bodies_say_whether_they_are_whole() -> None:
    for filling in (0, 1, 64, 65, 6000):
        data = body("1.p.2.3.r", filling)
        assert parse(data) == ("1.p.2.3.r", True) and len(data) >= filling
        if filling:
            assert parse(data[:-1]) == ("1.p.2.3.r", False)
            assert parse(data[:-1] + bytes([data[-1] ^ 1])) == ("1.p.2.3.r", False)
    for junk in (b"", b"\xff", b"a|b|c", b"1.p.2.3.r|99999999999999999|", b"x" * 100):
        assert not parse(junk)[1]


# ---- plans ----


@pytest.mark.parametrize("stations", [2, 3, 5, 9])
def test_plans_are_made_from_the_seed_and_can_be_carried_out(stations: int) -> None:
    kinds: set[str] = set()
    for seed in range(60):
        plan = draw(seed, 60.0, stations)
        assert plan == draw(seed, 60.0, stations) and plan != draw(seed + 1, 60.0, stations)
        assert [act.begin_ms for act in plan] == sorted(act.begin_ms for act in plan)
        for act in plan:
            kinds.add(act.do)
            assert act.end_ms is not None
            assert 0 < act.begin_ms <= act.end_ms <= 60_000 and act.end_ms - act.begin_ms <= LONG_MS[1]
            named = {*act.stations, *act.others, *(s for group in act.groups for s in group)}
            assert named and named <= set(range(1, stations + 1))
            assert not {*act.stations} & {*act.others}
            at_once = [a for a in plan if a.end_ms is not None and a.begin_ms <= act.begin_ms < a.end_ms]
            hit = [s for a in at_once if KINDS[a.do].process for s in a.stations]
            assert len(hit) == len(set(hit)), "one process fault at a time for a station"
            assert sum(not KINDS[a.do].process for a in at_once) <= NETWORK_MAX
    assert kinds == set(RANDOM_KINDS) - {"massacre"}, "a massacre is a kill of several"


def test_a_plan_may_be_of_some_kinds_only() -> None:
    acts = [act for seed in range(20) for act in draw(seed, 20.0, 3, ("pause", "loss"))]
    assert {act.do for act in acts} == {"pause", "loss"}
