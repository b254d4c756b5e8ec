"""The wires of a lab, through pyroute2: the hub's bridge and ports, and a station's own interface.

Every function works in the network namespace of the process that calls it; nothing here crosses namespaces but the veth
whose far end is created inside another process's namespace.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from . import filters, qdiscs
from .errors import LabError, LabUnsupported
from .impair import Impairment

LINKS_MAX: Final = 4
"""Segments that a lab may have. They are numbered from 1."""
_NETEM: Final = 0x10000
_BUCKET: Final = 0x100000
_FIFO: Final = 0x200000
_QUEUE_MS: Final = 50
"""How long a frame may wait at a port with limited rate before it is dropped."""


def mac_address(station: int, link: int = 1) -> str:
    """The MAC address a station starts with on a link: locally administered, the station's number last."""
    return f"02:5a:4a:00:{link - 1:02x}:{station:02x}"


def ip_address(station: int, link: int = 1) -> str:
    """The IPv4 address of a station on a link (zenjun needs none; ping and other programs in the lab do)."""
    return f"10.90.{link - 1}.{station}"


def interface_name(link: int) -> str:
    """The name that a station's interface on a link starts with."""
    return f"eth{link - 1}"


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        raise LabError(f"{what}: {os.strerror(error.code)}") from error


def send_frames(interface: str, frames: Sequence[bytes], deadline_s: float = 5.0) -> None:
    """Send raw Ethernet frames out of an interface of this namespace, in order.

    Waits while the interface's queue is full, up to *deadline_s* seconds in all. Raises LabError, naming the frame.
    """
    end = time.monotonic() + deadline_s
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        try:
            sock.bind((interface, 0))
        except OSError as error:
            raise LabError(f"interface {interface}: {error.strerror}") from error
        sock.settimeout(deadline_s)
        for number, frame in enumerate(frames):
            while True:
                try:
                    sock.send(frame)
                    break
                except OSError as error:
                    if error.errno != errno.ENOBUFS or time.monotonic() > end:
                        raise LabError(f"frame {number} of {len(frame)} bytes on {interface}: {error.strerror}") from error
                    time.sleep(0.001)


