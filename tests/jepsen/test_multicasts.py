"""The judge of groups that overlap: a right history passes, and each kind of violation, planted in it, is found by its check.

Then frames: a message that goes to a station that it does not concern.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pytest
from zenjun.tools.histories.history import History, load
from zenjun.tools.histories.multicaster import LEVELS, Task, groups_of
from zenjun.tools.histories.multicasts import CHECKS, judge

Record: TypeAlias = dict[str, Any]
GROUPS: Final = {"a": [1, 2], "b": [2, 3], "c": [1, 3]}
"""A ring: any two stations share one group."""
STATIONS: Final = (1, 2, 3, 4)
"""4 is in no group."""


class World:
    """Makes the records of a cluster that does everything right: at each station a program at each level."""

    def __init__(self) -> None:
        self.records: list[Record] = [{"t": 1, "k": "multicast", "groups": GROUPS}]
        self._times = itertools.count(1000, 1000)
        self._clock = 2**32
        self._numbers: dict[str, int] = {}

    def put(self, kind: str, **record: Any) -> None:
        self.records.append({"t": next(self._times), "k": kind, **record})

    def start(self) -> None:
        for station in STATIONS:
            for client, level in enumerate(LEVELS, 1):
                self.put(
                    "connect", c=program(station, level), station=station, slot=level, client=client, level=level, group="token"
                )
        for group, stations in GROUPS.items():
            self._clock += 10
            members = [[s, client, program(s, level)] for s in stations for client, level in enumerate(LEVELS, 1)]
            for station in stations:
                for level in LEVELS:
                    place = [self._clock, 0, 0]
                    changes = {"members": members, "joined": members, "left": [], "reason": "join", "instance": 1}
                    self.put("group", c=program(station, level), g=group, p=place, **changes)

    def say(self, station: int, level: str, to: str, kind: str = "r") -> str:
        """A message to some groups, delivered to all members, done at preack."""
        sender = program(station, level)
        number = self._numbers[sender] = self._numbers.get(sender, 0) + 1
        name = f"{sender}.{number}.{kind}.{to}"
        self.put("send", c=sender, m=name, level="preack")
        self._clock += 10
        for receiver in STATIONS:
            groups = [g for g in groups_of(name) if receiver in GROUPS[g]]
            for slot in LEVELS if groups else ():
                place = [self._clock, station, number & 0xFFFF]
                origin = [station, LEVELS.index(level) + 1]
                self.put("message", c=program(receiver, slot), g=groups[0], m=name, p=place, whole=True, **{"from": origin})
        self.put("result", c=sender, m=name, r="done")
        return name


def program(station: int, level: str) -> str:
    return f"{station}.t{level[0]}.1"


def right() -> list[Record]:
    world = World()
    world.start()
    for station, to in itertools.product(STATIONS, ("a", "b", "a+b", "c", "a+b+c")):
        for level in LEVELS:
            world.say(station, level, to)
    for station in STATIONS:
        for level in LEVELS:
            world.say(station, level, "a+b+c", "l1")
    world.put("multicast", round=1, complete=True)
    for station in STATIONS:
        for level in LEVELS:
            world.put("end", c=program(station, level), why="bye")
    return world.records


def history(records: list[Record]) -> History:
    out = History(4, 3, finalists=STATIONS, slots=LEVELS)
    load(out, sorted(records, key=lambda r: int(r["t"])))
    return out


def of(records: list[Record], connection: str, kind: str) -> list[Record]:
    return [r for r in records if r["k"] == kind and r.get("c") == connection]


# ---- violations


def swapped(r: list[Record]) -> None:
    """At one program two messages come the other way round, with their places."""
    first, second = of(r, "2.tp.1", "message")[4:6]
    first["t"], second["t"] = second["t"], first["t"]


def swapped_with_places(r: list[Record]) -> None:
    """One program has another order, whose places grow: only the comparison with others shows it."""
    first, second = of(r, "2.tp.1", "message")[4:6]
    keys = ("m", "g", "from", "whole")
    one, two = ({key: x[key] for key in keys} for x in (first, second))
    first.update(two)
    second.update(one)


def cycle(r: list[Record]) -> None:
    """Three stations, three messages, each two of which only one station has both of: 1 before 2 before 3 before 1."""
    ring = [("1.tp.1", "1.to.1.1.r.a"), ("2.tp.1", "2.to.1.1.r.b"), ("3.tp.1", "3.to.1.1.r.c")]
    r[:] = [x for x in r if x["k"] != "message"]
    t = 10**9
    for k, (connection, name) in enumerate(ring):
        for place, m in ((10 + k, name), (20 + k, ring[(k + 1) % 3][1])):
            t += 1
            message = {"g": "a", "m": m, "p": [2**32 * 2 + place, 1, 0], "from": [int(m[0]), 1], "whole": True}
            r.append({"t": t, "k": "message", "c": connection, **message})


def hole(r: list[Record]) -> None:
    r.remove(of(r, "3.tp.1", "message")[4])


def hole_at_ordered(r: list[Record]) -> None:
    r.remove(of(r, "3.to.1", "message")[4])


def two_at_one_place(r: list[Record]) -> None:
    name = of(r, "2.tp.1", "message")[4]["m"]
    place = of(r, "2.tp.1", "message")[5]["p"]
    for x in r:
        if x["k"] == "message" and x["m"] == name and x["c"][0] != "2":
            x["p"] = place


def no_join(r: list[Record]) -> None:
    of(r, "2.tp.1", "group")[0]["joined"] = []


def view_differs(r: list[Record]) -> None:
    view = of(r, "2.tp.1", "group")[1]
    later = {**view, "t": view["t"] + 1, "p": [view["p"][0] + 1, 0, 0], "joined": [], "left": view["members"][:1]}
    r.append({**later, "members": view["members"]})


def stranger_in_group(r: list[Record]) -> None:
    of(r, "2.tp.1", "group")[0]["members"] = [[4, 1, "x"]]


def view_elsewhere(r: list[Record]) -> None:
    """The last views of a group have one place and different contents."""
    for number, connection in enumerate(("2.tp.1", "3.tp.1")):
        view = of(r, connection, "group")[-1]
        for again in (1, 2):
            left = view["members"][number : number + 1]
            members = [m for m in view["members"] if m not in left]
            place = [view["p"][0] + again, 0, 0]
            r.append({**view, "t": view["t"] + again, "g": "b", "p": place, "joined": [], "left": left, "members": members})


def wrong_group(r: list[Record]) -> None:
    next(x for x in of(r, "1.tp.1", "message") if groups_of(x["m"]) == ("a",))["g"] = "c"


def wrong_station(r: list[Record]) -> None:
    message = next(x for x in of(r, "1.tp.1", "message") if groups_of(x["m"]) == ("a",))
    r.append({**message, "c": "4.tp.1"})


def twice(r: list[Record]) -> None:
    message = of(r, "1.tp.1", "message")[-1]
    r.append({**message, "t": message["t"] + 1, "p": [message["p"][0] + 5, 1, 0]})


def unsent(r: list[Record]) -> None:
    for x in r:
        if x.get("m") == "4.tp.1.2.r.b" and x["k"] == "message":
            x["m"] = "4.tp.1.99.r.b"


def damaged(r: list[Record]) -> None:
    of(r, "1.tp.1", "message")[3]["whole"] = False


def overtakes(r: list[Record]) -> None:
    """Everywhere alike, so that only the sender's order is broken."""
    names = {"4.tp.1.1.r.a": "4.tp.1.3.r.a+b", "4.tp.1.3.r.a+b": "4.tp.1.1.r.a"}
    for x in r:
        if x["k"] == "message":
            x["m"] = names.get(x["m"], x["m"])


