"""Reads a scenario's TOML. All errors are reported at once, each with its key and what is allowed there."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from ...daemon import config
from ...daemon.client import Order
from ..histories.multicaster import RATE, Task
from ..histories.recorder import LEVELS, Load
from ..lab import files, impair
from ..lab.impair import Impairment
from ..lab.lab import MTU_MAX, MTU_MIN, STATIONS_MAX
from ..lab.network import LINKS_MAX
from .model import KINDS, RANDOM_KINDS, Entry, Expect, Joining, Kind, Pick, Range, Scenario, ScenarioError, Switching, Window

T = TypeVar("T")
Table = Mapping[str, Any]

NEEDS: Final = ("netem",)
END_MS_MAX: Final = 3_600_000
TAIL_MS: Final = 1_000
"""Time from the last action of the time line to the end, unless the file has another one."""
GROUPS_MAX: Final = 8
BUS_LEVELS: Final = ("sent", "ack")
"""On a bus what is not acknowledged may be taken back."""
SIZE_MAX: Final = 32 * 1024 * 1024
STATE_SIZE_MAX: Final = 4 << 30
RATE_MAX: Final = 10_000.0
BURST_MAX: Final = 1_000
MULTICAST_GROUPS_MAX: Final = 16
MULTICAST_ORDERS: Final[tuple[Order, ...]] = ("token", "abcast")
_SIZE: Final = re.compile(r"(\d+)\s*([kM]?)(?:i?B)?")
_TOP: Final = (
    "about",
    "stations",
    "seed",
    "end",
    "needs",
    "absent",
    "network",
    "options",
    "load",
    "state",
    "names",
    "multicast",
    "at",
    "expect",
)
_LOAD: Final = ("rate", "burst", "sizes", "levels", "senders")
_EXPECT: Final = (
    "members",
    "changes",
    "removed",
    "silence_max",
    "sent",
    "refused",
    "orders_refused",
    "lost",
    "cut",
    "said",
    "silent",
    "serves",
)
_IMPAIRMENTS: Final = {f.name.removesuffix("_ns").removesuffix("_bit"): f for f in fields(Impairment)}
"""By the word in a file: ``delay`` is a time and ``rate`` a rate, whatever their unit inside."""


def load(path: Path, stations: int | None = None) -> Scenario:
    """Read a file; stations: another number than in the file. Raises ScenarioError, OSError."""
    return parse(path.read_text(encoding="utf-8", errors="replace"), path.stem, str(path), stations)


def parse(text: str, name: str, where: str = "scenario", stations: int | None = None) -> Scenario:
    """Check the text of a scenario. Raises ScenarioError with everything that is wrong."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(where, [f"no TOML: {error}"]) from None
    reader = _Reader(stations)
    scenario = reader.scenario(name, tree, where)
    if reader.problems:
        raise ScenarioError(where, reader.problems)
    return scenario


