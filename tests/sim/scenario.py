"""Scenarios are text: commands, a line ``----``, what they print. ``pytest --rewrite`` writes the second part anew.

    cluster stations=3 window=8 need_ack=0     open a cluster without faults and let it fall silent (names: ``options.quiet``;
                                               name_ms=5 is name_ns in milliseconds; required=1,2)
    send station=1 size=64 [count=2] [ack]     a program hands over messages, of which somebody may want level ack
    lose from=1 to=2 kind=DATA of=3 [count=1]  the next such copies are lost (any sender, receiver, kind or source if left out)
    cut from=1 to=2 · heal [from=1 to=2]       one direction carries nothing · everything carries again, or this direction
    pause station=2 · resume station=2         SIGSTOP, SIGCONT
    crash station=2 · boot station=2           the power fails, and stays off · comes back
    leave station=2 · expel station=1 who=2    it says good-bye and stays away · an operator at station 1 wants 2 out
    memory station=2 · memory station=2 none   its system has some for large messages (again) · has none
    peers                                      how each station sees each other one: A AAS AS S SSA SA
    run 5ms                                    let time pass and print every frame but heartbeats
    count until=preack|ack                     let time pass until every station has the level; print how many frames it took
    quiet 200ms                                let time pass and print only how many frames were not heartbeats
    show                                       positions of all stations
    members                                    instance and members at each station, view events it has delivered
    claims                                     what each station in no instance says of its last one: a view, and how many
                                               PDUs after its event had reached preack

A file whose first command is ``replay`` is the schedule of one run, frame by frame: schedule.py.

Times are counted from the command's start; sequence numbers from the stream's first, clocks from the instance's first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from zenjun.proto import wire
from zenjun.proto.timers import NEVER
from zenjun.proto.wire import Flag, Kind

from . import frames, schedule
from .cluster import Simulation
from .facts import ACK, PREACK, VIEW, Delivery
from .options import MS, US, S, quiet

SEPARATOR: Final = "----"
HEARTBEAT_NS: Final = 1 * S
"""Far apart, so that a scenario rarely meets one."""
COUNT_LIMIT_NS: Final = 2 * S


class Scenario:
    """Carries out commands on one cluster; each returns the lines it prints."""

    def __init__(self, rules: tuple[str, ...] = (), fault: int = 0, only: tuple[str, ...] = ()) -> None:
        """rules: of the agreement, fault: bits of ``Fault``: broken on purpose at every station. only: these checkers; default
        all."""
        self._rules, self._fault, self._only = rules, fault, only
        self.sim: Simulation | None = None
        self._since = 0
        self._seen: list[tuple[int, int, frames.Frame, bool]] = []
        """(time, station, frame, heartbeat?) of this command."""
        self._said: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._views: list[tuple[int, str]] = []
        self._lose: list[list[Any]] = []

    def command(self, line: str) -> list[str]:
        word, *rest = line.split()
        named = dict(item.split("=", 1) for item in rest if "=" in item)
        plain = [item for item in rest if "=" not in item]
        run: Callable[..., list[str]] = getattr(self, f"do_{word}")
        return run(*plain, **named)

    def do_cluster(self, **named: str) -> list[str]:
        times = {"heartbeat_ns": HEARTBEAT_NS, "fail_timeout_ns": 5 * HEARTBEAT_NS, "give_up_timeout_ns": 20 * HEARTBEAT_NS}
        options = quiet(**{**times, **dict(_option(k, v) for k, v in named.items())})
        if self._rules or self._fault:
            everybody = tuple(range(options.stations))
            options = replace(options, rules=self._rules, defects=self._fault, defective=everybody)
        sim = self.sim = Simulation(1, options, self._only)
        sim.on_frame = self._see
        sim.on_delivery = self._note
        sim.network.drop_next = self._loses
        sim.start()
        opened = sim.clockwork.run(2 * S, lambda: all(v is not None for v in sim.facts.stays))
        sim.clockwork.run(sim.clockwork.now + 200 * MS)
        instances = sorted(sim.facts.instances)
        return [f"open: {len(sim.stations)} stations, instance {instances[-1]}" if opened else "not open"]

    def do_send(self, *plain: str, station: str, size: str, count: str = "1") -> list[str]:
        for _ in range(int(count)):
            self._sim().submit(int(station) - 1, 0, int(size), need_ack="ack" in plain, op="op" in plain)
        return []

    def do_crash(self, station: str) -> list[str]:
        sim, s = self._sim(), int(station) - 1
        sim.facts.absent.add(s)  # nobody switches it on again
        sim.stations[s].crash()
        return []

    def do_leave(self, station: str) -> list[str]:
        sim, s = self._sim(), int(station) - 1
        sim.facts.absent.add(s)
        sim.stations[s].leave()
        return []

    def do_boot(self, station: str) -> list[str]:
        sim, s = self._sim(), int(station) - 1
        sim.facts.absent.discard(s)
        sim.stations[s].boot()
        return []

    def do_expel(self, station: str, who: str) -> list[str]:
        return [] if self._sim().stations[int(station) - 1].expel(int(who) - 1) else ["refused"]

    def do_peers(self) -> list[str]:
        out = []
        for s, station in enumerate(self._sim().stations):
            if station.engine is None:
                out.append(f"  s{s + 1}: down")
                continue
            row = station.engine.status(station.now())["membership"]["letters"][str(s + 1)]
            text = " ".join(f"{other}={state}" for other, state in sorted(row.items())) if row else "in no instance"
            out.append(f"  s{s + 1}: {text}")
        return out

    def do_members(self) -> list[str]:
        out = []
        for s, stay in enumerate(self._sim().facts.stays):
            if stay is None:
                out.append(f"  s{s + 1}: in no instance")
                continue
            members = " ".join(f"{m + 1}.{stay.instance.incarnations[m]}" for m in stay.instance.members)
            views = [str(frames.view(r.data).instance) for r in stay.records if r.type == VIEW]
            out.append(f"  s{s + 1}: instance {stay.instance.number} of {members}; views {' '.join(views) or '-'}")
        return out

    def do_claims(self) -> list[str]:
        sim, out = self._sim(), []
        numbers = {instance.hash: number for number, instance in sim.facts.instances.items()}
        for s, stay in enumerate(sim.facts.stays):
            if stay is None and sim.stations[s].engine is not None:
                view, count = sim.stations[s].claim()
                out.append(f"  s{s + 1}: view {numbers[view]} + {count}" if view else f"  s{s + 1}: nothing")
        return out

    def do_lose(self, count: str = "1", kind: str = "", to: str = "", **named: str) -> list[str]:
        sender, source = (int(named.get(name, "0")) for name in ("from", "of"))
        self._lose.append([sender - 1, int(to or "0") - 1, Kind[kind] if kind else None, int(count), source])
        return []

    def do_cut(self, to: str, **named: str) -> list[str]:
        sim, link = self._sim(), (int(named["from"]) - 1, int(to) - 1)
        sim.network.cuts.add(link)
        sim.facts.linked_since[link] = NEVER
        return []

    def do_heal(self, to: str = "", **named: str) -> list[str]:
        sim = self._sim()
        links = [(int(named["from"]) - 1, int(to) - 1)] if to else [*sim.network.cuts]
        sim.network.cuts.difference_update(links)
        sim.facts.linked_since.update(dict.fromkeys(links, sim.clockwork.now))
        if to:
            return []
        sim.network.heal()
        self._lose.clear()
        return []

    def do_pause(self, station: str) -> list[str]:
        self._sim().stations[int(station) - 1].pause()
        return []

    def do_resume(self, station: str) -> list[str]:
        self._sim().stations[int(station) - 1].resume()
        return []

    def do_memory(self, *plain: str, station: str) -> list[str]:
        self._sim().stations[int(station) - 1].refuse_memory("none" in plain)
        return []

    def do_run(self, time: str) -> list[str]:
        sim = self._sim()
        began = self._begin()
        sim.clockwork.run(began + _duration(time))
        lines = [(at, 0, self._line(at - began, station, f)) for at, station, f, heartbeat in self._seen if not heartbeat]
        lines += [(at, 1, f"  {(at - began) / US:8.1f} us  {text}") for at, text in self._views]
        return [text for *_, text in sorted(lines, key=lambda line: line[:2])] + self.do_show()

    def do_count(self, until: str) -> list[str]:
        sim = self._sim()
        level = {"preack": PREACK, "ack": ACK}[until]
        began = self._begin()

        def done() -> bool:
            total = sum(len(taken) for stream in sim.facts.streams.values() for taken in stream.taken.values())
            return bool(total) and all(v is not None and v.released[level] == len(v.records) == total for v in sim.facts.stays)

        reached = sim.clockwork.run(began + COUNT_LIMIT_NS, done)
        return [f"{len(self._seen)} frames to {until}" if reached else f"{until} not reached"]

    def do_quiet(self, time: str) -> list[str]:
        began = self._begin()
        self._sim().clockwork.run(began + _duration(time))
        return [f"{sum(not heartbeat for *_, heartbeat in self._seen)} frames besides heartbeats"]

    def do_show(self) -> list[str]:
        out = []
        for s, stay in enumerate(self._sim().facts.stays):
            if stay is None:
                what = "in no instance"
            else:
                messages = sum(r.type != VIEW for r in stay.records)
                what = "ordered {} preack {} ack {}".format(*stay.positions) + f", {messages} messages"
            out.append(f"  s{s + 1}: {what}")
        return out

    # ---- inside
    def _sim(self) -> Simulation:
        if self.sim is None:
            raise ValueError("no cluster yet")
        return self.sim

    def _see(self, station: int, f: frames.Frame) -> None:
        """A heartbeat is a CONFIRM that is no POLL and says what its station's last frame has said."""
        news: tuple[tuple[int, ...], ...] = (f.ack, f.pack or self._said.get(station, ((), ()))[1])
        if f.kind == Kind.CONFIRM:
            news += ((f.instance, *frames.bitmaps(f)),)
        elif (old := self._said.get(station)) is not None:
            news += old[2:]
        heartbeat = f.kind == Kind.CONFIRM and not f.flags & Flag.POLL and self._said.get(station) == news
        self._said[station] = news
        self._seen.append((self._sim().clockwork.now, station, f, heartbeat))

    def _note(self, station: int, record: Delivery) -> None:
        """View events are worth a line."""
        if record.type == VIEW:
            self._views.append((self._sim().clockwork.now, f"s{station + 1} delivers {record.name()}"))

    def _begin(self) -> int:
        self._seen.clear()
        self._views.clear()
        return self._sim().clockwork.now

    def _loses(self, src: int, dst: int, pdu: bytes) -> bool:
        f = frames.parse(pdu)
        for rule in self._lose:
            if rule[3] and rule[0] in (-1, src) and rule[1] in (-1, dst) and rule[2] in (None, f.kind) and rule[4] in (0, f.src):
                rule[3] -= 1
                return True
        return False

    def _line(self, at: int, station: int, f: frames.Frame) -> str:
        facts = self._sim().facts
        instance = facts.instances.get(f.instance)

        def relative(h: int, value: int) -> int:
            """Counted from the first of that stream."""
            stream = facts.streams.get((h, instance.incarnations[h])) if instance else None
            return stream.unwrap(value) - stream.first_seq if stream else 0

        def vector(values: tuple[int, ...]) -> str:
            return " ".join(str(relative(h, v)) for h, v in enumerate(values))

        flags = "".join(f" {x.name}" for x in Flag if f.flags & x and x is not Flag.PACK)
        whose = "" if f.src == station + 1 else f" (of s{f.src})"
        head = f"  {at / US:8.1f} us  s{station + 1} {frames.name(f.kind)}{flags}{whose}"
        if f.kind in (Kind.OPEN, Kind.RCV):
            return f"{head} incarnation={f.incarnation}"
        vectors = f"A[{vector(f.ack)}]" + (f" P[{vector(f.pack)}]" if f.pack else "")
        more = ""
        if f.kind == Kind.NAK:
            stream, ranges = frames.ranges(f)
            numbers = [k for first, span in ranges for k in range(first, first + span)]
            more = f" wants s{stream} {' '.join(str(relative(stream - 1, k)) for k in numbers)}"
        if f.kind in (Kind.CONFIRM, *wire.PROPOSALS):
            state, trans = frames.bitmaps(f)
            if state or trans or f.kind != Kind.CONFIRM:
                n = len(f.ack)
                more += f" STATE={state:0{n}b} TRANS={trans:0{n}b}"
        if f.kind in wire.PROPOSALS:
            proposal = frames.proposal(f)
            more += f" of {' '.join(str(m + 1) for m in proposal.members)}"
        inst = f" in {f.instance}" if f.instance != 1 else ""
        return f"{head}{inst} seq={relative(f.src - 1, f.seq)} clock={f.clock & 0xFFFFFFFF} {vectors}{more}"


