"""How soon Pacemaker's resource runs again, on stand-ins and on corosync.

    python -m tests.e2e.pacemaker_bench STACK[,STACK…] RUNS WHAT… [--lines FOLDER]

STACK: ``zenjun``, ``zenjun:PRIORITY`` with zenjund's real-time priority (corosync and the stand-in have one in any case),
``zenjun@MS`` with the times of ``zenjun corosync config --stop-time MS``,
``corosync``, or ``corosync:TOKEN`` with a token of so many milliseconds; several take turns, each with a cluster that is up all
the time. WHAT: ``other`` (SIGKILL of a whole node that is not the one that decides), ``dc`` (of the one that decides), ``two``
(of one of two nodes, with two_node), ``cut`` (the node with the resource is cut off: when it stops it, when the others start it,
and when all is well again after the cut). ``--lines``: what all logs say of each run, in milliseconds since the fault, to see
where the time goes (Pacemaker then logs more, which takes time itself).
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from zenjun.tools.cli.corosync import STOP_MS, times

from .pacemaker_common import LOG, Cluster, Stack, failover_s, pacemakers, wait_for

REST_S: Final = 1.0
CLOCK: Final = re.compile(r"\b(\d\d):(\d\d):(\d\d[.,]\d{3})")
DEBUG: Final = "pacemaker-controld,pacemaker-based,pacemaker-attrd"
"""Of Pacemaker's daemons, which of them say more."""


def lines_since(up: Cluster, began: float) -> list[str]:
    """What the nodes' logs have said since a time of the wall clock, by their own clocks, one line after the other."""
    day = datetime.fromtimestamp(began).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    found = []
    for node, init in up.inits.items():
        logs = (Path(f"/proc/{init}/root{LOG}"), up.log(node, "corosync"), up.log(node, "zenjund"))
        for line in (line for path in logs if path.exists() for line in path.read_text(errors="replace").splitlines()):
            if at := CLOCK.search(line):
                ms = 1000 * (day + 3600 * int(at[1]) + 60 * int(at[2]) + float(at[3].replace(",", ".")) - began)
                if -5 <= ms < 60_000:
                    found.append((ms, f"{ms:7.0f} node {node} {line[at.end() :].strip()}"))
    return [line for _, line in sorted(found)]


