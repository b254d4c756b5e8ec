"""Plays a scenario: a lab with its daemons, programs that send and record what they receive; the plan applied, all faults ended,
a message of every program received by all, the histories judged."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..histories import history as histories
from ..histories.programs import Order, Programs, recording
from ..histories.recorder import Journal
from ..lab import Impairment, Lab, LabError, LabUnsupported
from .expectations import Judgement, judge_run
from .joining import StateKeepers
from .model import Scenario, listing
from .multicasting import MulticastKeepers
from .nemesis import Nemesis, carry_out
from .plan import Act, plan
from .reader import changed_loads
from .switching import NameKeepers

OPEN_S: Final = 60.0
CONVERGE_S: Final = 30.0
"""From the last fault until all hear all; a blocked station gives up after 2 s and tries to get in a few times a second."""

Say = Callable[[float | None, str], None]
"""A line for a person: seconds since the time line began (None: not on it), text. Called from several threads, one at a time."""
Command = Callable[[Path], list[str]]
"""The command line of a daemon with this configuration."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left of a run."""

    judgement: Judgement
    folder: Path
    acts: list[Act]
    converged_ms: int | None
    rounds: int

    @property
    def held(self) -> bool:
        return self.judgement.held


def play(
    scenario: Scenario,
    lab: AbstractContextManager[Lab],
    folder: Path,
    *,
    seed: int | None = None,
    acts: Sequence[Act] | None = None,
    daemon: Command | None = None,
    converge_s: float = CONVERGE_S,
    say: Say = lambda at, text: None,
) -> Outcome:
    """Play it in a lab, which is taken down by its context manager.

    lab: gives a lab that is up; one whose daemons run already keeps them and its options, otherwise they are started here.
    folder: for histories, logs and the report. seed: another than the scenario's. acts: another plan. daemon: what runs in
    the place of ``zenjund``, in labs of namespaces. converge_s: allowed until all hear all. Raises LabError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seed = scenario.seed if seed is None else seed
    chosen = plan(scenario, seed) if acts is None else list(acts)
    (folder / "plan.txt").write_text("".join(f"{act.begin_ms:7d} ms  {act}\n" for act in chosen))
    with contextlib.closing(Journal(folder / "runner.jsonl")) as journal:
        with lab as up:
            run = _Run(scenario, up, folder, journal, seed, daemon, say)
            try:
                run.start()
                run.go(chosen, converge_s)
            except Exception:
                run.keep()
                raise
            run.keep()
            run.found["said"] = run.said()
        scenario = run.scenario
    last = scenario.expect.members
    paths = [*folder.glob("station-*.jsonl"), folder / "runner.jsonl"]
    history = histories.read(paths, scenario.stations, scenario.quorum, last, scenario.levels)
    judgement = judge_run(scenario, history, run.counters, run.began_ns, run.found)
    (folder / "report.txt").write_text(report(scenario, judgement))
    return Outcome(judgement, folder, chosen, run.converged_ms, run.rounds)


def report(scenario: Scenario, judgement: Judgement) -> str:
    """The verdicts and figures, as kept in the folder."""
    lines = [f"{scenario.name}: {scenario.about}", judgement.report.text]
    if judgement.multicast is not None:
        lines += ["groups that overlap:", judgement.multicast.text]
    for verdict in judgement.verdicts:
        lines.append(f"{'holds   ' if verdict.held else 'VIOLATED'} {verdict.name}: {verdict.text}")
        lines += [f"    {line}" for line in verdict.violations]
    return "\n".join(lines) + "\n"


class _Run:
    """One run, in a lab that is up."""

    def __init__(
        self, scenario: Scenario, lab: Lab, folder: Path, journal: Journal, seed: int, daemon: Command | None, say: Say
    ) -> None:
        self.scenario = scenario
        self.began_ns = 0
        self.converged_ms: int | None = None
        self.rounds = 0
        self.counters = {"lost": 0, "cut": 0, "orders": 0}
        self.found: dict[str, dict[str, Any]] = {}
        """What the programs beside have found, by the section that asks for them: ``state``, ``names``."""
        self._lab = lab
        self._folder = folder
        self._journal = journal
        self._seed = seed
        self._daemon = daemon
        self._say = say
        self._speaking = threading.Lock()
        self._told: set[tuple[Any, ...]] = set()
        self._loads = dict(scenario.loads)
        self._lent = False
        """Whether the lab was there before, and stays."""

    # ---- beginning

    def start(self) -> None:
        """Have all daemons running that should be, in one instance. Raises LabError."""
        lab, scenario = self._lab, self.scenario
        if lab.size != scenario.stations:
            raise LabError(f"lab {lab.name} has {lab.size} stations, the scenario {scenario.stations}")
        if lab.links < scenario.links:
            raise LabError(f"lab {lab.name} has {lab.links} links, scenario {scenario.name} wants {scenario.links}")
        if "netem" in scenario.needs and not lab.describe()["netem"]:
            raise LabUnsupported(
                f"scenario {scenario.name} needs sch_netem (CONFIG_NET_SCH_NETEM), which this kernel does not have; "
                "zenjun lab uml -- zenjun lab run … plays it under one that has"
            )
        there = [station for station in lab.stations if station not in scenario.absent]
        running = [s for s, station in lab.stations.items() if (d := station.daemon) is not None and d.poll() is None]
        self._lent = bool(running)
        if running:
            self._join_in(running)
        else:
            for station in there:
                self._start_daemon(station)
        began = time.monotonic()
        instance = lab.wait_open(OPEN_S, there)
        took = f" after {time.monotonic() - began:.1f} s" if not running else ""
        self.say(None, f"{len(there)} of {lab.size} stations are in instance {instance}{took}")

    def _join_in(self, running: list[int]) -> None:
        """Take the lab as it is. Raises LabError."""
        missing = [station for station in self._lab.stations if station not in running and station not in self.scenario.absent]
        if missing or set(running) & set(self.scenario.absent):
            wanted = f"; {listing(self.scenario.absent)} must not" if self.scenario.absent else ""
            raise LabError(f"the daemons of stations {listing(running)} run: those of {listing(missing)} must too{wanted}")
        for station in running:
            self._link(station)
        said = self._lab.station(running[0]).status(5.0)
        self.scenario = replace(
            self.scenario,
            quorum=int(said["quorum"]["needed"]),
            fail_timeout_ms=int(said["options"]["fail_timeout_ms"]),
        )

    def _start_daemon(self, number: int) -> None:
        station = self._lab.station(number)
        station.start_daemon(argv=None if self._daemon is None else self._daemon(station.write_config()))
        self._link(number)

    def _socket(self, number: int) -> Path:
        """Where programs find the daemon, also one that is started again."""
        return self._lab.station(number).directory / "zenjund.sock"

    def _link(self, number: int) -> None:
        """A container's socket has another path with every start: keep a link to it."""
        station, link = self._lab.station(number), self._socket(number)
        if station.socket_path == link:
            return
        station.request("poll")
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = link.with_name("zenjund.sock.new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(station.socket_path)
        fresh.rename(link)

    # ---- the time line

    def go(self, acts: Sequence[Act], converge_s: float) -> None:
        """Apply the plan, and wait for messages of all programs. Raises LabError."""
        scenario, lab = self.scenario, self._lab
        last = list(scenario.expect.members)
        mark = {
            "seed": self._seed,
            "stations": scenario.stations,
            "quorum": scenario.quorum,
            "last": last,
            "levels": scenario.levels,
        }
        self._journal.write({"k": "run", **mark})
        orders = {s: Order(self._seed * 100 + s, self._loads[s], scenario.groups, scenario.levels) for s in lab.stations}
        sockets = {s: (station, self._socket(s)) for s, station in lab.stations.items()}
        beside: dict[str, StateKeepers | NameKeepers | MulticastKeepers] = {}
        if scenario.multicasting:
            beside["multicast"] = MulticastKeepers(scenario.multicasting, self._seed, lab, sockets, self._folder, self._journal)
        if scenario.joining:
            beside["state"] = StateKeepers(scenario.joining, sockets, self._folder)
        if scenario.switching:
            beside["names"] = NameKeepers(scenario.switching, sockets, self._folder)
        with (
            contextlib.ExitStack() as undo,
            recording(sockets, orders, self._folder, self._journal, self._news) as programs,
        ):
            programs.awake()
            for keepers in beside.values():
                undo.callback(keepers.close)
                keepers.start()
            nemesis = Nemesis(
                lab,
                self._start_daemon,
                self._journal,
                lambda text: self.say(self._now(), text),
                load=lambda act: self._change_load(act, programs),
                absent=scenario.absent,
                base=scenario.impairment,
            )
            nemesis.prepare()
            self._begin()
            for keepers in beside.values():
                keepers.begin()
            if text := scenario.impairment.describe():
                self.say(0.0, f"all stations: {text}")
            with self._mended_if_lent(nemesis):
                carry_out(nemesis, acts, self.began_ns / 1e9)
                time.sleep(max(0.0, self.began_ns / 1e9 + scenario.end_ms / 1000 - time.monotonic()))
            self._count()
            nemesis.end_all(last)
            self._journal.write({"k": "healed"})
            self.say(self._now(), "all faults ended")
            multicast = beside.pop("multicast", None)
            for section, keepers in beside.items():
                keepers.judge()
                self.found[section] = keepers.found
                self.say(self._now(), f"{section}: {', '.join(f'{k} {v}' for k, v in keepers.found.items())}")
            self._end(programs, last, converge_s)
            if multicast is not None:  # its last messages need all stations
                multicast.judge()
                self.found["multicast"] = multicast.found
                self.say(self._now(), "multicast: all programs have their last messages, or the time is over")
            for station in last:
                nemesis.still_there(station)
            self.counters["orders"] = nemesis.refused
            programs.dismiss()

    @contextlib.contextmanager
    def _mended_if_lent(self, nemesis: Nemesis) -> Iterator[None]:
        """A lab that stays is not left broken when the time line is cut short."""
        try:
            yield
        except BaseException:
            if self._lent:
                with _undisturbed(), contextlib.suppress(LabError):
                    nemesis.end_all(self._lab.stations)
            raise

    def _begin(self) -> None:
        self.began_ns = time.monotonic_ns()
        self._journal.write({"k": "began"})

    def _end(self, programs: Programs, last: list[int], converge_s: float) -> None:
        """Wait until every program has received messages of all."""
        self.converged_ms = programs.converge(last, converge_s)
        if self.converged_ms is None:
            self.say(self._now(), f"not all programs hear all others after {converge_s:g} s")
            return
        self.say(self._now(), f"all programs hear all others, {self.converged_ms} ms later")
        self.rounds = programs.last_words(last)
        self.say(self._now(), "all programs have all last messages")

    def _change_load(self, act: Act, programs: Programs) -> None:
        self._loads = changed_loads(self._loads, act.values)
        for station, load in self._loads.items():
            programs[station].tell(f"load {load.text()}")

    def _count(self) -> None:
        for counted in self._lab.counters().values():
            for name in ("lost", "cut"):
                self.counters[name] += counted[name]

    def keep(self) -> None:
        """Keep the daemons' logs, for the search for a cause."""
        for station in self._lab.stations.values():
            with contextlib.suppress(OSError, LabError):
                self._lab.refresh_log(station.id)
                (self._folder / f"zenjund-{station.id}.log").write_bytes(station.log_path.read_bytes())
            with contextlib.suppress(LabError):
                (self._folder / f"status-{station.id}.json").write_text(json.dumps(station.status(1.0), indent=1))

    def said(self) -> dict[str, list[int]]:
        """By text that is expected, the stations whose daemons have said it, as far as their logs are kept."""
        logs = {s: self._folder / f"zenjund-{s}.log" for s in self._lab.stations}
        lines = {s: path.read_text(errors="replace") for s, path in logs.items() if path.exists()}
        return {text: [s for s, log in lines.items() if text in log] for text in self.scenario.expect.said}

    # ---- human-readable output

    def _now(self) -> float | None:
        return (time.monotonic_ns() - self.began_ns) / 1e9 if self.began_ns else None

    def say(self, at: float | None, text: str) -> None:
        with self._speaking:
            self._say(at, text)

    def _news(self, station: int, news: Mapping[str, Any]) -> None:
        """Print an event of a station; a change that all get is printed once."""
        event, instance = news["event"], news.get("instance")
        common = event in ("view", "reopened")
        key = (instance,) if common else (event, station, self._now())
        with self._speaking:
            if key in self._told or not self.began_ns:
                return
            self._told.add(key)
        members = listing([int(m[0]) if isinstance(m, list) else int(m) for m in news.get("members", ())])
        words = [f"{word} {listing(news[word])}" for word in ("joined", "left") if event == "view" and news.get(word)]
        text = f"instance {instance}: {', '.join([members, *words])}" if common else f"station {station} is {event}"
        self.say(self._now(), f"  {text}")


@contextlib.contextmanager
def lent(lab: Lab) -> Iterator[Lab]:
    """A lab that stays when the scenario is over; no fault stays in it, whatever happened."""
    try:
        yield lab
    finally:
        with _undisturbed():
            with contextlib.suppress(LabError):
                lab.heal()
                lab.impair(None, **Impairment().to_json())
            for station in lab.stations.values():
                with contextlib.suppress(LabError):
                    station.signal(signal.SIGCONT)


@contextlib.contextmanager
def own(lab: Lab, *, keep: bool = False) -> Iterator[Lab]:
    """A lab for this run alone: made, and taken down; with ``keep`` it stays up when the scenario has come to its end."""
    lab.up()
    try:
        yield lab
    except BaseException:
        with _undisturbed():
            lab.down(grace_s=0.0)
        raise
    if keep:
        lab.detach()
    else:
        with _undisturbed():
            lab.down(grace_s=0.5)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not keep the first from taking everything down."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
