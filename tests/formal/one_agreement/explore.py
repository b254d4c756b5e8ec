"""Builds and runs the model of one agreement (``model.cpp``): configurations, rules that can be left out, and what then fails.

By hand: ``python -m tests.formal.one_agreement.explore`` for the table; ``… explore crash3`` for one;
``… explore crash3 stranger`` without a rule; ``… explore "numbers=4 data=1 out=1" joiner_waits`` with other bounds.
``… explore --record`` writes what the table's large searches have found, with the digest of what was searched
(``proven.txt``): the tests make only the others, until the model is changed (as ``tests/formal/checker.py`` has it).
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

FOLDER = Path(__file__).parent
PROVEN = FOLDER / "proven.txt"
LARGE_STATES = 500_000
"""Searches of so many states or more are recorded."""
DEADLINE_S = 450
"""For each run. The longest in the tests takes half a minute of processor time."""


@dataclass(frozen=True)
class Configuration:
    """Bounds of one search."""

    about: str
    options: str
    states: int = 0
    """At least this many must be found: nine tenths of what was."""


CONFIGURATIONS: Mapping[str, Configuration] = {
    "join3": Configuration(
        "0 and 1 are in the instance, 2 asks; two numbers, one PDU", "numbers=3 data=1 out=1 progress=1", 134_000
    ),
    "two3": Configuration("all three are in the instance; two numbers, one PDU", "numbers=3 data=1 progress=4", 165_000),
    "crash2": Configuration(
        "one number, a crash, two PDUs; clocks heard in CONFIRMs too", "numbers=2 data=2 crashes=1 hear=1 progress=8", 570_000
    ),
    "lag3": Configuration("one number, two PDUs; each releases as late as it likes", "numbers=2 data=2 lag=1", 86_000),
    "lives3": Configuration("two numbers, a crash, no PDU", "numbers=3 data=0 crashes=1 progress=1", 36_000),
    "crash3": Configuration("two numbers, a crash, one PDU", "numbers=3 data=1 crashes=1", 1_500_000),
    "numbers4": Configuration("0 and 1 are in the instance, 2 asks; three numbers, no PDU", "numbers=4 data=0 out=1", 770_000),
    "withdraw4": Configuration(
        "the same with one PDU, one change, one opening, one withdrawal",
        "numbers=4 data=1 out=1 opens=1 changes=1 withdrawals=1",
        310_000,
    ),
}
LARGE: Mapping[str, Configuration] = {
    "join3x2": Configuration("0 and 1 are in the instance, 2 asks; two numbers, two PDUs", "numbers=3 data=2 out=1"),
    "two3x2": Configuration("all three are in the instance; two numbers, two PDUs", "numbers=3 data=2"),
    "join4": Configuration(
        "0 and 1 are in the instance, 2 asks; three numbers, one PDU", "numbers=4 data=1 out=1 limit=90000000"
    ),
}
"""By hand only: minutes, and gigabytes of memory."""


class Check(IntFlag):
    """The properties, by the bits of the model's ``checks``."""

    KEPT = 1
    PASSED = 2
    SAME = 4
    PLACE = 8
    NUMBER = 16
    ORDER = 32
    OWN = 64
    PROGRESS = 128


WORDS: Mapping[Check, tuple[str, ...]] = {
    Check.KEPT: (
        "what a station has released is not in the next instance's past",
        "the next instance's past has something in front of what a station has released",
        "what all members had accepted is lost",
    ),
    Check.PASSED: ("an instance that has released is passed over",),
    Check.SAME: (
        "two stations have released different PDUs of one instance",
        "a station has released what stands behind what it lacks",
    ),
    Check.PLACE: (
        "a station has ended an instance at another place than agreed",
        "a PDU stands before a view event at one station, behind it at another",
    ),
    Check.NUMBER: ("one number, two instances",),
    Check.ORDER: ("a station releases out of order",),
    Check.OWN: ("a station drops what it has released",),
    Check.PROGRESS: ("can start and release",),
}
"""What the last line of a story says, by property."""

BROKEN: tuple[tuple[str, str, Check], ...] = (
    ("stranger", "crash2", Check.NUMBER),
    ("durable", "crash2", Check.NUMBER),
    ("keeps_current keep_promised", "lives3", Check.NUMBER),
    ("start_promised", "join3", Check.OWN),
    ("cut_all", "two3", Check.OWN),
    ("base_all", "crash2", Check.OWN),
    ("freeze", "crash2", Check.OWN),
    ("members_promise", "join3", Check.OWN),
    ("hold", "crash2", Check.OWN),
    ("hold", "crash2", Check.SAME),
    ("hold_own", "crash2", Check.OWN),
    ("begin_promised", "crash2", Check.OWN),
    ("place_all", "join3", Check.OWN),
    ("close", "crash2", Check.OWN),
    ("thaw", "join3", Check.OWN),
    ("withdraw_number", "join3", Check.OWN),
    ("base_least", "crash2", Check.KEPT),
    ("hold_said", "crash2", Check.KEPT),
    ("clock_instance", "crash2", Check.KEPT),
    ("void_beyond", "join3", Check.KEPT),
    ("rest_with_event", "join3", Check.KEPT),
    ("first_hold joiner_waits", "join3", Check.KEPT),
    ("joiner_waits", "withdraw4", Check.KEPT),
    ("joiners_speak", "join3", Check.PASSED),
    ("same_life", "join3", Check.PASSED),
    ("greater_refuses", "lives3", Check.PASSED),
    ("members_quorum", "join3", Check.PASSED),
    ("expelled_only", "two3", Check.PASSED),
    ("keeps_current", "lives3", Check.PASSED),
    ("stranger_starts", "lives3", Check.PASSED),
    ("all_speak", "crash2", Check.PLACE),
    ("new_life", "join3", Check.PLACE),
    ("pass_over", "crash2", Check.PLACE),
    ("held_by_new", "join3", Check.PLACE),
    ("clocks", "crash2", Check.ORDER),
    ("opens", "join3", Check.PROGRESS),
)
"""(rules left out, configuration, property that must fail, asked alone): each property fails at least once."""

