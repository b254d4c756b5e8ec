"""How many messages a program of libcpg gets through, and how long one takes, on stand-ins and on corosync, at three nodes.

    python -m tests.e2e.cpg_bench RUNS SECONDS WHAT… [--times FOLDER]

WHAT: a size in bytes (one sender floods), ``one`` (64 B, one at a time: p50 and p99), ``rate`` (64 B, 1,000 a second: p50, p99,
and what of a core zenjund and the stand-in, or corosync, take at the sender's node), ``loss`` (the same while each node loses 1 %
of the frames), or ``change`` (the last of them: node 3 is killed; how long the first message and the median of ten take that a
program sends which has heard of it). With a second word ``realtime`` behind a colon (``loss:realtime``) the program has real-time
priority as the stacks have it, so that what it waits for itself on a busy machine is not counted. The other nodes have a member
of its group each (``cpgbench.c``). The stacks take turns, each RUNS times. ``--times``: when each message of ``rate`` and
``loss`` was due and how long it took, and captures of all nodes, in FOLDER; the ten latest of each run are printed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
from pathlib import Path

from .. import corosyncs
from .pacemaker_common import Cluster, Stack, nodes_of, wait_for

STACKS: tuple[Stack, ...] = ("zenjun", "corosync")
RATE = "1000"
CLUSTER = {"fail_timeout_ms": 2000}
STATION = {"realtime_priority": 1}
"""As corosync and the stand-in have it."""


def built(folder: Path) -> Path:
    """The program, linked with Debian's libcpg."""
    library = next(corosyncs.pacemaker().rglob("libcpg.so.4"))
    source = Path(__file__).with_name("cpgbench.c")
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-Wl,--allow-shlib-undefined"]
    subprocess.run(["cc", *flags, "-o", folder / "cpgbench", source, library], check=True)
    return folder / "cpgbench"


def seconds_of(up: Cluster, node: int) -> float:
    """Processor time of the node's daemons so far."""
    space, found = Path(f"/proc/{up.inits[node]}/ns/pid").readlink(), 0.0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().split(b"\0")
            if (path / "ns/pid").readlink() == space and (b"corosync" in command or b"--config" in command):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:  # it has ended
            continue
    return found


def changed(up: Cluster, program: Path) -> list[float]:
    """Microseconds that the first message takes, and the median of the first ten, of a program that hears of a node's end."""
    up.spawn(1, "change", str(program), "0", "64", "change")
    wait_for(lambda: up.run(1, "corosync-cpgtool").stdout.count("10.77.0.") == 3, "three members")
    up.kill(3)
    path = up.log(1, "change")
    wait_for(lambda: path.read_text().endswith("\n"), "ten messages after the end of a node")
    took = [float(word) for word in path.read_text().split()[1:]]
    return [took[0], statistics.median(took)]


def late(path: Path) -> str:
    """The ten latest of a run, as ``cpgbench`` has written them: when they were due (seconds of CLOCK_MONOTONIC) and the
    milliseconds they took. One that is late delays those behind it, so of neighbours it is the first that says why."""
    took = [(float(us) / 1000, due) for due, us in map(str.split, path.read_text().splitlines())]
    return " ".join(f"{due}:{ms:.1f}" for ms, due in sorted(took, reverse=True)[:10])


def measured(up: Cluster, program: Path, seconds: str, wanted: list[str], times: Path | None = None) -> dict[str, list[float]]:
    """Figures, by what was wanted: messages per second; or p50 and p99 in microseconds, and percent of a core."""
    wait_for(
        lambda: all("Nodes:            3" in up.run(node, "corosync-quorumtool").stdout for node in up.lab.stations), "a ring"
    )
    listeners = [up.spawn(node, "listener", str(program), "0", "64") for node in (2, 3)]
    found = {}
    for name in wanted:
        what, _, priority = name.partition(":")
        if what == "change":
            found[name] = changed(up, program)
            continue
        arguments = {"one": ["64", "0"], "loss": ["64", RATE], "rate": ["64", RATE]}.get(what, [what])
        kept = times / name if times is not None and what in ("rate", "loss") else None
        if kept is not None:
            arguments.append(str(up.lab.directory / "times"))
        if what == "loss":
            up.lab.set_loss(0.01)
        with up.lab.capture(kept, allow_missing=True) if kept is not None else contextlib.nullcontext():
            before = seconds_of(up, 1)
            done = up.run(1, *(["chrt", "-r", "1"] if priority else []), str(program), seconds, *arguments, timeout_s=180)
            used = seconds_of(up, 1) - before
        up.lab.set_loss(0.0)
        assert done.returncode == 0, done.stderr + up.words()
        if kept is not None:
            (kept / "times").write_text((up.lab.directory / "times").read_text())
            print(f"{up.stack} {name}, due and ms of the latest: {late(kept / 'times')}", flush=True)
        words = done.stdout.split()
        found[name] = [float(words[-1])] if what.isdigit() else [*map(float, words[-2:]), 100 * used / float(seconds)]
    for listener in listeners:
        listener.kill()
    return found


def main(runs: int, seconds: str, wanted: list[str], times: Path | None = None) -> None:
    found: dict[tuple[Stack, str], list[list[float]]] = {(stack, what): [] for stack in STACKS for what in wanted}
    for run in range(runs):
        for stack in STACKS[:: -1 if run % 2 else 1]:
            with nodes_of(3, stack, pacemaker=False, options=CLUSTER, station=STATION) as up:
                folder = times / f"{stack}-{run}" if times is not None else None
                for what, figures in measured(up, built(up.lab.directory), seconds, wanted, folder).items():
                    found[stack, what].append(figures)
    for (stack, what), each in found.items():
        of_time = "us first, us median" if what == "change" else "us p50, us p99, % of a core"
        unit = "messages/s" if what.isdigit() else of_time
        medians = ", ".join(f"{statistics.median(values):.0f}" for values in zip(*each, strict=True))
        print(f"{stack} {what}: {medians} {unit}; of {' '.join('/'.join(f'{v:.0f}' for v in one) for one in each)}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    words, _, folder = " ".join(sys.argv[1:]).partition(" --times ")
    count, length, *whats = words.split()
    main(int(count), length, whats, Path(folder) if folder else None)
