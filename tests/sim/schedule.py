"""What happened in a run as text, and the same run from that text: stations, messages, faults, the fate of every frame.

    replay stations=3 window=8 faults.loss=0.1 …          options; only what differs from ``options.quiet``. Faults are for the
                                                          checkers: nothing happens on their account
    clock station=1 ppm=17 offset=12345                   its monotonic clock (Clock)
    life station=1 number=2 bits=12,34                    random numbers of its second boot
    at 12345 boot station=1                               at that virtual time in ns. Likewise crash, leave, pause, resume,
    at 12345 expel station=1 who=2                        expel, mtu, send
    at 12345 mtu station=1 bytes=600
    at 12345 send station=1 client=0 size=64 [ack] [op]
    at 12345 apart from=1 to=2 until=22222                a fault of the network: Continuity makes allowance for it
    at 12345 noise to=2 mac=02ee… wake=30 body=aabb…      a frame that no station has sent
    frame 17 from=1 to=2 lost                             the 17th frame that station 1 sends does not reach station 2
    frame 17 from=1 to=2 after=51200 [wake=30] [damage=…] it arrives so many ns after it has left, is read after wake ns, damaged;
                                                          several lines: several copies. Frames without a line arrive whole
                                                          after ``delay_ns``
    power station=1 barrier=3                             the power fails; before and after each Persist counts as a barrier
    absent stations=2,3                                   stay down when all is healed
    next station=1 client=0 size=64 [ack] [op]            load=closed: the next message of that program, in this order
    final station=1 size=64 [ack] [op]                    messages when all is healed, in this order

``python -m tests.sim --seed N --scenario FILE`` writes one; scenarios (``scenario.py``) may be such texts.
"""

from __future__ import annotations

import ast
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from .cluster import LOAD_FROM_NS, Result, Simulation, finish
from .facts import Message
from .network import FRAME_MIN, Network
from .options import Faults, Options, quiet
from .station import Clock, Station
from .violation import Violation

COMMAND: Final = "replay"
CLOSED: Final = "closed"
"""The load that follows what is released: when is not in the text."""


def padded(pdu: bytes) -> bytes:
    """As an undamaged copy arrives."""
    return pdu + b"\xaa" * max(0, FRAME_MIN - len(pdu))


def damage_of(whole: bytes, arrived: bytes) -> str:
    """How an undamaged copy and what has arrived differ: ``length/offset^xor,…/hex of what stands behind``."""
    flips = [f"{at}^{a ^ b}" for at, (a, b) in enumerate(zip(whole, arrived, strict=False)) if a != b]
    return "" if whole == arrived else f"{len(arrived)}/{','.join(flips)}/{arrived[len(whole) :].hex()}"


def damaged(whole: bytes, damage: str) -> bytes:
    """The inverse. Flips beyond the end of a shorter PDU are none."""
    if not damage:
        return whole
    length, flips, behind = damage.split("/")
    out = bytearray(whole)
    for flip in filter(None, flips.split(",")):
        at, value = map(int, flip.split("^"))
        if at < len(out):
            out[at] ^= value
    return bytes(out[: int(length)]) + bytes.fromhex(behind)


@dataclass(slots=True)
class Fate:
    """One copy of the ``number``-th frame of station ``src`` for ``dst`` (both 0..). ``after`` None: lost."""

    src: int
    number: int
    dst: int
    after: int | None
    damage: str = ""
    """What has happened to it (``damage_of``); empty: it is whole."""
    wake: int = 0

    def text(self) -> str:
        out = f"frame {self.number} from={self.src + 1} to={self.dst + 1}"
        if self.after is None:
            return f"{out} lost"
        out += f" after={self.after}" + (f" wake={self.wake}" if self.wake else "")
        return out + (f" damage={self.damage}" if self.damage else "")


# ---- recording
class _RecordedStation(Station):
    host: Recorded  # of the recording kind

    def boot(self) -> None:
        self.host.note("boot", self)
        self.host.bits_taken = []
        number = self._boots + 1
        with_bits = self.host.bits_taken
        super().boot()
        self.host.lines.append(f"life station={self.index + 1} number={number} bits={','.join(map(str, with_bits))}")

    def crash(self) -> None:
        if self.host.dying != self.index:
            self.host.note("crash", self)
        self.host.dying = -1
        super().crash()

    def leave(self) -> None:
        if self.engine is not None:
            self.host.note("leave", self)
            self.host.dying = self.index  # the end of leaving is not another event
        super().leave()
        self.host.dying = -1

    def pause(self) -> None:
        self.host.note("pause", self)
        super().pause()

    def resume(self) -> None:
        if self.paused:
            self.host.note("resume", self)
        super().resume()

    def expel(self, other: int) -> bool:
        self.host.note("expel", self, f" who={other + 1}")
        return super().expel(other)

    def set_mtu(self, mtu: int) -> None:
        if self.engine is not None and not self.paused:
            self.host.note("mtu", self, f" bytes={mtu}")
        super().set_mtu(mtu)

    def submit(self, message: Message) -> None:
        m, flags = message, (" ack" if message.need_ack else "") + (" op" if message.op else "")
        if self.host.healing:
            self.host.lines.append(f"final station={self.index + 1} size={len(m.data)}{flags}")
        elif self.host.options.load == CLOSED:
            self.host.lines.append(f"next station={self.index + 1} client={m.client - 1} size={len(m.data)}{flags}")
        else:
            self.host.note("send", self, f" client={m.client - 1} size={len(m.data)}{flags}", always=True)
        super().submit(message)