class Hub:
    """The bridge, in the namespace of the calling process, with one port for every station plugged in."""

    def __init__(self, *, mtu: int, snooping: bool, one_channel: bool, hairpin: bool = False, link: int = 1) -> None:
        """mtu: bytes. snooping: multicast snooping. one_channel: ports return the sender's frames and forward serially.
        hairpin: they return them and do not. link: number of the segment that it is, from 1."""
        self._link = link
        self._name = f"br{link - 1}"
        self._mtu = mtu
        self._snooping = snooping
        self._hairpin = hairpin
        self._one_channel = one_channel
        self._ipr: Any = None
        self._bridge = 0
        self._netem: bool | None = None
        self._impairments: dict[int, Impairment] = {}
        self._queues: dict[int, tuple[Any, ...]] = {}
        self._drops_before: dict[int, tuple[int, int]] = {}
        self._cuts: set[tuple[int, int]] = set()
        self._filtered = False
        self._table = filters.TABLE if link == 1 else f"{filters.TABLE}{link}"

    def open(self) -> None:
        """Create the bridge. Raises LabError, LabUnsupported."""
        self._ipr = IPRoute()
        try:
            self._ipr.link(
                "add",
                ifname=self._name,
                kind="bridge",
                br_stp_state=0,
                br_forward_delay=0,
                br_mcast_snooping=int(self._snooping),
            )
        except NetlinkError as error:
            raise LabUnsupported(f"the kernel cannot make a bridge (CONFIG_BRIDGE): {os.strerror(error.code)}") from error
        self._bridge = self._index(self._name)
        with _named("bridge"):
            self._ipr.link("set", index=self._bridge, mtu=self._mtu, state="up")

    def port_name(self, station: int) -> str:
        """The bridge port that a station's cable is plugged into."""
        return filters.port_name(station, self._link)

    def _index(self, name: str) -> int:
        found = self._ipr.link_lookup(ifname=name)
        if not found:
            raise LabError(f"there is no interface {name} at the hub: the station's cable is unplugged")
        return int(found[0])

    def plug(self, station: int, pid: int, interface: str, mtu: int, mac: str) -> None:
        """Connect the network namespace of process *pid* by a new veth pair, whose far end is *interface* (still down)."""
        port = self.port_name(station)
        try:
            self._ipr.link(
                "add",
                ifname=port,
                kind="veth",
                mtu=mtu,
                peer={"ifname": interface, "net_ns_fd": f"/proc/{pid}/ns/net", "address": mac, "mtu": mtu},
            )
        except NetlinkError as error:
            if error.code == errno.EEXIST:
                raise LabError(f"station {station} is plugged in already") from error
            raise LabUnsupported(f"the kernel cannot make a veth pair (CONFIG_VETH): {os.strerror(error.code)}") from error
        index = self._index(port)
        with _named(f"port of station {station}"):
            self._ipr.link("set", index=index, master=self._bridge)
            self._ipr.link("set", index=index, state="up")
            if self._one_channel:
                self._serialize(port, index)
            elif self._hairpin:
                self._ipr.brport("set", index=index, mode=1)
        self._queues.pop(station, None)
        self._shape(station)

    def _serialize(self, port: str, index: int) -> None:
        """Have a port return the sender's own frames, and one CPU take all frames of all ports: all stations see one order."""
        self._ipr.brport("set", index=index, mode=1)
        mask = Path(f"/sys/class/net/{port}/queues/rx-0/rps_cpus")
        if not mask.exists() and os.cpu_count() == 1:
            return  # a kernel for one processor has nothing to steer
        mask.write_text("1")

    def unplug(self, station: int) -> None:
        """Remove the station's veth pair; both ends vanish."""
        with _named(f"unplugging station {station}"):
            self._ipr.link("del", index=self._index(self.port_name(station)))
        self._queues.pop(station, None)

    def set_port(self, station: int, *, mtu: int | None = None, up: bool | None = None) -> None:
        """Change the MTU (bytes) or the state of the hub's end of a station's cable."""
        changes: dict[str, Any] = {} if mtu is None else {"mtu": mtu}
        if up is not None:
            changes["state"] = "up" if up else "down"
        with _named(f"port of station {station}"):
            self._ipr.link("set", index=self._index(self.port_name(station)), **changes)

    def move_port(self, station: int, to: Hub) -> None:
        """Plug the cable of a station into another hub, or this one again."""
        with _named(f"port of station {station}"):
            self._ipr.link("set", index=self._index(self.port_name(station)), master=to._bridge)

    def join(self, other: Hub, *, are_joined: bool) -> None:
        """Connect this bridge with another one by a cable, or take the cable away."""
        ends = (f"{self._name}-{other._name}", f"{other._name}-{self._name}")
        with _named("the cable between the bridges"):
            found = self._ipr.link_lookup(ifname=ends[0])
            if not are_joined and found:
                self._ipr.link("del", index=found[0])
            elif are_joined and not found:
                self._ipr.link("add", ifname=ends[0], kind="veth", mtu=self._mtu, peer={"ifname": ends[1], "mtu": self._mtu})
                for name, bridge in zip(ends, (self._bridge, other._bridge), strict=True):
                    index = self._index(name)
                    self._ipr.link("set", index=index, master=bridge)
                    self._ipr.link("set", index=index, state="up")

    def deliver(self, station: int, frames: Sequence[bytes]) -> None:
        """Hand raw frames to one station alone, past losses and cuts."""
        send_frames(self.port_name(station), frames)

    # Impairments

    def has_netem(self) -> bool:
        """Whether the kernel has sch_netem, found out by trying on a port."""
        if self._netem is None:
            index = self._bridge
            try:
                self._ipr.tc("add", "netem", index, "1:", delay=1)
                self._ipr.tc("del", index=index, handle="1:", parent=0xFFFFFFFF)
                self._netem = True
            except NetlinkError:
                self._netem = False
        return self._netem

    def impair(self, station: int, wanted: Impairment) -> None:
        """Set what happens to the station's frames. Raises LabUnsupported with nothing changed."""
        if (names := wanted.needs_netem) and not self.has_netem():
            raise LabUnsupported(
                f"{', '.join(names)} needs sch_netem (CONFIG_NET_SCH_NETEM), which this kernel does not have; "
                "loss, burst and rate work without it"
            )
        before = self._impairments.get(station, Impairment())
        self._impairments[station] = wanted
        try:
            self._filter("loss without sch_netem")
            self._shape(station)
        except LabError:
            self._impairments[station] = before
            raise

    def impairment(self, station: int) -> Impairment:
        """What was set for the station."""
        return self._impairments.get(station, Impairment())

    def _shape(self, station: int) -> None:
        """Give the port its queues: netem, with a token bucket inside for the rate, or the bucket alone."""
        wanted = self.impairment(station)
        netem = bool(wanted.needs_netem) or bool(wanted.mean_loss and self.has_netem())
        # netem keeps the table of before when a change does not bring another one.
        shape = (
            (netem, bool(wanted.rate_bit), wanted.jitter_distribution, bool(wanted.limit)) if netem or wanted.rate_bit else None
        )
        before = self._queues.get(station)
        if shape is None and before is None:
            return
        index = self._index(self.port_name(station))
        with _named(f"queue of station {station}"):
            if before not in (None, shape):
                # The queue's counters go with it.
                lost, overflowed = self._queue_drops(index)
                lost_before, overflowed_before = self._drops_before.get(station, (0, 0))
                self._drops_before[station] = (lost_before + lost, overflowed_before + overflowed)
                self._ipr.tc("del", index=index, handle="1:", parent=0xFFFFFFFF)
                del self._queues[station]
            change = before == shape
            if netem:
                qdiscs.put(index, "netem", _NETEM, qdiscs.netem_options(wanted), change=change)
            if wanted.rate_bit:
                inner = {"parent": _NETEM | 1} if netem else {}
                handle = _BUCKET if netem else _NETEM
                self._ipr.tc("change" if change else "add", "tbf", index, handle, **inner, **bucket(wanted.rate_bit, self._mtu))
                if wanted.limit:
                    options = qdiscs.fifo_options(wanted.limit)
                    qdiscs.put(index, "pfifo", _FIFO, options, parent=handle | 1, change=change)
        if shape is not None:
            self._queues[station] = shape

    def _queue_drops(self, index: int) -> tuple[int, int]:
        """Frames dropped by netem (on purpose or for want of room: it counts them together) and by the token bucket."""
        drops = {"netem": 0, "tbf": 0}
        for qdisc in self._ipr.get_qdiscs(index=index):
            if (kind := qdisc.get_attr("TCA_KIND")) in drops:
                drops[kind] += int((qdisc.get_attr("TCA_STATS") or {}).get("drop", 0))
        # Each counts also what the one inside it has refused.
        return max(0, drops["netem"] - drops["tbf"]), drops["tbf"]

    def _filter(self, purpose: str) -> None:
        losses = {s: i for s, i in self._impairments.items() if i.mean_loss}
        if losses and self.has_netem():
            losses = {}
        if not losses and not self._cuts and not self._filtered:
            return
        stations = sorted({*losses, *(b for _, b in self._cuts)})
        filters.apply(self._ruleset(stations, losses), purpose)
        self._filtered = True

    def _ruleset(self, stations: Sequence[int], losses: Mapping[int, Impairment], **settings: Any) -> str:
        plain = {s: i.loss for s, i in losses.items() if not i.burst}
        bursts = {s: i.all_burst for s, i in losses.items() if i.burst}
        settings = {"table": self._table, "port": self.port_name, **settings}
        return filters.ruleset(stations, plain, self._cuts, bursts=bursts, **settings)

    @property
    def cuts(self) -> set[tuple[int, int]]:
        """Pairs (a, b): frames from a to b are dropped."""
        return set(self._cuts)

    def set_cuts(self, cuts: set[tuple[int, int]]) -> None:
        """Replace all cuts at once, between two frames. Raises LabUnsupported with nothing changed."""
        before, self._cuts = self._cuts, set(cuts)
        try:
            self._filter("a partition")
        except LabError:
            self._cuts = before
            raise

    def counters(self, stations: Sequence[int]) -> dict[int, dict[str, int]]:
        """The counters of ``Lab.counters`` for several stations, all zero for one that is unplugged."""
        named = filters.read_counters(self._table) if self._filtered else {}
        result = {}
        for station in stations:
            found = self._ipr.link_lookup(ifname=self.port_name(station))
            links = self._ipr.get_links(found[0]) if found else []
            stats = (links[0].get_attr("IFLA_STATS64") if links else None) or {}
            now = self._queue_drops(found[0]) if found else (0, 0)
            lost, overflowed = (sum(pair) for pair in zip(now, self._drops_before.get(station, (0, 0)), strict=True))
            result[station] = {
                "sent": int(stats.get("rx_packets", 0)),
                "received": int(stats.get("tx_packets", 0)),
                "lost": lost + named.get(f"lost_{station}", 0),
                "cut": named.get(f"cut_{station}", 0),
                "queue_drops": overflowed + int(stats.get("tx_dropped", 0)),
            }
        return result


