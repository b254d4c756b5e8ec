"""Runs Spin on the models: the configurations, what each is for, and the rules that can be left out.

By hand, with what it costs: ``python -m tests.formal.checker``; one: ``python -m tests.formal.checker tie3 BREAK_DECIDE``.

A search says the same of the same text each time. Large ones, five minutes of processor time, are recorded with the digest of
what was searched (``proven.txt``). The tests search what is small and what is broken; when a digest is another one they refuse,
until ``python -m tests.formal.checker --record`` has searched all large ones anew.
"""

from __future__ import annotations

import hashlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from pathlib import Path
from typing import NamedTuple

AGREEMENT = Path(__file__).with_name("agreement.pml")
OPENING = Path(__file__).with_name("opening.pml")
PASTS = Path(__file__).with_name("pasts.pml")
SEVEN = Path(__file__).with_name("seven.pml")
PROVEN = Path(__file__).with_name("proven.txt")
LARGE_STATES = 30_000
"""Searches of so many states or more are recorded."""
DEADLINE_S = 900
"""For each step of one run. The longest takes half a minute of processor time; other work on the machine may stretch it."""
MEMORY_MB = 1500
FEW_STATES = 200_000
"""Up to here it pays not to let the compiler optimise: that takes it five times as long, ten seconds for four stations."""
DEPTH = 2000
"""Longest run that is searched, in steps; a longer one is an error."""


class Check(IntFlag):
    """The properties, by the bits of the agreement's CHECK."""

    SAME = 1
    ONE = 2
    CUT = 4
    AGREED = 8
    SMOOTH = 16
    HELD = 64
    ALIKE = 128


class OpeningCheck(IntFlag):
    """The same of the model of openings."""

    NUMBER = 1
    GROWS = 2
    FOUND = 4
    PASSED = 8


class PastsCheck(IntFlag):
    """The same of the model of what stations bring to an opening."""

    TOGETHER = 1
    ONWARD = 2
    HELD = 4


class SevenCheck(IntFlag):
    """The same of the model of the seven steps."""

    ONE = 1
    SERVED = 2
    EQUAL = 4
    LOCKED = 8
    FAIR = 16
    KEPT = 32


SAFE = Check.SAME | Check.ONE | Check.CUT
HANDED_OVER = Check.SAME | Check.CUT | Check.HELD | Check.ALIKE
OPENED = OpeningCheck.NUMBER | OpeningCheck.GROWS | OpeningCheck.FOUND | OpeningCheck.PASSED
BROUGHT = PastsCheck.TOGETHER | PastsCheck.ONWARD | PastsCheck.HELD
STEPPED = SevenCheck.ONE | SevenCheck.SERVED | SevenCheck.EQUAL | SevenCheck.LOCKED | SevenCheck.FAIR | SevenCheck.KEPT
WORDS: Mapping[IntFlag, tuple[str, ...]] = {
    Check.SAME: ("one number, two sets of members",),
    Check.ONE: ("two instances work at the same time",),
    Check.CUT: ("another number of PDUs than was agreed", "two numbers of PDUs accepted of what was removed"),
    Check.AGREED: ("the end, without one instance of all that live",),
    Check.SMOOTH: ("somebody had to give up",),
    Check.HELD: ("it does not deliver what the claimant has released", "it delivers what the claimant has not released"),
    Check.ALIKE: ("a member of a view does not know it", "two who know the same views end differently"),
}
OPENING_WORDS: Mapping[IntFlag, tuple[str, ...]] = {
    OpeningCheck.NUMBER: ("one number, two sets of members", "one number, by votes and by opening"),
    OpeningCheck.GROWS: ("a station enters an instance below one that it has been in",),
    OpeningCheck.FOUND: ("two members of two proposals have found different ones complete",),
    OpeningCheck.PASSED: ("it passes over a proposal that it has issued, and another one comes from",),
}
PASTS_WORDS: Mapping[IntFlag, tuple[str, ...]] = {
    PastsCheck.TOGETHER: ("two that go on together end differently",),
    PastsCheck.ONWARD: ("who goes on later ends the former instance earlier",),
    PastsCheck.HELD: ("it is to deliver what it has not accepted", "it delivers less than it has released"),
}
SEVEN_WORDS: Mapping[IntFlag, tuple[str, ...]] = {
    SevenCheck.ONE: ("two attempts are in state 4",),
    SevenCheck.SERVED: ("an old version is served after a newer one", "one version is served with two contents"),
    SevenCheck.EQUAL: ("the end, and an attempt is not over", "the end, and two managers differ"),
    SevenCheck.LOCKED: ("a lock outlives its owner's view",),
    SevenCheck.FAIR: ("an attempt overtakes an older one",),
    SevenCheck.KEPT: ("what a caller was told is done is lost",),
}
"""What the story of an error says, by property."""