class _RecordingNetwork(Network):
    def __init__(self, sim: Recorded) -> None:
        super().__init__(sim.options, sim.rng, sim.clockwork, sim.trace, sim._arrive)
        self.fates: list[Fate] = []
        self.noises: list[tuple[int, Fate, bytes, bytes]] = []
        """(when, to whom, MAC, body)."""
        self.reading: Fate | None = None
        """The copy that arrives now."""
        self._sim = sim
        self._frames: Counter[int] = Counter()
        self._copying: tuple[int, int, bytes] | None = None

    def send(self, src: int, pdu: bytes, mac: bytes) -> None:
        self._frames[src] += 1
        super().send(src, pdu, mac)

    def _copy(self, src: int, dst: int, pdu: bytes, mac: bytes, leaves: int, wire_ns: int, number: int) -> None:
        self._copying = (src, leaves, pdu)
        before = len(self.fates)
        super()._copy(src, dst, pdu, mac, leaves, wire_ns, number)
        self._copying = None
        if len(self.fates) == before:
            self.fates.append(Fate(src, self._frames[src], dst, None))

    def _put(self, when: int, dst: int, pdu: bytes, mac: bytes) -> None:
        if self._copying is None:
            fate = Fate(-1, 0, dst, 0)
            self.noises.append((self._clock.now, fate, mac, pdu))
        else:
            src, leaves, whole = self._copying
            fate = Fate(src, self._frames[src], dst, when - leaves, damage_of(padded(whole), pdu))
            self.fates.append(fate)

        def arrive() -> None:
            self.delivered += 1
            self.reading = fate
            self._receive(dst, pdu, mac)
            self.reading = None

        self._clock.at(when, arrive)


class Recorded(Simulation):
    """A run that is written down while it goes on. It goes on as it would without."""

    network: _RecordingNetwork

    def __init__(self, seed: int, change: Callable[[Options], Options] | None = None) -> None:
        super().__init__(seed, change=change)
        self.lines: list[str] = []
        self.bits_taken: list[int] = []
        self.healing = False
        self.dying = -1
        """Station whose power fails at a barrier: that has a line of its own."""
        self._barriers: Counter[int] = Counter()
        self.network = _RecordingNetwork(self)
        self.clocks = [station.clock for station in self.stations]
        self.stations = [_RecordedStation(self, s, clock) for s, clock in enumerate(self.clocks)]

    def note(self, word: str, station: Station, more: str = "", always: bool = False) -> None:
        if always or self._faulty_phase:
            self.lines.append(f"at {self.clockwork.now} {word} station={station.index + 1}{more}")

    def bits(self, count: int) -> int:
        value = super().bits(count)
        self.bits_taken.append(value)
        return value

    def uniform(self, below: int) -> int:
        value = super().uniform(below)
        if self.network.reading is not None:
            self.network.reading.wake = value
        return value

    def power_fails(self, station: int) -> bool:
        self._barriers[station] += 1
        fails = super().power_fails(station)
        if fails:
            self.dying = station
            self.lines.append(f"power station={station + 1} barrier={self._barriers[station]}")
        return fails

    def _touch_link(self, src: int, dst: int, when: int) -> None:
        if when > self.clockwork.now:
            self.lines.append(f"at {self.clockwork.now} apart from={src + 1} to={dst + 1} until={when}")
        super()._touch_link(src, dst, when)

    def _heal(self) -> None:
        self.healing = True
        super()._heal()
        self.healing = False

    def schedule_lines(self) -> list[str]:
        """After the run: its text, one command a line."""
        o, out = self.options, []
        out.append(f"{COMMAND} {options_text(o)}")
        out += [f"clock station={s + 1} ppm={c.ppm} offset={c.offset}" for s, c in enumerate(self.clocks)]
        if self.facts.absent:
            out.append(f"absent stations={','.join(str(s + 1) for s in sorted(self.facts.absent))}")
        out += self.lines
        out += [
            f"at {at} noise to={f.dst + 1} mac={mac.hex()} wake={f.wake} body={body.hex()}"
            for at, f, mac, body in self.network.noises
        ]
        return out + [f.text() for f in self.network.fates if f.after != o.delay_ns or f.wake or f.damage]