NEEDLESS: Mapping[str, str] = {
    "schema_quorum": "of three stations each quorum of an instance is one of the schema: it takes five to tell them apart",
    "frozen_opens": "who promises a change after freezing names what it had when it froze",
    "limits_held": "the event waits for all to hold what stands before it: who starts early releases nothing early",
    "sent_later": "what is accepted early is not released before the event",
    "member_starts": "who promises before it has started is not in the parent: the change waits for it or removes it",
    "clock_jump": "the model orders by instance first; who orders by clock alone needs it",
    "never_member": "an instance with a member that never speaks in it releases nothing and is followed by another",
    "newest": "the same",
}
"""Rules whose lack no run has shown to matter, and why not."""


class ModelError(Exception):
    """The model was not built, or did not run to its end."""


@dataclass(frozen=True)
class Result:
    errors: int
    states: int
    depth: int
    complete: bool
    """Everything within the bounds was searched."""
    excused: int
    """Times that an instance was passed over under the exception of lost memory."""
    seconds: float
    """Processor time."""
    story: tuple[str, ...]
    """Of a failure: a shortest one, a line for each step."""


def missing() -> list[str]:
    """Programs that are needed and not there."""
    return [name for name in ("g++",) if shutil.which(name) is None]


def build(folder: Path) -> Path:
    """Compile the model into ``folder``. Raises ModelError."""
    program = folder / "one_agreement"
    done = subprocess.run(
        ["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(FOLDER / "model.cpp")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode:
        raise ModelError(done.stderr[-2000:])
    return program


def is_large(name: str) -> bool:
    return CONFIGURATIONS[name].states >= LARGE_STATES


def digest_of(name: str) -> str:
    """Of all that decides what a search finds."""
    sources = [path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in (".cpp", ".h")]
    return hashlib.sha256(b"\0".join([CONFIGURATIONS[name].options.encode(), *sources])).hexdigest()[:16]


def proofs() -> dict[str, tuple[int, str]]:
    """States found and digest of the recorded searches, by configuration. All went to their ends without an error."""
    rows = [line.split() for line in PROVEN.read_text().splitlines()]
    return {name: (int(states), digest) for name, states, digest in rows}


def record(program: Path) -> int:
    """Make the large searches. Writes nothing, and returns 1, if one fails."""
    lines = []
    for name in filter(is_large, CONFIGURATIONS):
        result = run(program, CONFIGURATIONS[name].options)
        print(f"{name:8} {result.states:9} states  errors {result.errors}  {result.seconds:6.1f} s", flush=True)
        if result.errors or not result.complete:
            return 1
        lines.append(f"{name} {result.states} {digest_of(name)}\n")
    PROVEN.write_text("".join(lines))
    return 0


def rules() -> list[str]:
    """All that can be left out, as model.h has them."""
    table = re.search(r"#define RULES\(X\)(.*?)\nenum", (FOLDER / "model.h").read_text(), re.DOTALL)
    if not table:
        raise ModelError("model.h has no table of rules")
    return re.findall(r"X\(([a-z_]+)\)", table[1])


def run(program: Path, options: str, *left_out: str) -> Result:
    """Search. Raises ModelError, or subprocess.TimeoutExpired after DEADLINE_S."""
    return _result(
        subprocess.run(
            [str(program), *options.split(), *(f"-{rule}" for rule in left_out)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    )


def _result(done: subprocess.CompletedProcess[str]) -> Result:
    if done.returncode:
        raise ModelError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    lines = done.stdout.splitlines()
    told = dict(line.split(": ", 1) for line in lines if line[:1].isalpha())
    return Result(
        errors=int(told["errors"]),
        states=int(told["states"]),
        depth=int(told["depth"]),
        complete=told["complete"] == "1",
        excused=int(told["excused"]),
        seconds=float(told["seconds"]),
        story=tuple(line for line in lines if line.startswith("  ")),
    )


def main(arguments: list[str]) -> int:
    if missing():
        print(f"missing: {', '.join(missing())}", file=sys.stderr)
        return 1
    every = {**CONFIGURATIONS, **LARGE}
    with tempfile.TemporaryDirectory(prefix="zenjun-formal-") as scratch:
        program = build(Path(scratch))
        if arguments == ["--record"]:
            return record(program)
        if arguments:
            known = every.get(arguments[0])
            options = known.options if known else arguments[0]
            command = [str(program), *options.split(), *(f"-{rule}" for rule in arguments[1:])]
            return subprocess.run(command, check=False).returncode
        for name, configuration in CONFIGURATIONS.items():
            result = run(program, configuration.options)
            print(
                f"{name:8} {result.states:9} states  depth {result.depth:3}  errors {result.errors}  "
                f"complete {result.complete}  excused {result.excused}  {result.seconds:6.1f} s",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