@dataclass(frozen=True)
class Configuration:
    """What happens in one run of the checker."""

    about: str
    defines: str
    """The model's parameters."""
    states: int
    """At least so many must be found, else something that should happen does not: two thirds of what was."""
    checks: IntFlag = SAFE | Check.AGREED | Check.SMOOTH
    cycles: bool = False
    """Also search for runs without an end."""
    model: Path = AGREEMENT
    collapse: bool = False
    """Keep the parts of a state apart, each different one once: exact, a third of the memory or less, a third slower."""


CONFIGURATIONS: Mapping[str, Configuration] = {
    "crash3": Configuration(
        "any one of three crashes and comes back, two data PDUs of anybody",
        "N=3 CRASHES=1 CRASHERS=0b111 DATAS=2 SENDERS=0b111 LEN=12",
        13_000,
        cycles=True,
    ),
    "gone3": Configuration(
        "one of three crashes and stays away, two data PDUs",
        "N=3 CRASHES=1 CRASHERS=0b100 RESTART=0 DATAS=2 SENDERS=0b111",
        1_100,
    ),
    "joiner3": Configuration(
        "one of three crashes, comes back and crashes again, at any moment of its return",
        "N=3 INCS=3 CRASHES=2 CRASHERS=0b100100 DATAS=1 SENDERS=0b111111 LEN=12 VMAX=10",
        16_000,
    ),
    "oneway3": Configuration(
        "one suspicion without cause among three, whoever of whomever, two data PDUs",
        "N=3 INCS=3 FALSE=1 FALSE_PAIRS=0x1ff DATAS=2 SENDERS=0b111 LEN=12",
        53_000,
    ),
    "twice3": Configuration(
        "two suspicions without cause among three, whoever of whomever, one data PDU",
        "N=3 INCS=3 FALSE=2 FALSE_PAIRS=0x1ff DATAS=1 SENDERS=0b111 LEN=12",
        170_000,
        SAFE | Check.AGREED,
    ),
    "partition3": Configuration(
        "0 and 1 suspect each other, 0 suspects 2 and 2 suspects 0, all without cause, in any order and number",
        "N=3 INCS=3 FALSE=4 FALSE_PAIRS=0b1001110 FALSE_LIVES=0b111 LEN=10 VMAX=10",
        130_000,
        SAFE | Check.AGREED,
        cycles=True,
    ),
    "crash_oneway3": Configuration(
        "a crash and a suspicion without cause among three: often no quorum is left, and all open again",
        "N=3 INCS=3 CRASHES=1 CRASHERS=0b100 FALSE=1 FALSE_PAIRS=0x1ff FALSE_LIVES=0b111 DATAS=1 SENDERS=0b111 LEN=12 VMAX=10",
        50_000,
        SAFE | Check.AGREED,
        cycles=True,
    ),
    "reopen3": Configuration(
        "two of three crash and come back: no quorum is left, all open again",
        "N=3 INCS=3 CRASHES=2 CRASHERS=0b111 DATAS=1 SENDERS=0b111 LEN=12 VMAX=10",
        23_000,
        SAFE | Check.AGREED,
    ),
    "tie3": Configuration(
        "station 0 alone is a quorum; 2 is being let in while anybody suspects others twice: removals of two, promises overtaken",
        "N=3 QUORUM=1 REQUIRED=0b1 INCS=3 OUT=0b100 FALSE=2 FALSE_PAIRS=0x1ff LEN=15 VMAX=10",
        250_000,
        cycles=True,
    ),
    "crash4": Configuration(
        "one of four crashes and comes back, two data PDUs",
        "N=4 CRASHES=1 CRASHERS=0b1000 DATAS=2 SENDERS=0b1001 LEN=10 VMAX=8",
        95_000,
    ),
    "oneway4": Configuration(
        "one suspicion without cause among four, whoever of whomever, one data PDU",
        "N=4 FALSE=1 FALSE_PAIRS=0xffff DATAS=1 SENDERS=0b1111 LEN=10 VMAX=8",
        330_000,
    ),
    "joiner4": Configuration(
        "one of four crashes, comes back and crashes again",
        "N=4 INCS=3 CRASHES=2 CRASHERS=0b10001000 LEN=12 VMAX=10",
        105_000,
    ),
    "conflict4": Configuration(
        "0 suspects 3 and 1 suspects 0, both without cause: neither removal may be possible",
        "N=4 INCS=3 FALSE=2 FALSE_PAIRS=0b11000 FALSE_LIVES=0b1111 LEN=10 VMAX=8",
        45_000,
        SAFE | Check.AGREED,
    ),
    "crash_oneway4": Configuration(
        "3 crashes and comes back, 0 suspects 1 without cause: no quorum without both",
        "N=4 INCS=3 CRASHES=1 CRASHERS=0b1000 FALSE=1 FALSE_PAIRS=0b10000010 FALSE_LIVES=0b1111 LEN=12 VMAX=8",
        31_000,
        SAFE | Check.AGREED,
    ),
    "overtaken4": Configuration(
        "3 is being let in, 2 crashes and comes back, 0 and one more are enough: the stop overtakes the recovery",
        "N=4 INCS=3 QUORUM=2 REQUIRED=0b1 OUT=0b1000 CRASHES=1 CRASHERS=0b100 LEN=12 VMAX=9",
        125_000,
    ),
    "overtaken_oneway4": Configuration(
        "the same with a suspicion without cause of 0 of 2 instead of the crash",
        "N=4 INCS=3 QUORUM=2 REQUIRED=0b1 OUT=0b1000 FALSE=1 FALSE_PAIRS=0b100 FALSE_LIVES=0b1111 LEN=12 VMAX=9",
        460_000,
    ),
    "grow4": Configuration(
        "2 and 3 are being let in by 0 and 1, both required; 0 suspects 1 without cause, and takes that back",
        "N=4 QUORUM=2 REQUIRED=0b11 OUT=0b1100 FALSE=1 FALSE_PAIRS=0b10 FALSE_LIVES=0b10 LEN=10 VMAX=6",
        15_000,
    ),
    "handover3": Configuration(
        "0 suspects 2 without cause, two data PDUs of 0 and 1, and anybody gives up at any moment; then all open again",
        "HANDOVER N=3 FALSE=1 FALSE_PAIRS=0b100 FALSE_LIVES=0b111 DATAS=2 SENDERS=0b11 LEN=5 VMAX=4",
        560_000,
        HANDED_OVER,
    ),
    "handover_any3": Configuration(
        "the same with a suspicion without cause of whomever by whomever, and one data PDU",
        "HANDOVER N=3 FALSE=1 FALSE_PAIRS=0x1ff FALSE_LIVES=0b111 DATAS=1 SENDERS=0b111 LEN=5 VMAX=4",
        310_000,
        HANDED_OVER,
    ),
    "handover_crash3": Configuration(
        "the same with a crash of anybody, and two data PDUs",
        "HANDOVER N=3 CRASHES=1 CRASHERS=0b111 DATAS=2 SENDERS=0b111 LEN=5 VMAX=4",
        750_000,
        HANDED_OVER,
    ),
    "handover_join3": Configuration(
        "2 is being let in, one data PDU of 0 or 1, and anybody gives up at any moment; then all open again",
        "HANDOVER N=3 OUT=0b100 DATAS=1 SENDERS=0b11 LEN=5 VMAX=4",
        100_000,
        HANDED_OVER,
    ),
    "handover_two3": Configuration(
        "station 0 alone is a quorum and lets 1 and 2 in, one after the other or at once; one data PDU; anybody gives up",
        "HANDOVER N=3 QUORUM=1 REQUIRED=0b1 OUT=0b110 DATAS=1 SENDERS=0b11 LEN=9 VMAX=6",
        1_400_000,
        HANDED_OVER,
        collapse=True,
    ),
    "handover_nested3": Configuration(
        "station 0 alone is a quorum and suspects 1 and 2 without cause, one after the other or at once; one data PDU of anybody",
        "HANDOVER N=3 QUORUM=1 REQUIRED=0b1 FALSE=2 FALSE_PAIRS=0b110 FALSE_LIVES=0b111 DATAS=1 SENDERS=0b111 LEN=5 VMAX=4",
        980_000,
        HANDED_OVER,
    ),
    "blocked4": Configuration(
        "3 is being let in, 2 crashes and comes back, majority: without 3 the removal has no quorum",
        "N=4 INCS=3 OUT=0b1000 CRASHES=1 CRASHERS=0b100 LEN=10 VMAX=8",
        1_600,
        SAFE | Check.AGREED,
    ),
}