def _option(name: str, value: str) -> tuple[str, Any]:
    """Field of ``Options`` and its value."""
    if name.endswith("_ms"):
        return f"{name[:-3]}_ns", int(float(value) * MS)
    if name == "required":
        return name, tuple(int(v) for v in value.split(","))
    return name, float(value) if name in ("need_ack", "op") else int(value)


def _duration(text: str) -> int:
    for unit, ns in (("us", US), ("ms", MS), ("s", S)):
        if text.endswith(unit):
            return int(text[: -len(unit)]) * ns
    raise ValueError(f"{text}: a time ends with us, ms or s")


def carry_out(path: Path, rules: tuple[str, ...] = (), fault: int = 0, only: tuple[str, ...] = ()) -> tuple[str, str]:
    """(the file as it is, as it would be if all that is expected were written anew). Raises ``Violation``."""
    text = path.read_text()
    commands = text.split(f"\n{SEPARATOR}\n")[0]
    scenario = Scenario(rules, fault, only)
    out = []
    lines = [line for line in commands.splitlines() if line.strip() and not line.startswith("#")]
    if lines and lines[0].split()[0] == schedule.COMMAND:  # what happened in a run, as a whole
        result = schedule.replay(lines, rules)
        if rules and result.violation:
            raise result.violation
        out, lines = [schedule.outcome(result)], []
    for line in lines:
        out += [f"> {line}", *scenario.command(line)]
    return text, "\n".join([commands.rstrip("\n"), SEPARATOR, *out]) + "\n"