def left_out(r: list[Record]) -> None:
    """Told done, and nowhere."""
    r[:] = [x for x in r if not (x["k"] == "message" and x["m"] == "4.tp.1.2.r.b")]


def sent_late(r: list[Record]) -> None:
    """A message is sent after its sender got a later one."""
    for x in r:
        if x["k"] in ("send", "result") and x["m"] == "1.tp.1.1.r.a":
            x["t"] = of(r, "1.tp.1", "message")[-1]["t"] + 1 + (x["k"] == "result")


def undecided_and_done(r: list[Record]) -> None:
    detail = {"event": "reopened", "instance": 2, "members": [1, 2, 3, 4], "first": 1, "undecided": 2}
    r.append({"t": of(r, "4.tp.1", "end")[0]["t"] - 1, "k": "event", "c": "4.tp.1", "name": "reopened", "detail": detail})


def fenced(r: list[Record]) -> None:
    r.append(
        {"t": 2000 * 10**3, "k": "event", "c": "1.tp.1", "name": "fenced", "detail": {"event": "fenced", "at": 1, "with": 2}}
    )


def protocol_error(r: list[Record]) -> None:
    of(r, "1.tp.1", "end")[0].update(why="the daemon sent nonsense", error="ProtocolError")


def no_last_round(r: list[Record]) -> None:
    next(x for x in r if x.get("round"))["complete"] = False