OPENINGS: Mapping[str, Configuration] = {
    "renewed3": Configuration(
        "three stations open; one takes a new life, one instance by votes; five proposals issued, numbers up to 3",
        "INCS=2 VMAX=3 RENEWALS=1 VOTES=1 ISSUES=5",
        350_000,
        OPENED,
        model=OPENING,
    ),
    "crashed3": Configuration(
        "the same with a crash and restart instead",
        "INCS=2 VMAX=3 CRASHES=1 VOTES=1 ISSUES=5",
        360_000,
        OPENED,
        model=OPENING,
    ),
    "both3": Configuration(
        "a crash and a new life, also of one station; four proposals issued",
        "INCS=3 VMAX=3 CRASHES=1 RENEWALS=1 VOTES=1 ISSUES=4",
        1_100_000,
        OPENED,
        model=OPENING,
    ),
    "voted3": Configuration(
        "two instances by votes, numbers up to 4, one new life; four proposals issued",
        "INCS=2 VMAX=4 RENEWALS=1 VOTES=2 ISSUES=4",
        240_000,
        OPENED,
        model=OPENING,
    ),
    "required3": Configuration(
        "station 0 alone is a quorum; one new life, one instance by votes; four proposals issued",
        "INCS=2 VMAX=3 RENEWALS=1 VOTES=1 ISSUES=4 QUORUM=1 REQUIRED=1",
        340_000,
        OPENED,
        model=OPENING,
    ),
}
"""Of how instances get their numbers."""