def options_text(o: Options) -> str:
    """Those that differ from a quiet cluster of as many stations; ``read_options`` is the inverse."""
    base, out = asdict(quiet(o.stations)), [f"stations={o.stations}"]
    for name, value in asdict(replace(o, load=o.load if o.load == CLOSED else "none", messages=0)).items():
        if name == "faults":
            out += [f"faults.{k}={v}" for k, v in value.items() if v != base["faults"][k]]
        elif name != "stations" and value != base[name]:
            out.append(f"{name}={str(value).replace(' ', '')}")
    return " ".join(out)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def read_options(named: dict[str, str]) -> Options:
    """Raises ``TypeError`` for an option that there is not."""
    values = {name: _value(text) for name, text in named.items()}
    faults = {k.removeprefix("faults."): values.pop(k) for k in list(values) if k.startswith("faults.")}
    return quiet(int(values.pop("stations")), **values, faults=Faults(**faults))


# ---- replaying
class _ReplayedStation(Station):
    host: Replayed

    def boot(self) -> None:
        self.host.booting = (self.index, self._boots + 1)
        super().boot()


class _ReplayingNetwork(Network):
    def __init__(self, sim: Replayed) -> None:
        super().__init__(sim.options, sim.rng, sim.clockwork, sim.trace, sim._arrive)
        self.fates: dict[tuple[int, int, int], list[Fate]] = defaultdict(list)
        self.wake = 0
        self._frames: Counter[int] = Counter()

    def send(self, src: int, pdu: bytes, mac: bytes) -> None:
        self._frames[src] += 1
        super().send(src, pdu, mac)

    def _copy(self, src: int, dst: int, pdu: bytes, mac: bytes, leaves: int, wire_ns: int, number: int) -> None:
        default = [Fate(src, self._frames[src], dst, self._o.delay_ns)]
        for fate in self.fates.get((src, self._frames[src], dst), default):
            if fate.after is None:
                self._trace.add(self._clock.now, dst, f"lost #{number}")
            else:
                self._deliver(fate, leaves + fate.after, damaged(padded(pdu), fate.damage), mac)

    def _deliver(self, fate: Fate, when: int, body: bytes, mac: bytes) -> None:
        def arrive() -> None:
            self.delivered += 1
            self.wake = fate.wake
            self._receive(fate.dst, body, mac)
            self.wake = 0

        self._clock.at(when, arrive)

    def noise(self, dst: int, body: bytes, mac: bytes, wake: int) -> None:
        self._deliver(Fate(-1, 0, dst, 0, wake=wake), self._clock.now, body, mac)


