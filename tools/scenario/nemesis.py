"""Does to a lab what the plan says, undoes it, and knows at any time what must be true of the network and of the daemons."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from ...daemon.client import ClientError, ConnectionClosed, NotReachable, connect_sync
from ..histories.recorder import Journal
from ..lab import Impairment, Lab, LabError, LabNotFound, Station
from .model import listing
from .plan import Act

_END_S: Final = 15.0
"""A daemon that gets SIGTERM drains, and sends BYE."""
_ADMIN_S: Final = 5.0
_CUTTING: Final = ("partition", "cut")
_IMPAIRING: Final = ("loss", "impair")
_ENDING: Final = {"kill": signal.SIGKILL, "stop": signal.SIGTERM}
_LINKS: Final[dict[str, tuple[Callable[[Station, int], None], str]]] = {
    "link-down": (Station.link_down, "link-up"),
    "cable-out": (Station.cable_out, "cable-in"),
    "delete-interface": (Station.delete_interface, "create-interface"),
}
_MENDING: Final[dict[str, Callable[[Station, int], None]]] = {
    "link-up": Station.link_up,
    "cable-in": Station.cable_in,
    "create-interface": Station.create_interface,
}

Start = Callable[[int], None]
"""Starts the daemon of a station."""


class Nemesis:
    """Carries out acts. A fault that several acts cause at once ends with the last of them."""

    def __init__(
        self,
        lab: Lab,
        start: Start,
        journal: Journal,
        say: Callable[[str], None],
        *,
        load: Callable[[Act], None] = lambda act: None,
        absent: Iterable[int] = (),
        base: Impairment = Impairment(),  # noqa: B008 (frozen)
    ) -> None:
        """start: of a daemon. say: a line for a person. load: changes what is sent. absent: stations whose daemon does not run.
        base: impairment of all stations from the beginning."""
        self._lab = lab
        self._start_daemon = start
        self._journal = journal
        self._say = say
        self._load = load
        self._active: list[Act] = []
        """Present cuts and impairments, in the order of their beginning."""
        self._down = set(absent)
        """Stations whose daemon we have ended, or not started."""
        self._numbers = tuple(range(1, lab.links + 1))
        """Of links."""
        self._base = dict.fromkeys(lab.stations, base)
        self._set = {(s, link): Impairment() for s in lab.stations for link in self._numbers}
        """What is set at each station, on each link."""
        self._mend: dict[tuple[str, int, int], tuple[Act, Callable[[], None]]] = {}
        """By what is broken (the word that mends it), station and link: the last act that broke it, and what mends it."""
        self._links: list[Act] = []
        """Acts upon interfaces that have not ended."""
        self._cut: dict[int, set[tuple[int, int]]] = {link: set() for link in self._numbers}
        """The cuts of each link."""
        self.refused = 0
        """Operator's orders that a daemon did not take."""

    def prepare(self) -> None:
        """Set the impairments of the beginning. Raises LabError."""
        self._network()

    def begin(self, act: Act) -> None:
        """The act takes place. Raises LabError."""
        self._mark(act, "begin")
        if act.do in (*_CUTTING, *_IMPAIRING):
            self._active.append(act)
            self._network()
        elif act.do == "heal":
            self._active = [active for active in self._active if active.do not in _CUTTING]
            self._network()
        elif act.do == "clear":
            self._clear(set(act.stations))
        elif act.do == "load":
            self._load(act)
        elif act.do == "expel":
            self._expel(act)
        elif act.do in (*_LINKS, *_MENDING, "rename", "mtu", "mac", "cross"):
            for station in act.stations:
                self._link(act, self._lab.station(station))
        elif act.do == "join":
            self._lab.join_switches()
            self._broken(act, "join", 0, lambda: self._lab.join_switches(are_joined=False))
        else:
            for station in act.stations:
                self._process(act.do, station)

    def end(self, act: Act) -> None:
        """The act's time is over: undo what it broke, unless another act keeps it broken. Raises LabError."""
        self._mark(act, "end")
        if act.do in (*_CUTTING, *_IMPAIRING):
            self._active = [active for active in self._active if active.number != act.number]
            self._network()
        elif act.do in (*_ENDING, "leave"):
            for station in act.stations:
                self._start(station)
        elif act.do == "pause":
            for station in act.stations:
                self._process("resume", station)
        else:
            self._links = [other for other in self._links if other.number != act.number]
            for key, (broken_by, mend) in list(self._mend.items()):
                still = any(o.do == act.do and _upon(o) == key[2] and _is_of(o, key[1]) for o in self._links)
                if broken_by.do == act.do and key[2] == _upon(act) and _is_of(act, key[1]) and not still:
                    del self._mend[key]
                    mend()

    def end_all(self, there: Collection[int]) -> None:
        """Mend everything; of the daemons that do not run, start those of these stations. Raises LabError."""
        self._active.clear()
        self._base = dict.fromkeys(self._lab.stations, Impairment())
        self._network()
        for _, mend in self._mend.values():
            mend()
        self._mend.clear()
        for station in self._lab.stations:
            if self.still_there(station):
                self._lab.station(station).signal(signal.SIGCONT)
            elif station in there:
                self._start(station)

    # ---- daemons

    def still_there(self, station: int) -> bool:
        """Whether the daemon that should be running there is; one that has ended by itself is marked, and started again."""
        if station in self._down:
            return False
        daemon = self._lab.station(station).daemon
        code = daemon.poll() if daemon is not None else None
        if code is None:
            return True
        tail: list[str] = []
        with contextlib.suppress(OSError, LabError):
            self._lab.refresh_log(station)
            tail = self._lab.station(station).log_path.read_text(errors="replace").splitlines()[-3:]
        self._journal.write({"k": "died", "station": station, "code": code, "log": " | ".join(tail)})
        self._say(f"the daemon of station {station} ended by itself with {code}")
        self._down.add(station)
        self._start(station)
        return True

    def _process(self, do: str, station: int) -> None:
        if do == "start":
            self._start(station)
        elif not self.still_there(station):
            return
        elif do in _ENDING:
            self._end(station, _ENDING[do])
        elif do == "restart":
            self._end(station, signal.SIGTERM)
            self._start(station)
        elif do == "leave":
            self._down.add(station)
            self._operate(station, lambda connection: connection.leave_cluster())
        else:
            self._lab.station(station).signal(signal.SIGSTOP if do == "pause" else signal.SIGCONT)

    def _end(self, station: int, number: int) -> None:
        self._down.add(station)
        with contextlib.suppress(LabNotFound):  # it has ended this moment
            self._lab.station(station).signal(number)

    def _start(self, station: int) -> None:
        if station not in self._down:
            return
        daemon = self._lab.station(station).daemon
        if daemon is not None and daemon.poll() is None:
            with contextlib.suppress(LabNotFound):
                daemon.send_signal(signal.SIGCONT)  # one that is stopped does not take SIGTERM
            daemon.wait(_END_S)
        self._start_daemon(station)
        self._down.discard(station)

    def _expel(self, act: Act) -> None:
        up = [station for station in self._lab.stations if station not in self._down and station not in act.stations]
        by = next(iter(act.others), None) or next(iter(up), None)
        if by is None:
            raise LabError(f"no station is left that could expel {listing(act.stations)}")
        for station in act.stations:
            self._operate(by, lambda connection, station=station: connection.expel(station))  # type: ignore[misc]

    def _operate(self, station: int, order: Callable[[Any], Any]) -> None:
        """Give the daemon of a station an operator's order; one that it refuses is counted."""
        try:
            with connect_sync(str(self._lab.station(station).socket_path), name="scenario", timeout=_ADMIN_S) as connection:
                order(connection)
        except ClientError as error:
            if isinstance(error, ConnectionClosed) and not isinstance(error, NotReachable):
                return  # it was told to leave
            self.refused += 1
            self._say(f"  station {station} refuses: {error}")

    # ---- the network

    def _network(self) -> None:
        """Set all cuts and impairments to the present ones."""
        pairs: dict[int, set[tuple[int, int]]] = {link: set() for link in self._numbers}
        wanted = {(station, link): self._base[station] for station, link in self._set}
        for act in self._active:
            for link in (act.link,) if act.link else self._numbers:
                if act.do in _CUTTING:
                    pairs[link] |= self._parted(act) if act.do == "partition" else _cut(act)
                    continue
                for station in act.stations:
                    wanted[station, link] = wanted[station, link].changed(dict(act.values))
        for link, cut in pairs.items():
            if cut or self._cut[link]:
                self._lab.request("cuts", how="set", pairs=sorted(cut), **self._on(link))
        self._cut = pairs
        for (station, link), impairment in wanted.items():
            if impairment != self._set[station, link]:
                self._lab.impair([station], **self._on(link), **impairment.to_json())
                self._set[station, link] = impairment

    def _on(self, link: int) -> dict[str, int]:
        """Which link a request is about, where there are several."""
        return {"link": link} if len(self._numbers) > 1 else {}

    def _parted(self, act: Act) -> set[tuple[int, int]]:
        home = dict.fromkeys(self._lab.stations, -1)
        home |= {station: number for number, group in enumerate(act.groups) for station in group}
        return {(a, b) for a in home for b in home if home[a] != home[b]}

    def _clear(self, stations: set[int]) -> None:
        for station in stations:
            self._base[station] = Impairment()
        for number, act in enumerate(self._active):
            if act.do in _IMPAIRING:
                self._active[number] = replace(act, stations=tuple(s for s in act.stations if s not in stations))
        self._network()

    def _link(self, act: Act, station: Station) -> None:
        """Break or repair an interface."""
        link = _upon(act)
        if act.do in _MENDING:
            self._mend.pop((act.do, station.id, link), None)
            self._links = [o for o in self._links if _LINKS.get(o.do, (None, ""))[1] != act.do or _upon(o) != link]
            self._mended(act.do, station, link)
        elif act.do in _LINKS:
            break_it, word = _LINKS[act.do]
            break_it(station, link)
            self._broken(act, word, station.id, lambda: self._mended(word, station, link))
        elif act.do == "rename":
            before = str(station.interface_of(link)["name"])
            station.rename_interface(act.values["to"], link)
            self._broken(act, "rename", station.id, lambda: station.rename_interface(before, link))
        elif act.do == "cross":
            station.cross_cables()
            self._broken(act, "cross", station.id, lambda: station.cross_cables(are_crossed=False))
        elif act.do == "mtu":
            mtu = int(station.interface_of(link)["mtu"])
            station.set_mtu(act.values["mtu"], act.values.get("port_mtu"), link)
            if act.end_ms is not None:
                self._broken(act, "mtu", station.id, lambda: station.set_mtu(mtu, link=link))
        else:
            station.set_mac(act.values["mac"], link)

    def _broken(self, act: Act, word: str, station: int, mend: Callable[[], None]) -> None:
        """station: 0: it is of none."""
        self._links.append(act)
        self._mend[word, station, _upon(act)] = (act, mend)

    @staticmethod
    def _mended(word: str, station: Station, link: int) -> None:
        if word != "create-interface" or not station.interface_of(link)["present"]:
            _MENDING[word](station, link)

    def _mark(self, act: Act, does: str) -> None:
        self._journal.write({"k": "fault", "what": str(act), "number": act.number, "does": does})
        self._say(str(act) if does == "begin" else f"end of {act.do} {listing(act.stations) if act.stations else ''}".rstrip())


def _upon(act: Act) -> int:
    """The link whose interfaces an act is about."""
    return act.link or 1


def _is_of(act: Act, station: int) -> bool:
    return station in act.stations or not station


def _cut(act: Act) -> set[tuple[int, int]]:
    pairs = {(a, b) for a in act.stations for b in act.others if a != b}
    return pairs | ({(b, a) for a, b in pairs} if act.values.get("both") else set())


def carry_out(nemesis: Nemesis, acts: Sequence[Act], began: float) -> None:
    """Begin and end all acts at their times; what is late is done at once. Raises LabError."""
    steps = [(act.begin_ms, 0, act) for act in acts]
    steps += [(act.end_ms, 1, act) for act in acts if act.end_ms is not None]
    for at_ms, ends, act in sorted(steps, key=lambda step: (step[0], step[1], step[2].number)):
        # The plan's times are the stimulus; nothing is waited for here.
        time.sleep(max(0.0, began + at_ms / 1000 - time.monotonic()))
        if ends:
            nemesis.end(act)
        else:
            nemesis.begin(act)