BRINGING: Mapping[str, Configuration] = {
    "issued3": Configuration(
        "three stations come from one instance; four proposals issued, numbers up to 3",
        "ISSUES=4 VMAX=3",
        100_000,
        BROUGHT,
        model=PASTS,
    ),
    "onward3": Configuration(
        "four proposals issued, numbers up to 4: also from the instances that were opened",
        "ISSUES=4 VMAX=4",
        500_000,
        BROUGHT,
        model=PASTS,
    ),
}
"""Of what stations bring from one instance to the next."""

SEVENS: Mapping[str, Configuration] = {
    "updates3": Configuration(
        "each of three managers makes an update; any one crashes and stays away",
        "UPDATES=0x15 CRASHES=1",
        200_000,
        STEPPED,
        model=SEVEN,
    ),
    "again3": Configuration(
        "0 makes two updates, 1 one, none crashes",
        "UPDATES=0x06",
        7_000,
        STEPPED,
        model=SEVEN,
    ),
    "pair3": Configuration(
        "0 and 1 make an update each, none crashes",
        "UPDATES=0x05",
        1_200,
        STEPPED,
        model=SEVEN,
    ),
    "return3": Configuration(
        "0 and 1 make an update each; any one of three crashes and comes back by COPY",
        "UPDATES=0x05 CRASHES=1 RESTART=1",
        1_200_000,
        STEPPED,
        model=SEVEN,
    ),
    "copy3": Configuration(
        "0 and 1 make an update each while 2 joins by COPY; any one of them crashes and stays away",
        "UPDATES=0x05 OUT=4 CRASHES=1",
        2_400_000,
        STEPPED,
        model=SEVEN,
    ),
}
"""Of the seven steps."""

