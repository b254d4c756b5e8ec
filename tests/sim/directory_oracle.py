"""A plain reference for the directory: dictionaries, copied whole before each update, looked through from end to end.

It shares with the machine the types of operations and the syntax of names, and nothing of what it checks: rows, sums, rights,
conditions, leases, queues, timers, aliases and outcomes are written here a second time, from the rules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from zenjun.proto.service.directory import operations as ops
from zenjun.proto.service.directory.entries import Place, Who

Lease = tuple[int, int, int]
Dict = dict[str, Any]
NOWHERE: Final[Place] = (0, 0, 0)
STATIONS: Final = {f"s{k}.station" for k in range(1, 65)}

_MUTABLE: Final = frozenset((dict, list))


class No(Exception):
    """An operation that is refused."""


def text(place: Sequence[int]) -> str:
    return ".".join(str(n) for n in place)


def copied(value: Any) -> Any:
    """A copy down to what cannot change; ``copy.deepcopy`` needs several times as long, half of a run."""
    if type(value) is dict:
        return {k: copied(v) if type(v) in _MUTABLE else v for k, v in value.items()}
    if type(value) is list:
        return [copied(v) if type(v) in _MUTABLE else v for v in value]
    return value


class Oracle:
    """The directory at one place of the order."""

    def __init__(self) -> None:
        self.entries: dict[str, Dict] = {}
        self.zones: dict[str, Dict] = {}
        self.outs: dict[str, int] = {}
        self.queues: dict[str, list[tuple[Lease, str, int, int]]] = {}
        self.cursors: dict[str, int] = {}
        self.outcomes: dict[tuple[str, int], tuple[Place, str]] = {}
        self.members: dict[Who, list[int]] = {}
        self.begun = False
        """No view has come since a START."""
        """[active, largest DUE]"""
        self.time = 0
        self.fired: list[tuple[str, int]] = []
        """(name, instant) of slots that have taken effect."""

        self._sum: int | None = None

    def copy(self) -> Oracle:
        """The reference as it is now; one that is kept is not changed any more."""
        made = Oracle()
        made.__dict__ = copied(self.__dict__)
        made._sum = None
        return made

    def kept_sum(self) -> int:
        """``sum`` of one that is not changed any more."""
        if self._sum is None:
            self._sum = self.sum()
        return self._sum

    # ---- rows and sums

    def row(self, name: str) -> str:
        e = self.entries[name]
        row: Dict = {"k": e["kind"], "n": name, "o": e["owner"], "v": text(e["version"]), "z": e["zone"]}
        if e["kind"] == "alias":
            row["l"] = e["alias"]
        else:
            row["a"] = [[t["x"], t["p"], t["w"], self._until(t)] for t in e["targets"]]
            row["s"] = e["selection"]
            if e["kept"] and e["targets"] and all(t["lease"] for t in e["targets"]):
                row["p"] = 1
        optional = {"m": e["meta"], "x": e["override"], "y": e["end"]}
        row.update({k: v for k, v in optional.items() if v})
        if e["ttl"] != 1:
            row["t"] = e["ttl"]
        if e["exclusive"]:
            row["e"] = 1
        s = e["schedule"]
        if s:
            row["h"] = s["slots"]
            if s["current"] is not None:
                row["i"], row["d"] = s["current"], s["last"]
            if s["next"]:
                row["j"] = s["next"]
        return json.dumps(row, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def _until(target: Dict) -> str:
        return text(target["lease"]) if target["lease"] else str(target["while"])

    def zone_row(self, name: str) -> str:
        z = self.zones[name]
        row: Dict = {"k": "zone", "n": name, "v": text(z["version"]), "a": z["admins"], "w": z["writers"]}
        row.update({k: v for k, v in (("p", z["patterns"]), ("c", z["names_max"])) if v})
        return json.dumps(row, sort_keys=True, separators=(",", ":"))

    def sum(self) -> int:
        rows = [self.row(n) for n in self.entries] + [self.zone_row(n) for n in self.zones]
        return sum(int.from_bytes(blake2b(r.encode(), digest_size=16).digest(), "big") for r in rows) % (1 << 128)

    # ---- what is in use

    def effective(self, name: str) -> list[str]:
        e = self.entries[name]
        chosen = e["override"]
        if not chosen and e["schedule"] and e["schedule"]["current"] is not None:
            chosen = e["schedule"]["slots"][e["schedule"]["current"]][1]
        everything = e["targets"]
        some = everything
        if chosen:
            some = [t for t in everything if t["x"] in chosen]
            for address in chosen:
                if not any(t["x"] == address for t in everything):
                    some = [*some, {"x": address, "p": 0, "w": 1, "lease": None, "while": ""}]
        return self._usable(some) or self._usable(everything)

    def _usable(self, targets: list[Dict]) -> list[str]:
        good = [t for t in targets if self._is_usable(t)]
        if not good:
            return []
        lowest = min(t["p"] for t in good)
        return sorted({t["x"] for t in good if t["p"] == lowest})

    def _is_usable(self, t: Dict) -> bool:
        stations = {who[0] for who in self.members}
        address = t["x"]
        at = None
        if t["lease"]:
            at = t["lease"][0]
        elif t["while"]:
            at = int(t["while"].split(":")[1])
        elif address.startswith("station:"):
            at = int(address.split(":")[1].split("/")[0])
        if address in self.outs or (at and f"station:{at}" in self.outs):
            return False
        return not (t["while"] and at not in stations)

    def look_up(self, name: str) -> tuple[Place, str, list[str]]:
        """(version, code, addresses)"""
        for _ in range(9):
            if name in STATIONS:
                station = int(name[1:].split(".")[0])
                up = station in {who[0] for who in self.members} and f"station:{station}" not in self.outs
                return NOWHERE, "" if up else "no-address", [f"station:{station}"] if up else []
            e = self.entries.get(name)
            if e is None:
                return NOWHERE, "no-name", []
            if e["kind"] == "addr":
                addresses = self.effective(name)
                return e["version"], "" if addresses else "no-address", addresses
            name = e["alias"]
        return NOWHERE, "alias-loop", []

    def has_circle(self) -> bool:
        for name in self.entries:
            seen = set()
            at: str | None = name
            while at is not None and at in self.entries and self.entries[at]["kind"] == "alias":
                if at in seen:
                    return True
                seen.add(at)
                at = self.entries[at]["alias"]
        return False

    # ---- rights

    def _zone(self, name: str) -> Dict | None:
        if name == "default" and name not in self.zones:
            return {"admins": [], "writers": ["*"], "patterns": [], "names_max": 0, "version": NOWHERE}
        return self.zones.get(name)

    def _admin(self, roles: set[str], zone: Dict) -> bool:
        return "operator" in roles or bool(roles & set(zone["admins"]))

    def _writer(self, roles: set[str], zone: Dict) -> bool:
        return self._admin(roles, zone) or "*" in zone["writers"] or bool(roles & set(zone["writers"]))

    def _changes(self, roles: set[str], e: Dict) -> None:
        zone = self._zone(e["zone"])
        if zone is None or not (self._admin(roles, zone) or (self._writer(roles, zone) and e["owner"] in roles)):
            raise No("not-permitted")

    def _makes(self, roles: set[str], name: str, wanted: str) -> str:
        best, claimed = -1, None
        for zone_name, row in self.zones.items():
            for pattern in row["patterns"]:
                fits = name.endswith(pattern[1:]) if pattern[0] == "*" else name == pattern
                weight = 1000 if pattern[0] != "*" else len(pattern)
                if fits and weight > best:
                    best, claimed = weight, zone_name
        zone_name = wanted or claimed or "default"
        zone = self._zone(zone_name)
        if zone is None:
            raise No("no-zone")
        if claimed not in (None, zone_name) or not self._writer(roles, zone):
            raise No("not-permitted")
        if zone["names_max"] and sum(e["zone"] == zone_name for e in self.entries.values()) >= zone["names_max"]:
            raise No("full")
        return zone_name

    # ---- updates

    def update(self, place: Place, sender: Who, update_id: tuple[str, int], roles: list[str], operations: Sequence[Any]) -> str:
        """The outcome's code."""
        if update_id in self.outcomes:
            return self.outcomes[update_id][1]
        if self.begun:  # by a START, which knows the processes with a state only
            self.members.setdefault(sender, [0, 0])
        before = copied(self.__dict__)
        allowed = {*roles, f"station:{sender[0]}"}
        code = ""
        try:
            for op in operations:
                self._operation(place, sender, allowed, op)
        except No as no:
            self.__dict__ = before
            code = str(no)
        self.outcomes[update_id] = (place, code)
        self.fire(place)
        return code

    def _hold(self, e: Dict | None, condition: Place | None) -> None:
        version = e["version"] if e else NOWHERE
        if condition is not None and condition != version:
            raise No("exists" if condition == NOWHERE else "version")

    def _plain(self, e: Dict) -> None:
        if e["kind"] == "alias" or e["exclusive"]:
            raise No("kind")

    def _new(self, place: Place, roles: set[str], zone: str, kind: str) -> Dict:
        return {
            "kind": kind,
            "owner": next(r for r in sorted(roles) if r.startswith("user:")),
            "version": place,
            "zone": zone,
            "alias": "",
            "targets": [],
            "selection": "all",
            "ttl": 1,
            "meta": {},
            "override": [],
            "end": 0,
            "exclusive": False,
            "kept": True,
            "schedule": None,
        }

    def _sort(self, e: Dict) -> None:
        e["targets"].sort(key=lambda t: (t["p"], t["x"], self._until(t)))
        if len(e["targets"]) > 64:
            raise No("too-large")

    def _operation(self, place: Place, sender: Who, roles: set[str], op: Any) -> None:
        kind = type(op).__name__
        if kind in ("Out", "In", "SetZone"):
            if "operator" not in roles:
                raise No("not-permitted")
            getattr(self, "_do_" + kind)(place, op)
            return
        if op.name in STATIONS:
            raise No("kind" if kind == "Take" else "not-permitted")
        e = self.entries.get(op.name)
        if kind == "Register" and sender not in self.members:
            raise No("not-member")
        self._hold(e, op.condition)
        if kind == "Take":
            self._take(op)
        elif kind in ("Set", "Alias", "Register"):
            getattr(self, "_do_" + kind)(place, sender, roles, op, e)
        else:
            if e is None:
                raise No("no-name")
            self._changes(roles, e)
            if kind not in ("Remove", "Move"):
                self._plain(e)
            e["version"] = place
            getattr(self, "_do_" + kind)(roles, op, e)

    def _do_Set(self, place: Place, sender: Who, roles: set[str], op: ops.Set, e: Dict | None) -> None:
        if e is None:
            zone = self._makes(roles, op.name, op.zone)
            e = self.entries[op.name] = self._new(place, roles, zone, "addr")
        else:
            self._changes(roles, e)
            self._plain(e)
            if op.zone and op.zone != e["zone"]:
                raise No("exists")
        targets = [t for t in e["targets"] if t["lease"]]
        targets += [{"x": t.address, "p": t.priority, "w": t.weight, "while": t.until, "lease": None} for t in op.targets]
        e.update(version=place, targets=targets, selection=op.selection, ttl=op.ttl, meta=dict(op.meta), kept=True)
        self._sort(e)

    def _do_Add(self, roles: set[str], op: ops.Add, e: Dict) -> None:
        for t in op.targets:
            e["targets"] = [o for o in e["targets"] if o["lease"] or o["x"] != t.address]
            e["targets"].append({"x": t.address, "p": t.priority, "w": t.weight, "while": t.until, "lease": None})
        e["kept"] = True
        self._sort(e)

    def _do_Drop(self, roles: set[str], op: ops.Drop, e: Dict) -> None:
        for address in op.addresses:
            if all(t["x"] != address for t in e["targets"]):
                raise No("no-address")
        e["targets"] = [t for t in e["targets"] if t["x"] not in op.addresses]
        if not e["targets"] and not e["kept"]:
            self._gone(op.name)

    def _gone(self, name: str) -> None:
        del self.entries[name]
        self.queues.pop(name, None)
        self.cursors.pop(name, None)

    def _do_Alias(self, place: Place, sender: Who, roles: set[str], op: ops.Alias, e: Dict | None) -> None:
        zone = self._makes(roles, op.name, op.zone) if e is None else e["zone"]
        if e is not None:
            self._changes(roles, e)
        at, seen = op.target, 1
        while True:
            if at == op.name or seen > 8:
                raise No("alias-loop")
            found = self.entries.get(at)
            if found is None or found["kind"] != "alias":
                break
            at, seen = found["alias"], seen + 1
        if e is None:
            e = self.entries[op.name] = self._new(place, roles, zone, "alias")
        elif e["kind"] != "alias":
            raise No("kind")
        elif op.zone and op.zone != zone:
            raise No("exists")
        e.update(version=place, alias=op.target, ttl=op.ttl, meta=dict(op.meta))

    def _do_Remove(self, roles: set[str], op: ops.Remove, e: Dict) -> None:
        self._gone(op.name)

    def _do_Move(self, roles: set[str], op: ops.Move, e: Dict) -> None:
        if op.zone != e["zone"]:
            e["zone"] = self._makes(roles, op.name, op.zone)

    def _do_Switch(self, roles: set[str], op: ops.Switch, e: Dict) -> None:
        e["override"], e["end"] = list(op.addresses), op.end

    def _do_SetSchedule(self, roles: set[str], op: ops.SetSchedule, e: Dict) -> None:
        e["schedule"] = None
        if op.slots:
            slots = [[s.when, list(s.addresses)] for s in op.slots]
            current = op.current if op.current >= 0 else None
            e["schedule"] = {"slots": slots, "current": current, "last": op.last, "next": [op.due, op.slot] if op.due else None}

    def _do_Out(self, place: Place, op: ops.Out) -> None:
        self.outs[op.address] = op.end

    def _do_In(self, place: Place, op: ops.In) -> None:
        if op.address not in self.outs:
            raise No("no-address")
        del self.outs[op.address]

    def _take(self, op: ops.Take) -> None:
        name = op.name
        for _ in range(8):
            if name in self.entries and self.entries[name]["kind"] == "alias":
                name = self.entries[name]["alias"]
        if name not in self.entries or self.entries[name]["kind"] == "alias":
            raise No("no-name")
        if not self.effective(name):
            raise No("no-address")
        self.cursors[name] = self.cursors.get(name, 0) + 1

    def _do_Register(self, place: Place, sender: Who, roles: set[str], op: ops.Register, e: Dict | None) -> None:
        lease: Lease = (*sender, op.number)
        target: Dict = {"x": op.address, "p": op.priority, "w": op.weight, "while": "", "lease": lease}
        if e is None:
            zone = self._makes(roles, op.name, op.zone)
            e = self.entries[op.name] = self._new(place, roles, zone, "addr")
            e.update(selection=op.selection, kept=False, exclusive=op.exclusive, targets=[target])
            return
        self._changes(roles, e)
        if op.zone and op.zone != e["zone"]:
            raise No("exists")
        if e["kind"] == "alias" or (e["exclusive"] and not op.exclusive):
            raise No("kind")
        if op.exclusive:
            self._queue(place, op, e, target)
            return
        e["targets"] = [t for t in e["targets"] if (t["x"], t["lease"]) != (op.address, lease)] + [target]
        e["version"] = place
        self._sort(e)

    def _queue(self, place: Place, op: ops.Register, e: Dict, target: Dict) -> None:
        if not e["targets"]:
            if e["override"] or e["schedule"]:
                raise No("kind")
            e.update(version=place, exclusive=True, targets=[target])
        elif not e["exclusive"]:
            raise No("kind")
        elif e["targets"][0]["lease"] != target["lease"]:
            queue = self.queues.setdefault(op.name, [])
            if all(lease != target["lease"] for lease, *_ in queue):
                queue.append((target["lease"], op.address, op.priority, op.weight))

    def _do_SetZone(self, place: Place, op: ops.SetZone) -> None:
        self._hold(self._zone(op.name), op.condition)
        if op.remove:
            if op.name not in self.zones:
                raise No("no-zone")
            if op.name != "default" and any(e["zone"] == op.name for e in self.entries.values()):
                raise No("exists")
            del self.zones[op.name]
            return
        for pattern in op.patterns:
            if any(name != op.name and pattern in z["patterns"] for name, z in self.zones.items()):
                raise No("exists")
        self.zones[op.name] = {
            "admins": list(op.admins),
            "writers": list(op.writers),
            "patterns": list(op.patterns),
            "names_max": op.names_max,
            "version": place,
        }

    # ---- leases, views, time

    def end(self, place: Place, ended: set[Lease]) -> None:
        for name in sorted(self.entries):
            e = self.entries[name]
            queue = [w for w in self.queues.get(name, []) if w[0] not in ended]
            if name in self.queues:
                self.queues[name] = queue
            if not any(t["lease"] in ended for t in e["targets"] if t["lease"]):
                continue
            e["targets"] = [t for t in e["targets"] if t["lease"] not in ended]
            if not e["targets"] and e["exclusive"]:
                if queue:
                    lease, address, priority, weight = queue.pop(0)
                    e["targets"] = [{"x": address, "p": priority, "w": weight, "while": "", "lease": lease}]
                else:
                    e["exclusive"] = False
            e["version"] = place
            if not e["targets"] and not e["kept"]:
                self._gone(name)

    def leases(self) -> set[Lease]:
        found = {t["lease"] for e in self.entries.values() for t in e["targets"] if t["lease"]}
        return found | {w[0] for queue in self.queues.values() for w in queue}

    def view(self, place: Place, members: set[Who], joined: set[Who]) -> None:
        gone = {who for who in self.members if who not in members or who in joined}
        self.end(place, {lease for lease in self.leases() if lease[:2] in gone})
        self.members = {who: [0, 0] if who in joined or who not in self.members else self.members[who] for who in members}
        self.begun = False
        self.fire(place)

    def start(self, place: Place, members: set[Who]) -> None:
        self.end(place, self.leases())
        self.members = {who: [0, 0] for who in members}
        self.begun = True
        self.fire(place)

    def due(self, place: Place, sender: Who, time: int) -> None:
        if sender in self.members and self.members[sender][0]:
            self.members[sender][1] = max(self.members[sender][1], time)
        self.fire(place)

    def holding(self, place: Place, sender: Who, active: bool) -> None:
        if sender in self.members and self.members[sender][0] != active:
            self.members[sender] = [int(active), 0]
        self.fire(place)

    def next(self, place: Place, sender: Who, name: str, version: Place, due: int, slot: int) -> None:
        e = self.entries.get(name)
        if e and e["schedule"] and e["version"] == version and self.members.get(sender, [0])[0]:
            s = e["schedule"]
            if not s["next"] and due > (s["last"] if s["current"] is not None else 0) and slot < len(s["slots"]):
                s["next"] = [due, slot]
                e["version"] = place
        self.fire(place)

    def majority(self) -> int:
        """The largest instant that more than half of the active holders have reached."""
        active = [due for is_active, due in self.members.values() if is_active]
        reached = [t for t in active if 2 * sum(due >= t for due in active) > len(active)]
        return max(reached, default=0)

    def fire(self, place: Place) -> None:
        """All that is due at directory time."""
        self.time = self.majority()
        for address in [a for a, end in self.outs.items() if end and end <= self.time]:
            del self.outs[address]
        for name, e in sorted(self.entries.items()):
            if e["override"] and e["end"] and e["end"] <= self.time:
                e.update(override=[], end=0, version=place)
            s = e["schedule"]
            if s and s["next"] and s["next"][0] <= self.time:
                s.update(last=s["next"][0], current=s["next"][1], next=None)
                e["version"] = place
                self.fired.append((name, s["last"]))
