"""The properties that every run must have, judged by what really happened. docs/multicast.md lists them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from zenjun.proto.multicast.records import Data, Decide, Deliver, DeliverView, Effect, Fenced, Id, Opened, Record, Release, Report
from zenjun.proto.multicast.tables import Era, EraNumber, TokenTable
from zenjun.proto.multicast.work import Message

from ...sim.violation import Violation

if TYPE_CHECKING:
    from .net import Host, Net

Life = tuple[int, int]
CHECKERS: Final = frozenset(
    {
        "complete",
        "once",
        "agreed",
        "uniform",
        "order",
        "program",
        "views",
        "genuine",
        "one_time",
        "place",
        "tokens",
        "bounded",
        "rest",
        "digest",
        "link",
        "addresses",
    }
)


class Sent:
    """A message as its originator took it."""

    def __init__(self, life: Life, message: Message, released: int, delivered: int) -> None:
        self.life = life
        self.id = message.id
        self.program = message.program
        self.order = message.order
        self.groups = message.groups
        self.content = message.data.content if message.data is not None else -1
        self.released = released
        """How many messages the station had released at preack before."""
        self.delivered = delivered


class Checks:
    """The checkers of one run. ``only`` leaves all others out."""

    def __init__(self, net: Net, only: frozenset[str] = CHECKERS) -> None:
        self.net = net
        self.only = only
        self.sent: dict[Id, Sent] = {}
        self.removed = False
        """A station was removed in this run."""
        self._eras: dict[EraNumber, Era] = {}
        self._delivered: defaultdict[Life, list[Deliver]] = defaultdict(list)
        self._names: defaultdict[Life, set[Id]] = defaultdict(set)
        self._released: defaultdict[Life, list[Id]] = defaultdict(list)
        self._places: dict[tuple[Life, str], tuple[int, int, int]] = {}
        self._view_places: dict[EraNumber, int] = {}
        self._opened: defaultdict[EraNumber, dict[Life, frozenset[Id]]] = defaultdict(dict)
        self._last_opened: dict[Life, EraNumber] = {}
        self._decided: dict[Id, int] = {}
        self._told: set[tuple[Life, int, Id]] = set()
        self._before = (0, 0)

    def fail(self, checker: str, text: str) -> None:
        if checker in self.only:
            raise Violation(checker, f"{self.net.now / 1e6:.3f} ms: {text}")

    # ---- events

    def on_era(self, era: Era) -> None:
        """A new era has its place in the main order."""
        before = self._eras.get(era.number)
        if before is None:
            self._eras[era.number] = era
            table = era.tables["token"]
            assert isinstance(table, TokenTable)
            supers = {group: table.super_host(group) for group in table.groups}
            problem = token_problem(table.groups, table.hosts, supers)
            if problem:
                self.fail("tokens", f"{era.number}: {problem}")

    def before_send(self, host: Host) -> None:
        self._before = (len(self._released[host.life]), len(self._delivered[host.life]))

    def on_sent(self, host: Host, message: Message) -> None:
        self.sent[message.id] = Sent(host.life, message, *self._before)

    def on_effect(self, host: Host, effect: Effect) -> None:
        if isinstance(effect, Deliver):
            self._on_deliver(host, effect)
        elif isinstance(effect, DeliverView):
            self._on_view(host, effect)
        elif isinstance(effect, Release):
            self._released[host.life].append(effect.id)
        elif isinstance(effect, Opened):
            self._on_opened(host, effect.era)
        elif isinstance(effect, Fenced):
            self.fail("digest", effect.text)

    def _on_deliver(self, host: Host, d: Deliver) -> None:
        life, sent = host.life, self.sent.get(d.id)
        if d.id in self._names[life]:
            self.fail("once", f"{life} has delivered {d.id} twice")
        if sent is None or (sent.content, sent.program, sent.groups) != (d.content, d.program, d.groups):
            self.fail("once", f"{life} has delivered {d}, sent was {vars(sent) if sent else None}")
        if life not in self.destinations(d.id) and d.id.era in self._eras:
            self.fail("once", f"{life} has delivered {d.id} and is no destination")
        earlier = [e.id.number for e in self._delivered[life] if (e.program, e.order) == (d.program, d.order)]
        if earlier and earlier[-1] > d.id.number:
            self.fail("program", f"{life} has delivered {d.id} after number {earlier[-1]} of the same program")
        self._names[life].add(d.id)
        self._delivered[life].append(d)
        self._place(life, d.order, (d.time, d.id.origin, d.id.number))

    def _place(self, life: Life, order: str, place: tuple[int, int, int]) -> None:
        before = self._places.get((life, order), (0, 0, 0))
        if place <= before:
            self.fail("place", f"{life}, order {order}: place {place} comes after {before}")
        self._places[life, order] = place

    def _on_view(self, host: Host, view: DeliverView) -> None:
        for order in ("abcast", "token"):
            self._place(host.life, order, (view.time, 0, 0))
        if host.cut:
            return  # it may have what no other station ever has; it will be expelled
        time = self._view_places.setdefault(view.era, view.time)
        if time != view.time:
            self.fail("views", f"{host.life} has the views of {view.era} at {view.time}, others at {time}")
        self._compare_eras(host.life, view.era)

    def _on_opened(self, host: Host, era: EraNumber) -> None:
        if not host.cut:
            self._last_opened[host.life] = era

    def _compare_eras(self, life: Life, era: EraNumber) -> None:
        """Incarnations that continue to an era have delivered the same in the eras before.

        One that is gone is not compared: it may have delivered at level ordered what no other station has. What it had released
        is the subject of ``uniform``.
        """
        mine = self._opened[era][life] = frozenset(name for name in self._names[life] if name.era < era)
        late = [name for name in self._names[life] if name.era >= era]
        if late:
            self.fail("views", f"{life} has delivered {late} before the views of {era}")
        for other, theirs in self._opened[era].items():
            if not self.net.hosts[other].alive or self.net.hosts[other].cut:
                continue
            for name in mine ^ theirs:
                if {life, other} <= self.destinations(name):
                    who, lacks = (life, other) if name in mine else (other, life)
                    self.fail("views", f"before {era} {who} has delivered {name}, and {lacks} has not")

    def on_record(self, host: Host, to: int, record: Record) -> None:
        """Only destinations and the originator have to do with a message, and each record comes once."""
        if isinstance(record, Data):
            self._genuine(host, to, record.id)
        elif isinstance(record, Report | Decide):
            for name in record.ids():
                self._genuine(host, to, name)
                if isinstance(record, Decide):
                    self._on_decide(host, to, name, record.time)

    def _on_decide(self, host: Host, to: int, name: Id, time: int) -> None:
        if self._decided.setdefault(name, time) != time:
            self.fail("one_time", f"{host.life} says {time} of {name}, before it was {self._decided[name]}")
        if (host.life, to, name) in self._told:
            self.fail("one_time", f"{host.life} tells {to} twice of {name}")
        self._told.add((host.life, to, name))

    def _genuine(self, host: Host, to: int, name: Id) -> None:
        if host.cut or name.era not in self._eras:
            return  # it is being removed, and may have an era of its own, with a number that others use for another one
        allowed = {station for station, _ in self.destinations(name)} | {name.origin}
        if not {host.station, to} <= allowed:
            self.fail("genuine", f"{host.life} sends {to} something about {name}, which is for {sorted(allowed)}")

    def on_input(self, host: Host) -> None:
        """Memory of a station, after each of its inputs."""
        machine, window = host.machine, self.net.window
        if machine is None:
            return
        if len(machine.unfinished) > window:
            self.fail("bounded", f"{host.life} has {len(machine.unfinished)} unfinished messages")
        held = Counter(m.program[:2] for m in machine.messages.values() if m.data is not None)
        waiting = Counter(record.program[:2] for _, record in machine.waiting if isinstance(record, Data))
        for life in held | waiting:
            if held[life] > window or held[life] + waiting[life] > 2 * window:
                self.fail("bounded", f"{host.life} holds {held[life]} and {waiting[life]} messages of {life}")

    # ---- the end

    def destinations(self, name: Id) -> frozenset[Life]:
        """A message's destinations by the tables of its era, each in its incarnation."""
        sent, era = self.sent.get(name), self._eras.get(name.era)
        if sent is None or era is None:
            return frozenset()
        return frozenset((z, era.part[z]) for z in era.tables[sent.order].destinations(sent.groups))

    def at_end(self) -> None:
        """After the repair, when nothing happens any more."""
        staying = {host.life for host in self.net.hosts.values() if host.alive and not host.cut}
        for name, sent in self.sent.items():
            for life in self.destinations(name) & staying:
                if sent.life in staying and name not in self._names[life]:
                    self.fail("complete", f"{life} has not delivered {name} of {sent.life}")
        self._uniform(staying)
        self._all_agree(staying)
        sequences = self._sequences(staying)
        for order in ("abcast", "token"):
            self._acyclic(order, [s for (_, o), s in sequences.items() if o == order])
        for (life, order), sequence in sequences.items():
            self._causal(life, order, sequence)
        self._rest(staying)

    def _uniform(self, staying: set[Life]) -> None:
        for life, names in self._released.items():
            for name in names:
                for other in self.destinations(name):
                    goes_on = other in staying or self._last_opened.get(other, name.era) > name.era
                    if goes_on and name not in self._names[other]:
                        self.fail("uniform", f"{life} has released {name}, {other} has not delivered it")

    def _all_agree(self, staying: set[Life]) -> None:
        for life in staying:
            for d in self._delivered[life]:
                for other in self.destinations(d.id) & staying:
                    if d.id not in self._names[other]:
                        self.fail("agreed", f"{life} has delivered {d.id}, {other} has not")
        times: dict[Id, int] = {}
        for life in staying:
            for d in self._delivered[life]:
                if times.setdefault(d.id, d.time) != d.time:
                    self.fail("one_time", f"{life} has delivered {d.id} at {d.time}, another one at {times[d.id]}")

    def _sequences(self, staying: set[Life]) -> dict[tuple[Life, str], list[Deliver]]:
        """What each incarnation has finally delivered; of one that is gone, what it had released."""
        found: dict[tuple[Life, str], list[Deliver]] = {}
        for life, delivered in self._delivered.items():
            released = set(self._released[life])
            for order in ("abcast", "token"):
                found[life, order] = [d for d in delivered if d.order == order and (life in staying or d.id in released)]
        return found

    def _acyclic(self, order: str, sequences: list[list[Deliver]]) -> None:
        """All stations' orders together have no cycle, so any two of them agree on what they share."""
        graph: defaultdict[Id, set[Id]] = defaultdict(set)
        for sequence in sequences:
            for before, after in pairwise(sequence):
                graph[after.id].add(before.id)
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            self.fail("order", f"order {order}: {error.args[1]}")

    def _causal(self, life: Life, order: str, sequence: list[Deliver]) -> None:
        """What a station had released when it sent comes before; what it had delivered, if no station was removed."""
        place = {d.id: k for k, d in enumerate(sequence)}
        for d in sequence:
            sent = self.sent[d.id]
            before = self._released[sent.life][: sent.released]
            if not self.removed:
                before = [e.id for e in self._delivered[sent.life][: sent.delivered]]
            for name in before:
                if name in place and place[name] > place[d.id]:
                    self.fail("program", f"{life} has {d.id} before {name}, which {sent.life} had when it sent")

    def _rest(self, staying: set[Life]) -> None:
        for life in sorted(staying):
            machine = self.net.hosts[life].machine
            if machine is None or not machine.is_open or machine.era.number != self.net.reference.era.number:
                self.fail("rest", f"{life} is not in the last era")
                continue
            under_way = [m.id for m in machine.messages.values() if not m.finished]
            if under_way or machine.deadline is not None or len(machine.main.eras) > 1:
                self.fail("rest", f"{life} still has {under_way}, deadline {machine.deadline}, eras {machine.main.eras}")
            sequences = {order: names for order, names in machine.sequence.items() if names}
            if sequences:
                self.fail("rest", f"{life} has not released {sequences}")


def token_problem(groups: Mapping[int, Collection[int]], hosts: Collection[int], supers: Mapping[int, int]) -> str | None:
    """What is wrong with tokens, or None. ``supers`` has the super token host of each group with two or more token hosts."""
    of = {z: frozenset(g for g, stations in groups.items() if z in stations) for stations in groups.values() for z in stations}
    for host in hosts:
        if host not in of:
            return f"{host} has a token and is in no group"
        if any(of[host] <= of[other] for other in hosts if other != host):
            return f"{host} has a token although another token host is in all its groups"
    for group, stations in groups.items():
        here = set(hosts) & set(stations)
        if stations and not here:
            return f"group {group} has no token host"
        if len(here) > 1 and supers.get(group) not in here:
            return f"group {group} has token hosts {sorted(here)} and super token host {supers.get(group)}"
    for station, own in of.items():
        if not any(own <= of[host] for host in hosts):
            return f"no token host is in all groups of {station}"
    return None