BROKEN: tuple[tuple[str, str, IntFlag], ...] = (
    ("BREAK_CLOSE", "oneway3", Check.CUT),
    ("BREAK_EQUALISE", "crash3", Check.SMOOTH),
    ("BREAK_EQUALISE", "oneway3", Check.SMOOTH),
    ("BREAK_DECIDE", "tie3", Check.SAME),
    ("BREAK_EARLIEST", "tie3", Check.SAME),
    ("BREAK_EARLIEST", "tie3", Check.CUT),
    ("BREAK_EARLIEST", "joiner3", Check.SAME),
    ("BREAK_LATER", "crash3", Check.SMOOTH),
    ("BREAK_LATER", "tie3", Check.SMOOTH),
    ("BREAK_QUORUM", "partition3", Check.SAME),
    ("BREAK_QUORUM", "partition3", Check.ONE),
    ("BREAK_PROMISE", "tie3", Check.SAME),
    ("BREAK_TWICE", "tie3", Check.SAME),
    ("BREAK_EXPEL", "oneway3", Check.AGREED),
    ("BREAK_RESTART", "crash3", Check.AGREED),
    ("BREAK_NUMBER", "reopen3", Check.SAME),
    ("BREAK_GROW", "grow4", Check.SAME),
    ("BREAK_BATCH", "tie3", Check.SAME),
    ("BREAK_RELEASE", "handover3", Check.HELD),
    ("BREAK_RELEASE", "handover3", Check.ALIKE),
    ("BREAK_LATE", "handover3", Check.ALIKE),
    ("BREAK_OWN", "handover3", Check.HELD),
    ("BREAK_LAST", "handover3", Check.HELD),
    ("BREAK_RELEASE", "handover_nested3", Check.HELD),
    ("BREAK_SHARED", "handover_join3", Check.ALIKE),
    ("BREAK_EVENT", "handover_join3", Check.ALIKE),
    ("BREAK_RELEASE", "handover_two3", Check.HELD),
    ("BREAK_LATE", "handover_two3", Check.ALIKE),
    ("BREAK_SHARED", "handover_two3", Check.ALIKE),
    ("BREAK_EVENT", "handover_two3", Check.ALIKE),
    ("BREAK_QUORUM", "renewed3", OpeningCheck.NUMBER),
    ("BREAK_ISSUED", "renewed3", OpeningCheck.NUMBER),
    ("BREAK_FORGET", "renewed3", OpeningCheck.NUMBER),
    ("BREAK_DISK", "crashed3", OpeningCheck.NUMBER),
    ("BREAK_DISK", "crashed3", OpeningCheck.GROWS),
    ("BREAK_PROMISED", "renewed3", OpeningCheck.NUMBER),
    ("BREAK_HIGHEST", "renewed3", OpeningCheck.GROWS),
    ("BREAK_LATEST", "renewed3", OpeningCheck.FOUND),
    ("BREAK_PASTS", "renewed3", OpeningCheck.PASSED),
    ("BREAK_BEGAN", "renewed3", OpeningCheck.PASSED),
    ("BREAK_BIND", "issued3", PastsCheck.ONWARD),
    ("BREAK_FITS", "issued3", PastsCheck.ONWARD),
    ("BREAK_CLAIM", "onward3", PastsCheck.HELD),
    ("BREAK_PASTS", "issued3", PastsCheck.TOGETHER),
    ("BREAK_RESTORE", "updates3", SevenCheck.SERVED),
    ("BREAK_RESTORE", "updates3", SevenCheck.KEPT),
    ("BREAK_SILENCE", "pair3", SevenCheck.ONE),
    ("BREAK_AGE", "again3", SevenCheck.FAIR),
    ("BREAK_LIST", "updates3", SevenCheck.SERVED),
    ("BREAK_REJOIN", "copy3", SevenCheck.SERVED),
    ("BREAK_VIEW", "updates3", SevenCheck.EQUAL),
    ("BREAK_OWNER", "updates3", SevenCheck.LOCKED),
    ("BREAK_KEPT", "updates3", SevenCheck.SERVED),
    ("BREAK_NUMBER", "updates3", SevenCheck.SERVED),
    ("BREAK_AGAIN", "return3", SevenCheck.EQUAL),
    ("BREAK_STRUCK", "return3", SevenCheck.EQUAL),
)
"""(rule left out, configuration, property that must fail): each property fails at least once."""


