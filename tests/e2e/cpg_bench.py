"""How many messages a program of libcpg gets through, on stand-ins and on corosync, at three nodes.

    python -m tests.e2e.cpg_bench RUNS SECONDS SIZE…

One sender floods (``cpgbench.c``), the other nodes have a member of its group each. The stacks take turns, each RUNS times.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from .. import corosyncs
from .pacemaker_common import Cluster, Stack, nodes_of, wait_for

STACKS: tuple[Stack, ...] = ("zenjun", "corosync")


def built(folder: Path) -> Path:
    """The program, linked with Debian's libcpg."""
    library = next(corosyncs.pacemaker().rglob("libcpg.so.4"))
    source = Path(__file__).with_name("cpgbench.c")
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-Wl,--allow-shlib-undefined"]
    subprocess.run(["cc", *flags, "-o", folder / "cpgbench", source, library], check=True)
    return folder / "cpgbench"


def measured(up: Cluster, program: Path, seconds: str, sizes: list[str]) -> dict[str, float]:
    """Messages per second by size."""
    wait_for(
        lambda: all("Nodes:            3" in up.run(node, "corosync-quorumtool").stdout for node in up.lab.stations), "a ring"
    )
    listeners = [up.spawn(node, "listener", str(program), "0", "64") for node in (2, 3)]
    found = {}
    for size in sizes:
        done = up.run(1, str(program), seconds, size, timeout_s=180)
        assert done.returncode == 0, done.stderr + up.words()
        found[size] = float(done.stdout.split()[-1])
    for listener in listeners:
        listener.kill()
    return found


def main(runs: int, seconds: str, sizes: list[str]) -> None:
    rates: dict[tuple[Stack, str], list[float]] = {(stack, size): [] for stack in STACKS for size in sizes}
    for _ in range(runs):
        for stack in STACKS:
            with nodes_of(3, stack, pacemaker=False, options={"fail_timeout_ms": 2000}) as up:
                for size, rate in measured(up, built(up.lab.directory), seconds, sizes).items():
                    rates[stack, size].append(rate)
    for (stack, size), found in rates.items():
        print(
            f"{stack} {size} B: median {statistics.median(found):.0f} of {' '.join(f'{rate:.0f}' for rate in found)}", flush=True
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