class Replayed(Simulation):
    """A run from its text. ValueError, KeyError or TypeError: a line cannot be read."""

    network: _ReplayingNetwork

    def __init__(self, lines: list[str], rules: tuple[str, ...] = ()) -> None:
        """rules: of the agreement, broken on purpose at every station."""
        first, *rest = [line.split() for line in lines]
        if first[0] != COMMAND:
            raise ValueError(f"a schedule begins with {COMMAND}")
        options = read_options(_named(first))
        if rules:
            options = replace(options, rules=rules, defective=tuple(range(options.stations)))
        super().__init__(1, options)
        self.network = _ReplayingNetwork(self)
        self.stations = [_ReplayedStation(self, station.index, station.clock) for station in self.stations]
        self.booting = (0, 0)
        self._bits: dict[tuple[int, int], list[int]] = {}
        self._powers: set[tuple[int, int]] = set()
        self._barriers: Counter[int] = Counter()
        self._absent: set[int] = set()
        self._finals: dict[int, list[tuple[int, bool, bool]]] = defaultdict(list)
        self._nexts: dict[tuple[int, int], list[tuple[int, bool, bool]]] = defaultdict(list)
        self._healing = False
        for words in rest:
            self._read(words[0], words, _named(words))

    def _read(self, word: str, words: list[str], named: dict[str, str]) -> None:
        station = int(named.get("station", "1")) - 1
        if word == "clock":
            self.stations[station].clock = Clock(int(named["ppm"]), int(named["offset"]))
        elif word == "life":
            self._bits[station, int(named["number"])] = [int(v) for v in named["bits"].split(",")]
        elif word == "absent":
            self._absent = {int(v) - 1 for v in named["stations"].split(",")}
        elif word == "power":
            self._powers.add((station, int(named["barrier"])))
        elif word in ("final", "next"):
            message = (int(named["size"]), "ack" in words, "op" in words)
            (self._finals[station] if word == "final" else self._nexts[station, int(named["client"])]).append(message)
        elif word == "frame":
            after = None if "lost" in words else int(named["after"])
            src, dst, damage = int(named["from"]) - 1, int(named["to"]) - 1, named.get("damage", "")
            fate = Fate(src, int(words[1]), dst, after, damage, int(named.get("wake", "0")))
            self.network.fates[fate.src, fate.number, fate.dst].append(fate)
        elif word == "at":
            act = self._act(words[2], words, named, station)
            self.clockwork.at(int(words[1]), act)
        else:
            raise ValueError(f"{' '.join(words)}: no such line")

    def _act(self, what: str, words: list[str], named: dict[str, str], s: int) -> Callable[[], None]:
        station = self.stations[s]

        def pause() -> None:
            if station.engine is not None and not station.paused:
                station.pause()
                self._touch(s)

        def expel() -> None:
            if station.expel(int(named["who"]) - 1):
                self.facts.expels.append(self.clockwork.now)

        def send() -> None:
            self.submit(s, int(named["client"]), int(named["size"]), "ack" in words, op="op" in words)

        acts: dict[str, Callable[[], None]] = {
            "boot": lambda: station.boot() if station.engine is None else None,
            "crash": lambda: station.crash() if station.engine is not None else None,
            "leave": station.leave,
            "pause": pause,
            "resume": station.resume,
            "expel": expel,
            "mtu": lambda: station.set_mtu(int(named["bytes"])),
            "send": send,
            "apart": lambda: self._touch_link(int(named["from"]) - 1, int(named["to"]) - 1, int(named["until"])),
            "noise": lambda: self.network.noise(
                *(int(named["to"]) - 1, bytes.fromhex(named["body"]), bytes.fromhex(named["mac"])), int(named["wake"])
            ),
        }
        return acts[what]

    # ---- what would be chance
    def bits(self, count: int) -> int:
        left = self._bits.get(self.booting)
        return left.pop(0) if left else random.Random(self.booting[0] * 1000 + self.booting[1]).getrandbits(count)

    def uniform(self, below: int) -> int:
        return self.network.wake

    def power_fails(self, station: int) -> bool:
        self._barriers[station] += 1
        return (station, self._barriers[station]) in self._powers

    def start(self) -> None:
        """Stations are switched on by their lines."""

    def _plan_load(self) -> None:
        for s in range(self.options.stations):
            for c in range(self.options.clients):
                if self._nexts[s, c]:
                    self._budget[s][c] = len(self._nexts[s, c])
                    self.clockwork.at(LOAD_FROM_NS, lambda s=s, c=c: self._next_in_loop(s, c))  # type: ignore[misc]

    def _plan_faults(self) -> None: ...

    def _boot(self, station: int) -> None:
        if not self._faulty_phase:
            super()._boot(station)

    def _heal(self) -> None:
        self._healing = True
        super()._heal()
        self._healing = False

    def _choose_absent(self) -> None:
        self.facts.absent |= self._absent

    def _submit_random(self, station: int, client: int) -> Message:
        left = self._finals[station] if self._healing else self._nexts[station, client]
        size, ack, op = left.pop(0) if left else (64, False, False)
        return self.submit(station, client, size, ack, op=op)


def _named(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def record(seed: int, change: Callable[[Options], Options] | None = None) -> tuple[list[str], Result]:
    """Run a seed: (its text, how it ended)."""
    sim = Recorded(seed, change)
    result = finish(sim)
    return sim.schedule_lines(), result


def replay(lines: list[str], rules: tuple[str, ...] = ()) -> Result:
    """Run a text."""
    return finish(Replayed(lines, rules))


def checker_of(result: Result) -> str:
    return result.violation.checker if isinstance(result.violation, Violation) else ""


def shorten(lines: list[str], seconds: float) -> list[str]:
    """The text with as many lines left out as can be found in so many seconds, in halves, quarters and so on, such that the same
    checker fails first; as it is if nothing fails. The first line stays."""
    until = time.monotonic() + seconds
    wanted = checker_of(replay(lines))
    head, body = lines[0], lines[1:]
    size = max(1, len(body) // 2)
    while wanted and body and time.monotonic() < until:
        at, found = 0, False
        while at < len(body) and time.monotonic() < until:
            fewer = body[:at] + body[at + size :]
            if checker_of(replay([head, *fewer])) == wanted:
                body, found = fewer, True
            else:
                at += size
        if size == 1 and not found:
            break
        size = max(1, size // 2)
    return [head, *body]


def outcome(result: Result) -> str:
    """What a replayed text prints."""
    return f"fails {result.violation}" if result.violation else "all properties hold"