class CheckerError(Exception):
    """The checker did not run to its end."""


@dataclass
class Result:
    errors: int
    states: int
    complete: bool
    """Everything was searched."""
    depth: int
    memory_mb: float
    seconds: float
    """Processor time of the search."""
    story: list[str] = field(default_factory=list)
    """Of an error: one line for each step."""


def missing() -> list[str]:
    """Programs that are needed and not there."""
    return [name for name in ("spin", "gcc") if shutil.which(name) is None]


def _call(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise CheckerError(f"{' '.join(command[:2])}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if not found:
        raise CheckerError(f"the checker does not say {pattern!r}:\n{text[-3000:]}")
    return float(found[1])


def configuration_of(name: str) -> Configuration:
    """Of any model."""
    return {**SEVENS, **BRINGING, **OPENINGS, **CONFIGURATIONS}[name]


class Proof(NamedTuple):
    """A search without an error, to its end."""

    digest: str
    states: int


def is_large(name: str) -> bool:
    return configuration_of(name).states >= LARGE_STATES


def digest_of(name: str, cycles: bool) -> str:
    """Of all that decides what a search finds."""
    c = configuration_of(name)
    asked = f"{c.defines} CHECK={int(c.checks)} depth {DEPTH} {'cycles' if cycles else 'states'}\n"
    return hashlib.sha256(asked.encode() + c.model.read_bytes()).hexdigest()[:16]


def proofs() -> dict[tuple[str, bool], Proof]:
    """What is recorded, by configuration and whether runs without an end were searched for."""
    found = {}
    for line in PROVEN.read_text().splitlines():
        name, what, states, digest = line.split()
        found[name, what == "cycles"] = Proof(digest, int(states))
    return found


def record() -> int:
    """Search all large ones whose text is not that of the record, and write what was found. Writes nothing, and returns 1, if one
    fails."""
    lines = []
    known = proofs()
    for name in (*CONFIGURATIONS, *OPENINGS, *BRINGING, *SEVENS):
        for cycles in (False, True) if configuration_of(name).cycles else (False,):
            if not is_large(name):
                continue
            what, digest = "cycles" if cycles else "states", digest_of(name, cycles)
            if (proof := known.get((name, cycles))) is not None and proof.digest == digest:
                lines.append(f"{name} {what} {proof.states} {digest}\n")
                continue
            result = run(name, cycles=cycles)
            print(f"{name:18} {what} {result.states:8}  errors {result.errors}  {result.seconds:5.1f} s", flush=True)
            if result.errors or not result.complete:
                return 1
            lines.append(f"{name} {what} {result.states} {digest}\n")
    PROVEN.write_text("".join(lines))
    return 0


def run(name: str, broken: str = "", checks: IntFlag | None = None, *, cycles: bool = False) -> Result:
    """Search one configuration, with a rule left out if ``broken`` names one. cycles: search for runs without an end instead of
    properties that fail. Raises CheckerError if it cannot be done, subprocess.TimeoutExpired after DEADLINE_S."""
    configuration = configuration_of(name)
    wanted = int(configuration.checks if checks is None else checks)
    options = [f"-D{define}" for define in (*configuration.defines.split(), f"CHECK={wanted}", *([broken] if broken else []))]
    with tempfile.TemporaryDirectory(prefix="zenjun-formal-") as scratch:
        folder = Path(scratch)
        shutil.copy(configuration.model, folder)
        _call(folder, "spin", *options, "-a", configuration.model.name)
        # The order of steps is the subject: no reduction. What fails is found in a moment.
        soon = bool(broken) or configuration.states <= FEW_STATES
        flags = ["-DNOREDUCE", "-DVECTORSZ=4096", f"-DMEMLIM={MEMORY_MB}", "-DNP" if cycles else "-DSAFETY"]
        flags += ["-DCOLLAPSE"] if configuration.collapse else []
        _call(folder, "gcc", "-w", "-O0" if soon else "-O1", *flags, "-o", "pan", "pan.c")
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        out = _call(folder, "./pan", f"-m{DEPTH}", "-n", "-b", *(["-l"] if cycles else []))
        seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        result = Result(
            errors=int(_number(r"errors: (\d+)", out)),
            states=int(_number(r"([\d.e+]+) states, stored", out)),
            complete=not re.search(r"Search not completed|out of memory|depth too small|aborting", out),
            depth=int(_number(r"depth reached (\d+)", out)),
            memory_mb=_number(r"([\d.]+)\s+total actual memory usage", out),
            seconds=seconds,
        )
        if result.errors:
            told = subprocess.run(
                ["./pan", "-r"], cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
            ).stdout.splitlines()
            steps = re.compile(r"(life|station|instance) \d|  \*\*\* ")
            result.story = [line for line in told if steps.match(line)]
        return result


def main(arguments: list[str]) -> int:
    if missing():
        print(f"missing: {', '.join(missing())}", file=sys.stderr)
        return 1
    if arguments == ["--record"]:
        return record()
    if arguments:
        result = run(arguments[0], arguments[1] if len(arguments) > 1 else "")
        print("\n".join(result.story))
        print(f"errors {result.errors}, states {result.states}, depth {result.depth}, complete {result.complete}")
        return int(result.errors > 0)
    for name in (*CONFIGURATIONS, *OPENINGS, *BRINGING, *SEVENS):
        result = run(name)
        print(
            f"{name:18} {result.states:8} states  depth {result.depth:3}  errors {result.errors}  complete {result.complete}  "
            f"{result.seconds:5.1f} s  {result.memory_mb:6.0f} MB",
            flush=True,
        )
        if configuration_of(name).cycles:
            result = run(name, cycles=True)
            print(
                f"{name:18} {result.states:8} states  no run without an end: {not result.errors}  {result.seconds:5.1f} s",
                flush=True,
            )
    for broken, name, check in BROKEN:
        result = run(name, broken, check)
        print(
            f"{broken:15} {name:12} {check.name:7} errors {result.errors}, {len(result.story)} lines  {result.seconds:4.1f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