def shown(value: object) -> str:
    """A value as it may have stood in the file, not too long."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def _did_you_mean(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"allowed: {', '.join(known)}"


# ---- values: each takes the value of the file and raises ValueError with what is expected


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\n" in value:
        raise ValueError("expected one line of text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"expected an integer {low} to {high}")
        return value

    return convert


def _number(low: float, high: float) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"expected a number {low:g} to {high:g}")
        return float(value)

    return convert


def _one_of(words: Collection[str]) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(_did_you_mean(str(value), words))
        return value

    return convert


def _list_of(convert: Callable[[Any], T], what: str) -> Callable[[Any], tuple[T, ...]]:
    def convert_all(value: Any) -> tuple[T, ...]:
        if not isinstance(value, list) or not value:
            raise ValueError(f"expected a list of {what}")
        return tuple(convert(item) for item in value)

    return convert_all


def _ms(text: str) -> int:
    return impair.parse_time_ns(text) // 1_000_000


def _time(value: Any) -> int:
    try:
        return _ms(value)
    except (ValueError, TypeError):
        raise ValueError('expected a time, as in "2s" or "500ms"') from None


def _times(value: Any) -> tuple[int, int]:
    """``2s`` or ``1s-3s``, milliseconds."""
    try:
        first, dash, last = value.partition("-")
        low, high = _ms(first), _ms(last if dash else first)
    except (ValueError, AttributeError):
        raise ValueError('expected a time, as in "2s", or a stretch to draw it from, as in "1s-3s"') from None
    if low > high or high > END_MS_MAX:
        raise ValueError(f"times grow, up to {END_MS_MAX // 1000} s")
    return low, high


def _bytes(value: Any) -> int:
    match = _SIZE.fullmatch(str(value).strip())
    size = int(match[1]) * {"": 1, "k": 1024, "M": 1024 * 1024}[match[2]] if match else -1
    if isinstance(value, bool) or not 0 <= size <= SIZE_MAX:
        raise ValueError('expected a number of bytes, as in 1300, "64k" or "1k-6k", up to 32M')
    return size


def state_size(value: Any) -> int:
    """Bytes of a state. Raises ValueError."""
    match = re.fullmatch(r"(\d+)\s*([kMG]?)(?:i?B)?", str(value).strip())
    size = int(match[1]) * {"": 1, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30}[match[2]] if match else -1
    if isinstance(value, bool) or not 0 <= size <= STATE_SIZE_MAX:
        raise ValueError('expected a number of bytes, as in "4M" or "1G", up to 4G')
    return size


def _clock(value: Any) -> int:
    """By how much a clock is wrong, seconds. Raises ValueError."""
    match = re.fullmatch(r"([+-]?)(\d{1,5})([smhd])", str(value).strip())
    if match is None or not int(match[2]):
        raise ValueError('expected how far a clock is off, as in "1d", "+90m" or "-1h"')
    return int(f"{match[1]}{match[2]}") * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[3]]


def _sizes(value: Any) -> tuple[int, int]:
    first, dash, last = value.partition("-") if isinstance(value, str) else (value, "", "")
    low, high = _bytes(first), _bytes(last if dash else first)
    if low > high:
        raise ValueError("sizes grow, as in 1k-6k")
    return low, high


def _burst(value: Any) -> tuple[int, int]:
    values = value if isinstance(value, list) else [value, value]
    if len(values) != 2:
        raise ValueError("expected a number of messages, or two bounds")
    low, high = (_integer(1, BURST_MAX)(each) for each in values)
    if low > high:
        raise ValueError("bounds grow")
    return low, high


def _range(value: Any) -> Range:
    count = _integer(0, 2**31)
    wanted = "expected a number, or bounds as in { min = 2, max = 6 }, one of which may be left out"
    if isinstance(value, dict):
        if not value or set(value) - {"min", "max"}:
            raise ValueError(wanted)
        found = Range(count(value.get("min", 0)), None if "max" not in value else count(value["max"]))
        if found.high is not None and found.low > found.high:
            raise ValueError("min is above max")
        return found
    try:
        return Range(count(value), count(value))
    except ValueError:
        raise ValueError(wanted) from None


def _impairment(name: str, value: Any) -> Any:
    """A value for one field of Impairment: in people's words (5%, 5ms, 1mbit), else as it is."""
    own = _IMPAIRMENTS[name]
    parse = getattr(impair, f"parse_{name}", None)
    if own.name.endswith("_ns"):
        parse = impair.parse_time_ns
    elif own.name.endswith("_bit"):
        parse = impair.parse_rate_bit
    elif isinstance(own.default, float):
        parse = impair.parse_fraction
    if isinstance(value, str) and parse is not None:
        return parse(value)
    if isinstance(value, list):
        return tuple(impair.parse_fraction(each) if isinstance(each, str) else each for each in value)
    wanted = {float: "a share as in 5%", int: 'a number, or text with its unit, as in "5ms"', str: "text"}[type(own.default)]
    fits = (
        isinstance(value, str) if isinstance(own.default, str) else isinstance(value, int | float) and not isinstance(value, bool)
    )
    if not fits or (own.name.endswith(("_ns", "_bit")) and value != 0):
        raise ValueError(f"expected {wanted}")
    return value