def bucket(rate_bit: int, mtu: int) -> dict[str, Any]:
    """Parameters of a token bucket: a burst of 1 ms or two frames, a queue of 50 ms."""
    rate = rate_bit // 8
    burst = max(rate // 1000, 2 * (mtu + 22))
    return {"rate": rate, "burst": burst, "limit": burst + rate * _QUEUE_MS // 1000}


class Port:
    """A station's own interface, in the namespace of the calling process."""

    def __init__(self, station: int, name: str = "eth0", rate_bit: int = 0, link: int = 1) -> None:
        """name: of the interface. rate_bit: the limit that it has already, bits per second. link: number of its segment."""
        self._link = link
        self._station = station
        self._ipr: Any = IPRoute()
        self.name = name
        self.rate_bit = rate_bit

    def configure(self, *, up: bool = True) -> None:
        """Set up the loopback and a freshly plugged interface."""
        with _named(f"station {self._station}"):
            self._ipr.link("set", index=self._index("lo"), state="up")
            index = self._index(self.name)
            self._ipr.addr("add", index=index, address=ip_address(self._station, self._link), prefixlen=24)
            if up:
                self._ipr.link("set", index=index, state="up")
        rate, self.rate_bit = self.rate_bit, 0
        self.set_rate(rate)

    def _index(self, name: str) -> int:
        found = self._ipr.link_lookup(ifname=name)
        if not found:
            raise LabError(f"station {self._station} has no interface {name}")
        return int(found[0])

    def describe(self) -> dict[str, Any]:
        """name, present, up, mtu (bytes), mac."""
        found = self._ipr.link_lookup(ifname=self.name)
        if not found:
            return {"name": self.name, "present": False, "up": False, "mtu": 0, "mac": ""}
        (link,) = self._ipr.get_links(found[0])
        return {
            "name": self.name,
            "present": True,
            "index": int(found[0]),
            "up": bool(link["flags"] & 1),
            "mtu": int(link.get_attr("IFLA_MTU")),
            "mac": str(link.get_attr("IFLA_ADDRESS")),
        }

    def links(self, index: int) -> Sequence[Any]:
        """All data of the kernel about the interface of this index."""
        found: Sequence[Any] = self._ipr.get_links(index)
        return found

    def set(self, **changes: Any) -> None:
        """Change state (``up``/``down``), mtu (bytes) or address (MAC)."""
        with _named(f"station {self._station}, interface {self.name}"):
            self._ipr.link("set", index=self._index(self.name), **changes)

    def rename(self, name: str) -> None:
        """Give the interface another name. Older kernels do this only to an interface that is down; it is then set up again."""
        index = self._index(self.name)
        with _named(f"station {self._station}: renaming {self.name} to {name}"):
            try:
                self._ipr.link("set", index=index, ifname=name)
            except NetlinkError as error:
                if error.code != errno.EBUSY:
                    raise
                self._ipr.link("set", index=index, state="down")
                self._ipr.link("set", index=index, ifname=name)
                self._ipr.link("set", index=index, state="up")
        self.name = name

    def set_rate(self, rate_bit: int) -> None:
        """Limit what the station sends, bits per second; 0 ends the limit."""
        if rate_bit == self.rate_bit:
            return
        index = self._index(self.name)
        with _named(f"station {self._station}: rate"):
            if not rate_bit:
                self._ipr.tc("del", index=index, handle="1:", parent=0xFFFFFFFF)
            else:
                verb = "change" if self.rate_bit else "add"
                self._ipr.tc(verb, "tbf", index, "1:", **bucket(rate_bit, int(self.describe()["mtu"])))
        self.rate_bit = rate_bit