class Parts(NamedTuple):
    """Where a failover's time has gone, in milliseconds one after the other, by the logs of the node that decided: to 4 ms."""

    silence: float
    """Until Pacemaker's controller has heard of the end of the node: fail_timeout_ms or token, and the agreement on members."""
    talk: float
    """All that its daemons say to each other of it until it decides, without the sleeps."""
    sleep: float
    """The controller sleeps because updates of its own are under way when it has read its status (``do_pe_invoke_callback``)."""
    start: float
    """From the decision until the resource runs."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.0f}" for name, value in zip(self._fields, self, strict=True))


def parts_of(lines: list[str], decider: int, took_ms: float) -> Parts | None:
    """None: the logs do not say it."""
    said = [(float(words[0]), words[-1]) for line in lines if (words := line.split(maxsplit=3))[2] == str(decider)]
    heard = [ms for ms, text in said if "(quorum_notification_cb)" in text]
    told = [ms for ms, text in said if "Initiating start operation d_" in text]
    if not heard or not told:
        return None
    slept = 0.0
    for ms, text in said:
        if "Re-asking for the CIB" in text and ms <= told[0]:
            slept += min((at for at, other in said if at > ms and "Requesting the current CIB" in other), default=ms) - ms
    return Parts(heard[0], told[0] - heard[0] - slept, slept, took_ms - told[0])


def options_of(stop_ms: int) -> dict[str, Any]:
    """Of zenjund at three nodes: as `zenjun corosync config --stop-time` has them."""
    lines = (line.partition("=") for line in times(stop_ms))
    return {name.strip(): int(value) for name, equals, value in lines if equals}


OPTIONS: Final = options_of(STOP_MS)


def killed(up: Cluster, what: str, lines: Path | None = None) -> float:
    """One failover; the node that was killed is back afterwards. lines: a file for what the logs say."""
    leader = up.leader(next(iter(up.inits)))
    target = leader if what == "dc" else next(node for node in sorted(up.inits, reverse=True) if node != leader)
    up.place(target)
    time.sleep(REST_S)
    began = time.time()
    took = failover_s(up, target)
    time.sleep(REST_S)
    if lines is not None:
        found = lines_since(up, began)
        decider = leader if leader != target else up.leader(next(iter(up.inits)))
        words = f"{took * 1000:.0f} ms; node {target} was killed, node {decider} decided"
        lines.write_text("\n".join([f"{words}: {parts_of(found, decider, took * 1000)}", *found]) + "\n")
    up.start(target)
    up.until_online(*up.lab.stations)
    return took


def cut(up: Cluster) -> tuple[float, float, float]:
    """Seconds until the node that is cut off has stopped the Dummy, until another one has it, and, after the end of the cut,
    until all see each other."""
    node = up.until_holder()
    up.place(node)
    time.sleep(REST_S)
    others = [other for other in up.lab.stations if other != node]
    began, stopped, started = time.monotonic(), 0.0, 0.0
    up.lab.partition([[node], others])
    while not (stopped and started) and time.monotonic() - began < 60:
        now = time.monotonic() - began
        stopped = stopped or (0.0 if up.holds(node) else now)
        started = started or (now if any(map(up.holds, others)) else 0.0)
        time.sleep(0.002)
    began = time.monotonic()
    up.lab.heal()
    up.until_online(*up.lab.stations)
    wait_for(lambda: len(up.holders()) == 1, "one Dummy")
    return stopped, started, time.monotonic() - began


def one(name: str, nodes: int) -> contextlib.AbstractContextManager[Cluster]:
    """A cluster of so many nodes on this stack."""
    named, _, stop_ms = name.partition("@")
    kind, _, number = named.partition(":")
    stack: Stack = "zenjun" if kind == "zenjun" else "corosync"
    options = options_of(int(stop_ms or STOP_MS)) if nodes > 2 else {}
    quorum = "two_node: 1" if nodes == 2 else ""
    if stack == "corosync":
        return pacemakers(nodes, stack, quorum=quorum, totem=f"token: {number}" if number else "")
    return pacemakers(nodes, stack, options=options, station={"realtime_priority": int(number or 0)}, quorum=quorum)


def main(names: list[str], runs: int, wanted: list[str], lines: Path | None = None) -> None:
    if lines is not None:
        lines.mkdir(parents=True, exist_ok=True)
        os.environ["PCMK_debug"] = DEBUG  # noqa: SIM112
    for nodes in (3, 2):
        chosen = [what for what in wanted if (what == "two") == (nodes == 2)]
        if not chosen:
            continue
        with contextlib.ExitStack() as clusters:
            up = {name: clusters.enter_context(one(name, nodes)) for name in names}
            for what in chosen:
                found: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
                for run in range(runs):
                    for name in names[run % len(names) :] + names[: run % len(names)]:
                        kept = lines / f"{name}-{what}-{run}.log" if lines is not None else None
                        found[name].append(cut(up[name]) if what == "cut" else (killed(up[name], what, kept),))
                for name in names:
                    show(name, what, found[name])
                    for kept in sorted(lines.glob(f"{name}-{what}-*.log")) if lines is not None else ():
                        print(f"  {kept.read_text().partition(chr(10))[0]}")
                print(f"load {os.getloadavg()[0]:.1f}", flush=True)


def show(name: str, what: str, runs: list[tuple[float, ...]]) -> None:
    medians = " ".join(f"{statistics.median(values):.2f}" for values in zip(*runs, strict=True))
    each = " ".join("/".join(f"{s:.2f}" for s in run) for run in runs)
    first = ""
    if what == "cut":
        order = sum(stopped < started for stopped, started, _ in runs)
        first = f" stopped, started, healed; stopped first {order} of {len(runs)};"
    print(f"{name} {what}:{first} median {medians} s of {each}", flush=True)


if __name__ == "__main__":
    words, _, folder = " ".join(sys.argv[1:]).partition(" --lines ")
    stacks, count, *whats = words.split()
    main(stacks.split(","), int(count), whats, Path(folder) if folder else None)