class _Reader:
    """Walks the tree, noting everything that is wrong."""

    def __init__(self, stations: int | None) -> None:
        self.problems: list[str] = []
        self._given = stations
        self._n = 0
        self._links = 1
        self._base = Impairment()
        self._levels: tuple[str, ...] = LEVELS
        """What senders may wait for."""
        self._netem: list[str] = []
        """Where sch_netem is needed, and for what."""

    def say(self, path: str, problem: str) -> None:
        self.problems.append(f"{path}: {problem}")

    def get(self, table: Table, path: str, key: str, convert: Callable[[Any], T], default: Any) -> T:
        """The value of a key as ``convert`` makes it; the default when it is not there, or wrong."""
        if key not in table:
            return cast("T", default)
        try:
            return convert(table[key])
        except (ValueError, TypeError) as error:
            self.say(f"{path}.{key}".lstrip("."), f"{shown(table[key])}: {error}")
            return cast("T", default)

    def table(self, value: Any, path: str, allowed: Collection[str], required: Collection[str] = ()) -> Table:
        """The value as a table, without unknown keys."""
        if not isinstance(value, dict):
            self.say(path, f"{shown(value)}: expected a table")
            return {}
        for key in value:
            if key not in allowed:
                self.say(f"{path}.{key}".lstrip("."), f"unknown key; {_did_you_mean(key, allowed)}")
        for key in required:
            if key not in value:
                self.say(path or "scenario", f"{key} is missing")
        return {key: found for key, found in value.items() if key in allowed}

    # ---- stations

    def numbers(self, value: Any) -> tuple[int, ...]:
        """``all``, a number, a list, or text like 1-3,5."""
        if value == "all":
            return tuple(range(1, self._n + 1))
        found: list[int] = []
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, int) and not isinstance(part, bool):
                found.append(part)
                continue
            for piece in part.split(",") if isinstance(part, str) else [""]:
                match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", piece)
                if not match:
                    raise ValueError('expected stations: 2, [1, 3], "1-3" or "all"')
                found += range(int(match[1]), int(match[2] or match[1]) + 1)
        if wrong := [number for number in found if not 1 <= number <= self._n]:
            raise ValueError(f"station {wrong[0]} does not exist: there are 1 to {self._n}")
        if len(set(found)) != len(found):
            raise ValueError("a station is named twice")
        return tuple(sorted(found))

    def pick(self, value: Any) -> Pick:
        """Stations, or ``random`` or ``random 2``: this number of them, drawn from the seed."""
        if isinstance(value, str) and (match := re.fullmatch(r"\s*random(?:\s+(\d+))?\s*", value)):
            draw = int(match[1] or 1)
            if not 1 <= draw <= self._n:
                raise ValueError(f"1 to {self._n} stations can be drawn")
            return Pick(draw=draw)
        try:
            numbers = self.numbers(value)
        except ValueError as error:
            raise ValueError(str(error).replace('or "all"', '"all", "random" or "random 2"')) from None
        if not numbers:
            raise ValueError("expected at least one station")
        return Pick(numbers)

    def parts(self, value: Any) -> tuple[tuple[int, ...], ...]:
        if not isinstance(value, list) or not value:
            raise ValueError("expected a list of groups, as in [[1, 2], [3]]")
        groups = tuple(self.numbers(group) for group in value)
        named = [number for group in groups for number in group]
        if len(set(named)) != len(named):
            raise ValueError("a station is in two groups")
        return groups

    # ---- the parts of the file

    def scenario(self, name: str, tree: Table, where: str) -> Scenario:
        top = self.table(tree, "", _TOP, ("about", "stations", "expect"))
        own = self.get(top, "", "stations", _integer(1, STATIONS_MAX), 3)
        self._n = self._given or own
        network = self.table(top.get("network", {}), "network", ("medium", "links", "mtu", *_IMPAIRMENTS))
        medium = self.get(network, "network", "medium", _one_of(("switched", "bus")), "switched")
        self._links = self.get(network, "network", "links", _integer(1, LINKS_MAX), 1)
        if medium == "bus":
            self._levels = BUS_LEVELS
            if self._links > 1:
                self.say("network.links", "a bus has one")
        changes = self.impairments(network, "network", Impairment())
        self._base = Impairment().changed(changes)
        timeline = self.timeline(top.get("at", []))
        last = max((entry.t[1] + (entry.lasts or (0, 0))[1] for entry in timeline), default=0)
        end_ms = self.get(top, "", "end", _time, last + TAIL_MS)
        if end_ms < last:
            self.say(
                "end", f"{end_ms / 1000:g} s is before the last thing on the time line, which may last until {last / 1000:g} s"
            )
        needs = self.get(top, "", "needs", _list_of(_one_of(NEEDS), "words"), ())
        if self._netem and "netem" not in needs:
            self.say("needs", f'"netem" is missing: {"; ".join(self._netem)} needs it')
        options, parsed = self.options(top.get("options", {}), medium)
        groups, loads = self.load(top.get("load", {}))
        return Scenario(
            name=name,
            about=self.get(top, "", "about", _text, ""),
            stations=self._n,
            seed=self.get(top, "", "seed", _integer(0, 2**63), 1),
            end_ms=end_ms,
            timeline=timeline,
            expect=self.expect(top.get("expect", {}), end_ms),
            needs=needs,
            absent=self.get(top, "", "absent", self.numbers, ()),
            medium=medium,
            links=self._links,
            mtu=self.get(network, "network", "mtu", _integer(MTU_MIN, MTU_MAX), 1500),
            impairment=self._base,
            options=options,
            loads=loads,
            groups=groups,
            joining=self.joining(top.get("state"), end_ms),
            switching=self.switching(top.get("names"), end_ms),
            multicasting=self.multicasting(top.get("multicast"), medium),
            quorum=(parsed.cluster.quorum if parsed else 0) or self._n // 2 + 1,
            fail_timeout_ms=parsed.cluster.fail_timeout_ms if parsed else 400,
            source=where,
        )

    def impairments(self, table: Table, path: str, base: Impairment) -> dict[str, Any]:
        """Changes by the names of Impairment's fields; those of a table that it has among others."""
        changes: dict[str, Any] = {}
        for key in table:
            if key in _IMPAIRMENTS:
                missing = object()
                value = self.get(table, path, key, lambda v, key=key: _impairment(key, v), missing)  # type: ignore[misc]
                if value is not missing:
                    changes[_IMPAIRMENTS[key].name] = value
        try:
            wanted = base.changed(changes)
        except (ValueError, TypeError) as error:
            self.say(path, str(error))
            return {}
        if names := wanted.needs_netem:
            self._netem.append(f"{path}: {', '.join(names)}")
        return changes

    def options(self, value: Any, medium: str) -> tuple[dict[str, dict[str, Any]], config.Config | None]:
        """What is added to every zenjund.toml, checked as the daemon would."""
        given = {
            name: dict(self.table(table, f"options.{name}", table if isinstance(table, dict) else ()))
            for name, table in self.table(value, "options", ("cluster", "station", "clients", "links", "log")).items()
        }
        tables: dict[str, dict[str, Any]] = {
            "cluster": {"name": "scenario", "stations": self._n, "medium": medium},
            "station": {"id": 1, "interface": "eth0"},
        }
        if self._links > 1:
            tables["links"] = {"count": self._links}
        taken_keys = ("name", "stations", "medium", "id", "interface", "socket", "state_dir", "count")
        for name, table in given.items():
            if taken := [key for key in taken_keys if key in table]:
                self.say(f"options.{name}.{taken[0]}", "the lab sets this option")
            tables.setdefault(name, {}).update(table)
        try:
            return given, config.parse(files.to_toml(tables))
        except (config.ConfigError, TypeError) as error:
            for problem in error.problems if isinstance(error, config.ConfigError) else [error]:
                self.say("options", getattr(problem, "message", str(problem)))
            return given, None

    def load_changes(self, table: Table, path: str) -> dict[str, Any]:
        """The load of a [load] or an entry of the time line, by the names of ``Load``, and ``senders``."""
        converters: dict[str, Callable[[Any], Any]] = {
            "rate": _number(0, RATE_MAX),
            "burst": _burst,
            "sizes": _list_of(_sizes, "sizes"),
            "levels": _list_of(_one_of(tuple(dict.fromkeys(self._levels))), "levels"),
            "senders": self.numbers,
        }
        return {key: self.get(table, path, key, converters[key], None) for key in converters if key in table}

    def load(self, value: Any) -> tuple[int, dict[int, Load]]:
        table = self.table(value, "load", (*_LOAD, "groups"))
        changes = self.load_changes(table, "load")
        loads = changed_loads(dict.fromkeys(range(1, self._n + 1), Load(levels=self._levels)), changes)
        return self.get(table, "load", "groups", _integer(1, GROUPS_MAX), 1), loads

    def joining(self, value: Any, end_ms: int) -> Joining | None:
        if value is None:
            return None
        table = self.table(value, "state", ("joiner", "at", "size", "rate", "gap", "within"), ("joiner", "at"))
        at_ms = self.get(table, "state", "at", _time, 0)
        if at_ms > end_ms:
            self.say("state.at", f"it is after the end ({end_ms / 1000:g} s)")
        if self._n < 2:
            self.say("state", "expected two stations: one that joins, and one that has the state")
        return Joining(
            self.get(table, "state", "joiner", _integer(1, self._n), 1),
            at_ms,
            self.get(table, "state", "size", state_size, 4 << 20),
            self.get(table, "state", "rate", _number(0, RATE_MAX), 1000.0),
            self.get(table, "state", "gap", _time, 1000),
            self.get(table, "state", "within", _time, 30_000),
        )

    def switching(self, value: Any, end_ms: int) -> Switching | None:
        """[names]."""
        if value is None:
            return None
        table = self.table(value, "names", ("wrong", "clock", "at", "within"), ("wrong", "clock", "at"))
        at_ms = self.get(table, "names", "at", _time, 0)
        if at_ms > end_ms:
            self.say("names.at", f"it is after the end ({end_ms / 1000:g} s)")
        if self._n < 3:
            self.say("names", "expected three stations: one of two clocks is no majority")
        return Switching(
            self.get(table, "names", "wrong", _integer(1, self._n), 1),
            self.get(table, "names", "clock", _clock, 0),
            at_ms,
            self.get(table, "names", "within", _time, 5_000),
        )

    def multicasting(self, value: Any, medium: str) -> Task | None:
        """[multicast]."""
        if value is None:
            return None
        table = self.table(value, "multicast", ("groups", "orders", "rate"), ("groups",))
        if medium == "bus":
            self.say("multicast", "on a bus no group has these orders")
        named = table.get("groups")
        if not isinstance(named, dict) or not 1 <= len(named) <= MULTICAST_GROUPS_MAX:
            self.say("multicast.groups", f"expected 1 to {MULTICAST_GROUPS_MAX} groups, as in {{ a = [1, 2], b = [2, 3] }}")
            named = {}
        for name in named:
            if not re.fullmatch(r"[a-z0-9]{1,8}", name):
                self.say(f"multicast.groups.{name}", "expected a name of 1 to 8 small letters and digits")
        groups = {name: self.get(named, "multicast.groups", name, self.numbers, ()) for name in named}
        words = self.get(table, "multicast", "orders", _list_of(_one_of(MULTICAST_ORDERS), "orders"), MULTICAST_ORDERS)
        orders: tuple[Order, ...] = tuple(order for order in MULTICAST_ORDERS if order in words)
        rate = self.get(table, "multicast", "rate", _number(0, RATE_MAX), RATE)
        return Task(groups, orders, rate, self._n)

    def timeline(self, value: Any) -> tuple[Entry, ...]:
        if not isinstance(value, list):
            self.say("at", "write each thing on the time line as a table [[at]]")
            return ()
        return tuple(entry for number, item in enumerate(value, 1) if (entry := self.entry(item, f"at[{number}]")) is not None)

    def entry(self, value: Any, path: str) -> Entry | None:
        do = value.get("do") if isinstance(value, dict) else None
        kind = KINDS.get(do) if isinstance(do, str) else None
        if do is None or kind is None:
            wanted = f"do = {shown(do)}: {_did_you_mean(str(do), KINDS)}" if do is not None else "expected t and do"
            self.say(path, wanted)
            return None
        path = f"{path} ({do})"
        table = self.table(value, path, self._keys(do, kind), ("t", *kind.required, *(("for",) if do == "random" else ())))
        t = self.get(table, path, "t", _times, (0, 0))
        values: dict[str, Any] = {}
        if do == "impair":
            values = self.impairments(table, path, self._base)
            if not any(key in _IMPAIRMENTS for key in table):
                self.say(path, f"name at least one impairment: {', '.join(_IMPAIRMENTS)}")
        elif do == "loss":
            values = self.impairments({"loss": table["share"]} if "share" in table else {}, path, self._base)
        elif do == "load":
            values = self.load_changes(table, path)
        elif do == "random":
            values["faults"] = self.get(table, path, "faults", _list_of(_one_of(RANDOM_KINDS), "faults"), RANDOM_KINDS)
        for key, convert in self._others().items():
            if key in table:
                values[key] = self.get(table, path, key, convert, None)
        others = self.get(table, path, "from" if do == "cut" else "by", self.pick, Pick())
        whom = self.get(table, path, "to", self.pick, Pick()) if do == "cut" else Pick()
        stations = self.get(table, path, "stations", self.pick, Pick(self.numbers("all")))
        if do == "cut":
            stations, others = others, whom
        if do == "rename" and "to" in table:
            values["to"] = self.get(table, path, "to", _text, "")
        if self._links < kind.links_min:
            self.say(path, f"there must be {kind.links_min} links: network.links is {self._links}")
        return Entry(
            do,
            t,
            self.get(table, path, "for", _times, None),
            stations,
            others,
            self.get(table, path, "groups", self.parts, ()),
            values,
            self.get(table, path, "link", _integer(1, self._links), 0),
        )

    @staticmethod
    def _keys(do: str, kind: Kind) -> tuple[str, ...]:
        keys = ("t", "do", *kind.required, *kind.optional, *(("link",) if kind.links else ()), *(("for",) if kind.ends else ()))
        return (*keys, *_IMPAIRMENTS) if do == "impair" else keys

    @staticmethod
    def _others() -> dict[str, Callable[[Any], Any]]:
        mtu = _integer(MTU_MIN, MTU_MAX)
        return {"both": _flag, "mtu": mtu, "port_mtu": mtu, "mac": _mac}

    def expect(self, value: Any, end_ms: int) -> Expect:
        table = self.table(value, "expect", _EXPECT)
        everybody = self.numbers("all")
        windows = {name: self.windows(table.get(name, []), f"expect.{name}", end_ms) for name in ("silent", "serves")}
        return Expect(
            members=self.get(table, "expect", "members", self.numbers, everybody),
            changes=self.get(table, "expect", "changes", _range, None),
            removed=self.get(table, "expect", "removed", self.numbers, None),
            silence_max=self.get(table, "expect", "silence_max", _number(1, 1000), None),
            sent=self.get(table, "expect", "sent", _range, Range(1)),
            refused=self.get(table, "expect", "refused", _range, None),
            orders_refused=self.get(table, "expect", "orders_refused", _range, Range(0, 0)),
            lost=self.get(table, "expect", "lost", _range, None),
            cut=self.get(table, "expect", "cut", _range, None),
            said=self.get(table, "expect", "said", _list_of(_text, "texts"), ()),
            **windows,
        )

    def windows(self, value: Any, path: str, end_ms: int) -> tuple[Window, ...]:
        if not isinstance(value, list):
            self.say(path, f"write each window as a table [[{path}]]")
            return ()
        found = []
        for number, item in enumerate(value, 1):
            here = f"{path}[{number}]"
            table = self.table(item, here, ("stations", "from", "until"), ("stations", "from", "until"))
            begin, end = (self.get(table, here, key, _time, 0) for key in ("from", "until"))
            if {"from", "until"} <= set(table) and not begin < end <= end_ms:
                self.say(here, f"from before until, and until not after the end ({end_ms / 1000:g} s)")
            found.append(Window(self.get(table, here, "stations", self.numbers, ()), begin, end))
        return tuple(found)


def _mac(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f][26ae](:[0-9a-f]{2}){5}", value):
        raise ValueError('expected a locally administered address, as in "02:00:00:00:00:01"')
    return value


def changed_loads(loads: Mapping[int, Load], changes: Mapping[str, Any]) -> dict[int, Load]:
    """The loads after changes by the names of ``Load``; stations that are not among ``senders`` send nothing."""
    own = {key: value for key, value in changes.items() if key != "senders" and value is not None}
    senders = changes.get("senders")
    changed = {station: replace(load, **own) for station, load in loads.items()}
    if senders is None:
        return changed
    rate = own.get("rate") or max((load.rate for load in changed.values()), default=0.0) or Load().rate
    return {s: replace(load, rate=rate if s in senders else 0.0) for s, load in changed.items()}
