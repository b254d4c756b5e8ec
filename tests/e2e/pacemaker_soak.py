"""Pacemaker on three stand-ins for a long time, with a random node killed or cut off again and again.

    python -m tests.e2e.pacemaker_soak MINUTES [--every SECONDS] [--faults KIND,…] [--seed N] [--stop-time MS] [--logs FOLDER]

A Dummy, an IPaddr2 and a clone. A thread looks every few milliseconds where the Dummy runs: at two nodes at once is a breach, if
it lasts longer than a stop takes. Pacemaker's logs of that moment are kept in the folder ``--logs``. After every fault all nodes
must be online again, with one Dummy and one address, and ``crm_verify`` must have nothing to say. In the end: times, overlaps,
memory of the stand-ins and of zenjund, files of crashes. ``--stop-time``: as of `zenjun corosync config`.

Faults: ``kill`` (a whole node), ``cut`` (off from the others), both also of the node that has the Dummy, ``daemon`` (a zenjund is
killed), ``stand-in`` (that is killed: nothing stops what runs there, see docs/corosync.md). Exit code 0: nothing was wrong; 1:
something was; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Final

from zenjun.tools.cli.corosync import STOP_MS

from .. import corosyncs
from .pacemaker_bench import options_of
from .pacemaker_common import LOG, Cluster, available, pacemakers, wait_for

STOP_S: Final = 0.3
"""An overlap up to here is a stop's time: as long as Pacemaker takes for it, from the agent's start on, on a busy machine."""
KINDS: Final = ("kill", "kill holder", "cut", "cut holder", "daemon", "stand-in")
DAEMONS: Final = {"zenjund": "zenjun.daemon --config", "stand-in": "zenjun.daemon.corosync"}
"""What their command lines have."""
GROWTH: Final = 1.15
GROWTH_KIB: Final = 4096
"""Memory is flat if the most of the last fifth of the time is not more than the most of the first fifth by this factor and by so
much. Daemons end with their nodes: a leak shows in those that live longest."""
ADDRESS: Final = "10.77.0.200"
MORE: Final = f"""
   <primitive id="ip" class="ocf" provider="heartbeat" type="IPaddr2">
    <instance_attributes id="ip1">
     <nvpair id="ip2" name="ip" value="{ADDRESS}"/>
     <nvpair id="ip3" name="cidr_netmask" value="24"/>
     <nvpair id="ip4" name="nic" value="eth0"/>
    </instance_attributes>
   </primitive>
   <clone id="c">
    <primitive id="e" class="ocf" provider="pacemaker" type="Dummy"/>
   </clone>"""


class Watcher(threading.Thread):
    """Where the Dummy is, all the time."""

    def __init__(self, up: Cluster, logs: Path | None) -> None:
        super().__init__(daemon=True)
        self.up, self.logs = up, logs
        self.ended = False
        self.looks = 0
        self.slowest_s = 0.0
        """Between two looks."""
        self.overlaps: list[tuple[float, list[int]]] = []
        """Seconds, and where, of each time that there were two."""
        self.none_s = 0.0

    def keep(self, number: int) -> None:
        """The logs of now."""
        for node, init in list(self.up.inits.items()) if self.logs is not None else ():
            assert self.logs is not None
            self.logs.mkdir(parents=True, exist_ok=True)
            for path in (Path(f"/proc/{init}/root{LOG}"), self.up.log(node, "corosync"), self.up.log(node, "zenjund")):
                with contextlib.suppress(OSError):
                    shutil.copy(path, self.logs / f"{number}.node{node}.{path.name}")

    def run(self) -> None:
        since: float | None = None
        before = time.monotonic()
        where: list[int] = []
        while not self.ended:
            holders = [node for node in self.up.lab.stations if self.up.holds(node)]
            now = time.monotonic()
            self.looks += 1
            self.slowest_s = max(self.slowest_s, now - before)
            if not holders:
                self.none_s += now - before
            before = now
            if len(holders) > 1 and since is None:
                since, where = now, holders
            elif len(holders) < 2 and since is not None:
                self.overlaps.append((now - since, where))
                since = None
                if self.overlaps[-1][0] > STOP_S:
                    self.keep(len(self.overlaps))
            time.sleep(0.004)


def memory_kib(up: Cluster, node: int, what: str) -> int:
    """Resident memory of a daemon at a node; 0: it is not there."""
    done = up.run(node, "pgrep", "-f", what)
    for pid in done.stdout.split():
        status = up.run(node, "cat", f"/proc/{pid}/status").stdout
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


class Memory:
    """Of the daemons, after every fault."""

    def __init__(self) -> None:
        self.most: dict[str, list[int]] = {name: [] for name in DAEMONS}
        """KiB, the most of all nodes."""

    def look(self, up: Cluster) -> None:
        for name, what in DAEMONS.items():
            self.most[name].append(max(memory_kib(up, node, what) for node in up.inits))

    def fifths(self, name: str) -> tuple[int, int]:
        """The most at the beginning and at the end."""
        found = self.most[name]
        part = max(1, len(found) // 5)
        return max(found[:part]), max(found[-part:])

    def wrong(self) -> list[str]:
        texts = {name: self.fifths(name) for name in DAEMONS}
        return [
            f"memory of {name}: {first} KiB at the beginning, {last} at the end"
            for name, (first, last) in texts.items()
            if last > max(first * GROWTH, first + GROWTH_KIB)
        ]


def addresses(up: Cluster) -> list[int]:
    """Nodes that have the address."""
    return [node for node in sorted(up.inits) if f" {ADDRESS}/" in up.run(node, "ip", "-o", "-4", "address").stdout]


def verdict(up: Cluster) -> list[str]:
    """What is wrong at rest."""
    wrong = []
    node = next(iter(up.inits))
    done = up.run(node, "crm_verify", "-L")
    if done.returncode or done.stdout.strip() or done.stderr.strip():
        wrong.append(f"crm_verify: {done.stdout}{done.stderr}".strip())
    for name in up.inits:
        folder = Path(f"/proc/{up.inits[name]}/root/var/lib/pacemaker/cores")
        wrong += [f"core at node {name}: {path.name}" for path in folder.rglob("*") if path.is_file()]
    return wrong + [f"core of a daemon: {path.name}" for path in corosyncs.ROOT.glob("core*") if path.is_file()]


def fault(up: Cluster, r: random.Random, kinds: list[str]) -> tuple[str, int]:
    """One of them, and everything is well again afterwards."""
    kind, node = r.choice(kinds), r.choice(sorted(up.lab.stations))
    if kind.endswith("holder"):
        node = up.until_holder()
    others = [other for other in up.lab.stations if other != node]
    if kind.startswith("kill"):
        up.kill(node)
        time.sleep(r.uniform(0.2, 6))
        up.start(node)
    elif kind.startswith("cut"):
        up.lab.partition([[node], others])
        time.sleep(r.choice([r.uniform(0.05, 0.6), r.uniform(0.6, 6)]))
        up.lab.heal()
    else:
        what = DAEMONS["zenjund" if kind == "daemon" else "stand-in"]
        up.run(node, "pkill", "-KILL", "-f", what)  # in the node's own pid namespace
        time.sleep(r.uniform(1, 4))
        up.kill(node)  # Pacemaker does not survive its cluster layer: the node is switched off and on
        up.start(node)
    return kind, node


def settle(up: Cluster) -> None:
    up.until_online(*up.lab.stations)
    wait_for(lambda: len(up.holders()) == 1, "one Dummy")
    wait_for(lambda: len(addresses(up)) == 1, "one address", every_s=0.5)


def kinds_of(text: str) -> list[str]:
    found = [word.strip() for word in text.split(",")]
    if unknown := sorted(set(found) - set(KINDS)):
        raise argparse.ArgumentTypeError(f"no such fault: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return found


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.pacemaker_soak", description=str(__doc__).partition("\n")[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--every", type=float, default=30.0, metavar="SECONDS", help="between two faults (default 30)")
    kinds = f"of {', '.join(KINDS)} (default all)"
    parser.add_argument("--faults", type=kinds_of, default=list(KINDS), metavar="KIND,…", help=kinds)
    parser.add_argument("--seed", type=int, default=1, help="of the faults (default 1)")
    parser.add_argument("--stop-time", type=int, default=STOP_MS, metavar="MS", help=f"a node has to stop (default {STOP_MS})")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="where logs of breaches are kept")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = arguments(argv)
    available()
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))  # who crashes leaves a file
    r = random.Random(args.seed)
    wrong: list[str] = []
    counts: dict[str, int] = {}
    back: list[float] = []
    memory = Memory()
    with pacemakers(3, options=options_of(args.stop_time), more=MORE) as up:
        settle(up)
        watcher = Watcher(up, args.logs)
        watcher.start()
        began = time.monotonic()
        end = began + args.minutes * 60
        while (start := time.monotonic()) < end:
            kind, node = fault(up, r, args.faults)
            healed = time.monotonic()
            settle(up)
            back.append(time.monotonic() - healed)
            counts[kind] = counts.get(kind, 0) + 1
            found = verdict(up)
            wrong += found
            memory.look(up)
            longest = max((s for s, _ in watcher.overlaps), default=0.0)
            overlaps = f"{len(watcher.overlaps)} overlaps, longest {longest:.3f} s"
            more = f"; {found}" if found else ""
            at = f"{(start - began) / 60:.1f} min"
            print(f"{at} {kind} node {node}: well again after {back[-1]:.1f} s; {overlaps}{more}", flush=True)
            time.sleep(max(0.0, r.uniform(0.7, 1.3) * args.every - (time.monotonic() - start)))
        minutes = (time.monotonic() - began) / 60
        watcher.ended = True
        watcher.join(10)
        wrong += [f"the Dummy at {where} for {s:.3f} s" for s, where in watcher.overlaps if s > STOP_S] + memory.wrong()
        print(f"faults: {sum(counts.values())} in {minutes:.1f} min: {counts}; load {os.getloadavg()[2]:.1f}")
        print(f"well again: median {statistics.median(back):.1f} s, longest {max(back):.1f} s")
        print(f"overlaps: {len(watcher.overlaps)}: {[round(s, 3) for s, _ in watcher.overlaps]}")
        print(f"looks: {watcher.looks}, longest pause {watcher.slowest_s * 1000:.0f} ms; no Dummy for {watcher.none_s:.0f} s")
        print(f"most memory in the first fifth and in the last, KiB: { ({name: memory.fifths(name) for name in DAEMONS}) }")
    print("\n".join(["wrong:", *wrong]) if wrong else "nothing was wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
