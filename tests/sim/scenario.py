"""Scenarios are text: commands, a line ``----``, what they print. ``pytest --rewrite`` writes the second part anew.

    cluster stations=3 window=8 need_ack=0     open a cluster without faults and let it fall silent (names: ``options.quiet``)
    send station=1 size=64 [count=2] [ack]     a program hands over messages, of which somebody may want level ack
    lose from=1 to=2 kind=DATA [count=1]       the next such copies are lost (any from, to or kind if left out)
    cut from=1 to=2 · heal                     one direction carries nothing · everything carries again
    pause station=2 · resume station=2         SIGSTOP, SIGCONT
    run 5ms                                    let time pass and print every frame but heartbeats
    count until=preack|ack                     let time pass until every station has the level; print how many frames it took
    quiet 200ms                                let time pass and print only how many frames were not heartbeats
    show                                       positions of all stations

Times are counted from the command's start; sequence numbers from the stream's first, clocks from the instance's first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from zenjun.proto.wire import Flag, Kind

from . import frames
from .cluster import Simulation
from .facts import ACK, PREACK
from .options import MS, US, S, quiet

SEPARATOR: Final = "----"
HEARTBEAT_NS: Final = 1 * S
"""Far apart, so that a scenario rarely meets one."""
COUNT_LIMIT_NS: Final = 2 * S


class Scenario:
    """Carries out commands on one cluster; each returns the lines it prints."""

    def __init__(self) -> None:
        self.sim: Simulation | None = None
        self._since = 0
        self._seen: list[tuple[int, int, frames.Frame, bool]] = []
        """(time, station, frame, heartbeat?) of this command."""
        self._said: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._lose: list[list[Any]] = []

    def command(self, line: str) -> list[str]:
        word, *rest = line.split()
        named = dict(item.split("=", 1) for item in rest if "=" in item)
        plain = [item for item in rest if "=" not in item]
        run: Callable[..., list[str]] = getattr(self, f"do_{word}")
        return run(*plain, **named)

    def do_cluster(self, **named: str) -> list[str]:
        values: dict[str, Any] = {k: float(v) if k == "need_ack" else int(v) for k, v in named.items()}
        options = quiet(heartbeat_ns=HEARTBEAT_NS, silence_ns=5 * HEARTBEAT_NS, **values)
        sim = self.sim = Simulation(1, options)
        sim.on_frame = self._see
        sim.network.drop_next = self._loses
        sim.start()
        opened = sim.clockwork.run(2 * S, lambda: all(v is not None for v in sim.facts.views))
        sim.clockwork.run(sim.clockwork.now + 200 * MS)
        instances = sorted(sim.facts.instances)
        return [f"open: {len(sim.stations)} stations, instance {instances[-1]}" if opened else "not open"]

    def do_send(self, *plain: str, station: str, size: str, count: str = "1") -> list[str]:
        for _ in range(int(count)):
            self._sim().submit(int(station) - 1, 0, int(size), need_ack="ack" in plain)
        return []

    def do_lose(self, count: str = "1", kind: str = "", to: str = "", **named: str) -> list[str]:
        self._lose.append([int(named.get("from", "0")) - 1, int(to or "0") - 1, Kind[kind] if kind else None, int(count)])
        return []

    def do_cut(self, to: str, **named: str) -> list[str]:
        self._sim().network.cuts.add((int(named["from"]) - 1, int(to) - 1))
        return []

    def do_heal(self) -> list[str]:
        self._sim().network.heal()
        self._lose.clear()
        return []

    def do_pause(self, station: str) -> list[str]:
        self._sim().stations[int(station) - 1].pause()
        return []

    def do_resume(self, station: str) -> list[str]:
        self._sim().stations[int(station) - 1].resume()
        return []

    def do_run(self, time: str) -> list[str]:
        sim = self._sim()
        began = self._begin()
        sim.clockwork.run(began + _duration(time))
        return [self._line(at - began, station, f) for at, station, f, heartbeat in self._seen if not heartbeat] + self.do_show()

    def do_count(self, until: str) -> list[str]:
        sim = self._sim()
        level = {"preack": PREACK, "ack": ACK}[until]
        began = self._begin()

        def done() -> bool:
            return all(
                v is not None and v.instance.messages() and v.released[level] == len(v.records) == v.instance.messages()
                for v in sim.facts.views
            )

        reached = sim.clockwork.run(began + COUNT_LIMIT_NS, done)
        return [f"{len(self._seen)} frames to {until}" if reached else f"{until} not reached"]

    def do_quiet(self, time: str) -> list[str]:
        began = self._begin()
        self._sim().clockwork.run(began + _duration(time))
        return [f"{sum(not heartbeat for *_, heartbeat in self._seen)} frames besides heartbeats"]

    def do_show(self) -> list[str]:
        out = []
        for s, view in enumerate(self._sim().facts.views):
            what = (
                "in no instance"
                if view is None
                else "ordered {} preack {} ack {}".format(*view.positions) + f", {len(view.records)} messages"
            )
            out.append(f"  s{s + 1}: {what}")
        return out

    # ---- inside
    def _sim(self) -> Simulation:
        if self.sim is None:
            raise ValueError("no cluster yet")
        return self.sim

    def _see(self, station: int, f: frames.Frame) -> None:
        """A heartbeat is a CONFIRM that is no POLL and says what its station's last frame has said."""
        news = (f.ack, f.pack or self._said.get(station, ((), ()))[1])
        heartbeat = f.kind == Kind.CONFIRM and not f.flags & Flag.POLL and self._said.get(station) == news
        self._said[station] = news
        self._seen.append((self._sim().clockwork.now, station, f, heartbeat))

    def _begin(self) -> int:
        self._seen.clear()
        return self._sim().clockwork.now

    def _loses(self, src: int, dst: int, pdu: bytes) -> bool:
        kind = frames.parse(pdu).kind
        for rule in self._lose:
            if rule[3] and rule[0] in (-1, src) and rule[1] in (-1, dst) and rule[2] in (None, kind):
                rule[3] -= 1
                return True
        return False

    def _line(self, at: int, station: int, f: frames.Frame) -> str:
        sim = self._sim()
        inst = sim.facts.instances[f.instance]

        def relative(values: tuple[int, ...]) -> str:
            return " ".join(str(inst.unwrap(v) - inst.first_seq) for v in values)

        flags = "".join(f" {x.name}" for x in Flag if f.flags & x and x is not Flag.PACK)
        whose = "" if f.src == station + 1 else f" (of s{f.src})"
        vectors = f"A[{relative(f.ack)}]" + (f" P[{relative(f.pack)}]" if f.pack else "")
        wants = ""
        if f.kind == Kind.NAK:
            stream, ranges = frames.ranges(f)
            numbers = [k for first, span in ranges for k in range(first, first + span)]
            wants = f" wants s{stream} {relative(tuple(numbers))}"
        head = f"{frames.name(f.kind)}{flags}{whose} seq={relative((f.seq,))} clock={f.clock & 0xFFFFFFFF}"
        return f"  {at / US:8.1f} us  s{station + 1} {head} {vectors}{wants}"


def _duration(text: str) -> int:
    for unit, ns in (("us", US), ("ms", MS), ("s", S)):
        if text.endswith(unit):
            return int(text[: -len(unit)]) * ns
    raise ValueError(f"{text}: a time ends with us, ms or s")


def carry_out(path: Path) -> tuple[str, str]:
    """(the file as it is, as it would be if all that is expected were written anew)."""
    text = path.read_text()
    commands = text.split(f"\n{SEPARATOR}\n")[0]
    scenario = Scenario()
    out = []
    for line in commands.splitlines():
        if line.strip() and not line.startswith("#"):
            out += [f"> {line}", *scenario.command(line)]
    return text, "\n".join([commands.rstrip("\n"), SEPARATOR, *out]) + "\n"