def last_one_missing(r: list[Record]) -> None:
    r.remove(of(r, "2.tp.1", "message")[-1])


PLANTED: list[tuple[str, Callable[[list[Record]], None]]] = [
    ("places_grow", swapped),
    ("no_cycle", swapped_with_places),
    ("one_place", swapped_with_places),
    ("no_cycle", cycle),
    ("complete", hole),
    ("complete", hole_at_ordered),
    ("one_place", two_at_one_place),
    ("begins_with_join", no_join),
    ("views", view_differs),
    ("views", view_elsewhere),
    ("views", stranger_in_group),
    ("for_its_groups", wrong_group),
    ("for_its_groups", wrong_station),
    ("no_duplicate", twice),
    ("no_invention", unsent),
    ("no_invention", damaged),
    ("sender_order", overtakes),
    ("sender_order", left_out),
    ("causal", sent_late),
    ("acknowledged", left_out),
    ("undecided", undecided_and_done),
    ("no_breakdown", fenced),
    ("no_breakdown", protocol_error),
    ("convergence", no_last_round),
    ("convergence", last_one_missing),
]


def test_a_right_history_has_no_violation() -> None:
    report = judge(history(right()), GROUPS)
    assert not report.violations, report.text
    assert report.figures["sent"] == 48 and report.figures["sent_to_several"] == 24
    assert report.figures["delivered_all"] == 2 * report.figures["delivered_safe"] > 200


@pytest.mark.parametrize(("check", "plant"), PLANTED, ids=[f"{check}-{plant.__name__}" for check, plant in PLANTED])
def test_planted_violation_is_found(check: str, plant: Callable[[list[Record]], None]) -> None:
    records = right()
    plant(records)
    report = judge(history(records), GROUPS)
    assert check in report.violations, report.text


def test_every_check_has_a_planted_violation() -> None:
    assert {check for check, _ in PLANTED} == set(CHECKS)


def test_what_was_only_ordered_where_a_station_was_removed_is_not_judged() -> None:
    """The last messages of a program at ordered, whose station is removed, may be nobody else's; not so at preack."""
    for slot, excused in (("to", True), ("tp", False)):
        records = [x for x in right() if not (x.get("c", "")[0:4] in ("3.to", "3.tp") and x["k"] == "end")]
        records = [x for x in records if not (x["k"] == "message" and x["c"] in ("3.to.1", "3.tp.1") and ".l1." in x["m"])]
        last = of(records, "3.tp.1", "message")[-1]
        alone = {**last, "c": f"3.{slot}.1", "t": last["t"] + 1, "m": "4.tp.1.5.r.a+b+c", "p": [last["p"][0] + 1, 4, 5]}
        records = [x for x in records if not (x["k"] == "message" and x["m"] == "4.tp.1.5.r.a+b+c")]
        found = judge(history([*records, alone]), GROUPS).violations
        assert ("complete" not in found) is excused, found


def test_a_task_survives_its_text() -> None:
    task = Task(GROUPS, ("token",), 12.5, 4)
    assert Task.parse(task.text()) == task and task.programs == 8
