"""libcmap's service, and the keys that the stand-in itself keeps there."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ...proto.service.corosync.results import Code
from .codec import Request, map_changed
from .codec import Value as Codec
from .conf import Conf
from .maps import STRING, U8, U32, U64, USERS, Map, Track, Value
from .programs import TRACKERS_MAX, Host, Program, bytes_of, number_of


class Keys:
    """The service ``cmap``."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def opened(self, program: Program) -> None:
        pass

    def closed(self, program: Program) -> None:
        for number in program.trackers:
            self._map(program).untrack(number)

    def _map(self, program: Program) -> Map:
        return self.host.maps[program.map]

    def asked(self, program: Program, request: Request) -> None:
        host, name, values = self.host, request.name, self._map(program)
        if program.map == 1 and name in ("get", "iter_init"):
            host.measure()
        key = bytes_of(request, "key") if "key" in request.values else b""
        if name == "get":
            self._get(program, values.get(key), number_of(request, "length"))
        elif name in ("set", "delete", "adjust") and program.map == 1:
            host.answer(program, name, Code.ACCESS)
        elif name == "set":
            host.answer(program, name, values.set(key, number_of(request, "type"), bytes_of(request, "data")))
        elif name == "delete":
            host.answer(program, name, values.delete(key))
        elif name == "adjust":
            host.answer(program, name, values.adjust(key, number_of(request, "step")))
        elif name.startswith("iter_"):
            self._iterate(program, request)
        elif name.startswith("track_"):
            self._track(program, request, key)
        else:
            number = number_of(request, "map")
            if number in (0, 1) and not program.trackers:
                program.map = number
            host.answer(program, name, Code.OK if number == program.map else Code.NOT_EXIST)

    def _get(self, program: Program, found: Value | None, room: int) -> None:
        if found is None:
            self.host.answer(program, "get", Code.NOT_EXIST)
        elif room and room < len(found.data):
            self.host.answer(program, "get", Code.INVALID_PARAM)
        else:
            values = {"length": len(found.data), "type": int(found.type)}
            self.host.answer(program, "get", values=values, tail=found.data if room else b"")

    def _iterate(self, program: Program, request: Request) -> None:
        host, name = self.host, request.name
        if name == "iter_init":
            given = program.iterate(self._map(program).below(bytes_of(request, "prefix")))
            host.answer(program, name, Code.OK if given else Code.NO_RESOURCES, {"iteration": given})
            return
        given = number_of(request, "iteration")
        over = program.iterations.get(given)
        if over is None:
            host.answer(program, name, Code.BAD_HANDLE)
        elif name == "iter_finalize":
            del program.iterations[given]
            host.answer(program, name)
        else:
            self._next(program, over)

    def _next(self, program: Program, over: Iterable[bytes]) -> None:
        """Keys that are gone meanwhile are left out."""
        for key in over:
            if (found := self._map(program).get(key)) is not None:
                values: dict[str, Codec] = {"key": key, "length": len(found.data), "type": int(found.type)}
                self.host.answer(program, "iter_next", values=values)
                return
        self.host.answer(program, "iter_next", Code.NO_SECTIONS)

    def _track(self, program: Program, request: Request, key: bytes) -> None:
        host, name, values = self.host, request.name, self._map(program)
        if name == "track_add":
            if len(program.trackers) >= TRACKERS_MAX or not values.has_room:
                host.answer(program, name, Code.NO_RESOURCES)
                return
            instance = number_of(request, "instance")
            number = values.track(key, number_of(request, "flags"), partial(self._changed, program, instance))
            if number:
                program.trackers[number] = instance
            host.answer(program, name, Code.OK if number else Code.INVALID_PARAM, {"track": number})
            return
        number = number_of(request, "track")
        found = program.trackers.pop(number, None)
        if found is None:
            host.answer(program, name, Code.BAD_HANDLE)
            return
        values.untrack(number)
        host.answer(program, name, values={"instance": found})

    def _changed(self, to: Program, instance: int, key: bytes, event: Track, new: Value | None, old: Value | None) -> None:
        self.host.event([to.number], map_changed(instance, key, int(event), new, old))


def begin(conf: Conf, values: Map, station: int, token_ms: int, consensus_ms: int) -> None:
    """The keys that there are from the start."""
    configure(conf, values, station)
    quorum = conf.quorum()
    ids = [node.id for node in conf.nodes]
    numbers = {"this_node_id": conf.node_of(station).id, "lowest_node_id": min(ids), "highest_node_id": max(ids)}
    for name, number in numbers.items():
        values.put(f"runtime.votequorum.{name}", U32.pack(number))
    values.put("runtime.votequorum.two_node", U8.pack(int(quorum.two_node)))
    if quorum.waits_for_all:
        values.put("runtime.votequorum.wait_for_all_status", U8.pack(1))
    values.put("runtime.config.totem.token", U32.pack(token_ms))
    values.put("runtime.config.totem.consensus", U32.pack(consensus_ms))
    for number, name in enumerate(("cmap", "cfg", "cpg", "quorum", "votequorum")):
        values.put(f"internal_configuration.service.{number}.name", STRING.pack(f"corosync_{name}"))
        values.put(f"internal_configuration.service.{number}.ver", U32.pack(0))


def configure(conf: Conf, values: Map, station: int) -> None:
    """The keys of corosync.conf, instead of those of an earlier one."""
    keys = dict(conf.keys())
    keys["nodelist.local_node_pos"] = U32.pack([node.station for node in conf.nodes].index(station))
    for section in ("totem", "nodelist", "quorum", "logging", "uidgid.config", "zenjun"):
        for key in values.below(f"{section}.".encode()):
            if key.decode() not in keys:
                values.drop(key.decode())
    for name, value in keys.items():
        values.put(name, value)


def show_ring(conf: Conf, values: Map, before: Iterable[int], now: Iterable[int]) -> None:
    """The nodes of the ring, as runtime.members has them."""
    before, now = set(before), set(now)
    for node in conf.nodes:
        at = f"runtime.members.{node.id}"
        if node.id in now - before:
            joins = values.value(f"{at}.join_count")
            values.put(f"{at}.config_version", U64.pack(0))
            values.put(f"{at}.ip", STRING.pack(f"r(0) ip({node.address}) "))
            values.put(f"{at}.join_count", U32.pack((joins if isinstance(joins, int) else 0) + 1))
            values.put(f"{at}.status", STRING.pack("joined"))
        elif node.id in before - now:
            values.put(f"{at}.status", STRING.pack("left"))


def users(values: Map) -> tuple[list[int], list[int]]:
    """Who may connect, by the keys of uidgid: users, groups."""
    found: tuple[list[int], list[int]] = ([], [])
    for key in values.below(USERS):
        *head, kind, number = key.decode().split(".")
        is_user = head in (["uidgid"], ["uidgid", "config"]) and kind in ("uid", "gid") and number.isdigit()
        if is_user and values.value(key.decode()) == 1 and int(number) < 1 << 32:
            found[kind == "gid"].append(int(number))
    return found
