"""What programs and careless stations send in the simulation of the directory."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

from zenjun.proto.service.directory import operations as ops
from zenjun.proto.service.directory.entries import NOWHERE, Place, Slot, Target
from zenjun.proto.service.directory.messages import Id, Update, encode

NAMES: Final = ("a", "b", "c", "db.plant", "x.db.plant", "web", "s1.station")
ADDRESSES: Final = (
    "tcp://10.0.0.1:80",
    "tcp://10.0.0.2:80",
    "mac:02:00:00:00:00:07",
    "station:1",
    "station:2/editor",
    "tcp://h:1",
)
USERS: Final = ("user:u1", "user:u1", "user:u2")
ZONES: Final = ("default", "plant", "north")
SLOTS: Final = ("mon-fri 08:00 Asia/Tokyo", "18:00")


class Load:
    """Random operations. ``version_of`` knows versions that conditions can name."""

    def __init__(self, r: random.Random, version_of: Callable[[str], Place], names: tuple[str, ...] = NAMES) -> None:
        self.r = r
        self.version_of = version_of
        self.names = names
        self.count = 0

    def id(self) -> Id:
        self.count += 1
        return Id(f"{self.r.randrange(3):016x}", self.count)

    def roles(self) -> tuple[str, ...]:
        roles = {self.r.choice(USERS)}
        if self.r.random() < 0.3:
            roles.add("operator")
        if self.r.random() < 0.3:
            roles.add("group:ops")
        return tuple(sorted(roles))

    def name(self) -> str:
        return self.r.choice(self.names)

    def condition(self, name: str) -> Place | None:
        kind = self.r.randrange(8)
        return NOWHERE if kind == 0 else self.version_of(name) if kind == 1 else (5, 1, 0) if kind == 2 else None

    def targets(self, least: int) -> tuple[Target, ...]:
        r = self.r
        some = [
            Target(a, r.choice([0, 0, 1]), r.choice([0, 1, 7]), r.choice(["", "", "station:1", "station:3"]))
            for a in r.sample(ADDRESSES, r.randint(least, 3))
        ]
        return tuple(sorted(some, key=lambda t: t.key))

    def addresses(self, least: int = 1) -> tuple[str, ...]:
        return tuple(self.r.sample(ADDRESSES, self.r.randint(least, 2)))

    def zone(self) -> str:
        return self.r.choice(["", "", "", *ZONES])

    def operation(self, now: int) -> ops.Operation:
        r, name = self.r, self.name()
        condition = self.condition(name)
        end = now + r.randint(-5, 60) if r.random() < 0.5 else 0
        match r.randrange(16):
            case 0 | 1 | 2:
                meta = (("k", r.choice(["v", "é", '"\\'])),) if r.random() < 0.2 else ()
                selection = r.choice(["all", "first", "spread"])
                return ops.Set(name, self.targets(0), selection, r.choice([0, 1, 60]), meta, self.zone(), condition)
            case 3:
                return ops.Add(name, self.targets(1), condition)
            case 4:
                return ops.Drop(name, self.addresses(), condition)
            case 5 | 6 | 7:
                return ops.Alias(name, r.choice([*self.names, "missing"]), 1, (), self.zone(), condition)
            case 8:
                return ops.Remove(name, condition)
            case 9:
                return ops.Move(name, r.choice(ZONES), condition)
            case 10:
                addresses = self.addresses(0)
                return ops.Switch(name, addresses, end if addresses else 0, condition)
            case 11:
                address = r.choice([*ADDRESSES, "station:2"])
                return ops.In(address) if r.random() < 0.4 else ops.Out(address, end)
            case 12:
                return self.schedule(name, now, condition)
            case 13:
                return ops.Take(name, condition)
            case _:
                return self.zone_row()

    def schedule(self, name: str, now: int, condition: Place | None) -> ops.SetSchedule:
        r = self.r
        if r.random() < 0.2:
            return ops.SetSchedule(name, (), condition=condition)
        slots = tuple(Slot(when, self.addresses()) for when in SLOTS)
        last = now - r.randint(1, 40) if r.random() < 0.5 else 0
        due = now + r.randint(1, 40) if r.random() < 0.8 else 0
        return ops.SetSchedule(name, slots, r.randrange(2) if last else -1, last, due, r.randrange(2) if due else 0, condition)

    def zone_row(self) -> ops.SetZone:
        r, zone = self.r, self.r.choice(ZONES)
        if r.random() < 0.25:
            return ops.SetZone(zone, remove=True)
        patterns = () if zone == "default" else tuple(sorted(r.sample(["*.plant", "*.db.plant", "web"], r.randrange(3))))
        admins = ("group:ops",) if r.random() < 0.5 else ()
        writers = r.choice([(), ("*",), ("user:u1",), ("station:2", "user:u2")])
        return ops.SetZone(zone, admins, writers, patterns, r.choice([0, 0, 2]))

    def update(self, now: int, operation: ops.Operation | None = None) -> Update:
        if operation is not None:
            return Update(self.id(), self.roles(), (operation,))
        operations: list[ops.Operation] = []
        for _ in range(self.r.choice([1, 1, 1, 2, 3])):
            op = self.operation(now)
            if not (isinstance(op, ops.Take) and any(isinstance(o, ops.Take) for o in operations)):
                operations.append(op)
        return Update(self.id(), self.roles(), tuple(operations))

    # ---- what nobody who works right sends

    def bad(self, now: int) -> bytes:
        """A message that every station must take for malformed."""
        r = self.r
        update = Update(self.id(), ("user:u1",), (ops.Set("a", (Target(ADDRESSES[0]),), meta=(("k", "v"),)),))
        good = encode(update)
        row = json.loads(good[3:])
        match r.randrange(6):
            case 0:
                return good[: r.randrange(len(good))]
            case 1:
                return bytes(r.randrange(256) for _ in range(r.randrange(40)))
            case 2:
                return good[:3] + r.choice(SPELLINGS)(good[3:])
            case 3:
                return good[:2] + b"\0" + good[3:]
            case _:
                r.choice(DEFECTS)(row)
                return good[:3] + json.dumps(row, sort_keys=True, separators=(",", ":")).encode()


SPELLINGS: Final[tuple[Callable[[bytes], bytes], ...]] = (
    lambda data: data + b" ",
    lambda data: b" " + data,
    lambda data: data.replace(b":", b": ", 1),
    lambda data: data.replace(b'"k":"update"', b'"k":"update","k":"update"'),
    lambda data: data.replace(b'"update"', b'"\\u0075pdate"'),
    lambda data: data.replace(b'"c":', b'"c":0'),
    lambda data: data.replace(b'"c":', b'"c":-'),
    lambda data: data.replace(b'"c":', b'"c":1e'),
    lambda data: data.replace(b'"op":"set"', b'"op":"set","op":"rm"'),
    lambda data: b"[" * 50000,
    lambda data: b"[" + data + b"]",
    lambda data: data[:-1] + b',"z":0}' + b" " * 61440,
    lambda data: data.replace(b'"v"', b'"\xc3\xa9"'),
    lambda data: data.replace(b'"v"', b'"\\ud800"'),
    lambda data: data.replace(b'"v"', b"NaN"),
    lambda data: data.replace(b'"v"', b"9" * 5000),
)
"""Other ways to write a message, and what is no JSON."""


def _op(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(row: dict[str, Any]) -> None:
        row["o"][0][key] = value

    return change


def _top(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(row: dict[str, Any]) -> None:
        row[key] = value

    return change


DEFECTS: Final[tuple[Callable[[dict[str, Any]], None], ...]] = (
    _op("n", "A"),
    _op("n", "a..b"),
    _op("n", "a" * 64),
    _op("n", "ä"),
    _op("n", ["a"]),
    _op("n", None),
    _op("op", "explode"),
    _op("op", 1),
    _op("a", [["tcp://10.0.0.1:80", 0, 1, ""]] * 2),
    _op("a", [["tcp://10.0.0.1:80", True, 1, ""]]),
    _op("a", [["tcp://10.0.0.1:80", 0, 65536, ""]]),
    _op("a", [["tcp://10.0.0.1:80", 0, 1, "1.1.1"]]),
    _op("a", [["tcp://10.0.0.1:80", 0, 1]]),
    _op("a", [[f"tcp://10.0.0.1:{i:05d}", 0, 1, ""] for i in range(65)]),
    _op("a", [["tcp://b:1", 0, 1, ""], ["tcp://a:1", 0, 1, ""]]),
    _op("a", [["mac:02:00:00:00:00:0G", 0, 1, ""]]),
    _op("a", [["station:65", 0, 1, ""]]),
    _op("a", [["station:01", 0, 1, ""]]),
    _op("a", [["no address", 0, 1, ""]]),
    _op("m", {"k": "\n"}),
    _op("m", {}),
    _op("m", {"k": "x" * 1024}),
    _op("m", {"": "x"}),
    _op("m", {"k": {"k": {"k": {"k": {"k": {}}}}}}),
    _op("s", "best"),
    _op("s", "all"),
    _op("t", 86401),
    _op("t", 1.5),
    _op("z", "No"),
    _op("if", "1.2"),
    _op("if", "01.1.1"),
    _op("q", 1),
    _top("o", []),
    _top("o", [{"n": "a", "op": "take"}, {"n": "b", "op": "take"}]),
    _top("o", [{"n": "a", "op": "rm"}] * 65),
    _top("o", [1]),
    _top("r", []),
    _top("r", ["user:a", "user:b"]),
    _top("r", ["user:b", "operator"]),
    _top("r", ["station:1", "user:b"]),
    _top("r", ["user:b", "user:b"]),
    _top("r", ["user:b", 1]),
    _top("i", "0123456789ABCDEF"),
    _top("i", 7),
    _top("c", 1 << 64),
    _top("c", True),
    _top("f", 4),
    _top("k", "upgrade"),
    _top("k", ["update"]),
)
"""Members that no update has."""
