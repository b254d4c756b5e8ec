"""corosync's own test programs, unchanged, at three nodes, by hand.

    python -m tests.e2e.corosync_programs FOLDER [STACK] [PROGRAM…]

FOLDER: the source of corosync 3.1.7 (``apt-get source corosync``); its ``test/*.c`` are built here on Debian's libraries, with
the headers of libqb and zlib. STACK: ``zenjun`` (default) or ``corosync``. PROGRAM: only these. Prints what each program has said
at its end, and what is wrong. Exit code 1: something is.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from .. import corosyncs
from .pacemaker_common import Cluster, Stack, nodes_of, wait_for

CONFIG: Final = '#define HAVE_CRC32 1\n#define LOCALSTATEDIR "/var"\n#define _GNU_SOURCE 1\n'
LIBRARIES: Final = ("cpg", "quorum", "votequorum", "cmap", "cfg", "sam", "corosync_common", "qb")
LONG_S: Final = 900.0
"""cpgbenchzc: 50 sizes of 10 s each."""


class Said(NamedTuple):
    """What a program has come to; code None: it was ended, as it never ends by itself."""

    code: int | None
    text: str


class Run(NamedTuple):
    """A program at some nodes at once. limit_s: then it is ended, which is no mistake. good: judges what one of them has said."""

    program: str
    good: Callable[[Said], bool]
    words: str = ""
    nodes: tuple[int, ...] = (1,)
    limit_s: float = 0.0
    typed: str = ""
    """A shell's commands that say what is typed."""


def ended(said: Said) -> bool:
    return said.code == 0


def passes(said: Said) -> bool:
    return said.code == 0 and said.text.rstrip().endswith("PASS")


def waits(*wanted: str) -> Callable[[Said], bool]:
    """It has said all of these, and nothing of a failure, and goes on."""
    return lambda said: said.code is None and "FAILED" not in said.text and all(word in said.text for word in wanted)


def heard_all(said: Said) -> bool:
    return said.code == 0 and said.text.count("message (len=") >= 3 and said.text.count("'hello") >= 3


TYPED: Final = "sleep 4; echo hello; sleep 4; echo EXIT"
ALL: Final = (1, 2, 3)
RUNS: Final = (
    Run("testcpg", heard_all, nodes=ALL, typed=TYPED),
    Run("testcpgzc", heard_all, nodes=ALL, typed=TYPED),
    Run("testcpg2", ended),
    Run("testzcgc", ended),
    Run("cpgverify", lambda said: said.code == 0 and "incorrect" not in said.text, "-i 300", ALL),
    Run("cpgbound", lambda said: said.code is None and "failed" not in said.text, limit_s=10),
    Run("cpghum", ended, "-f --flood-start=64 --flood-mult=8 --flood-max=256K -a", (1,)),
    Run("cpghum", ended, "-d 10 -r 3 -p 5 -w 1000 -a", ALL),
    Run("cpgbench", ended),
    Run("cpgbenchzc", ended),
    Run("stress_cpgfdget", passes),
    Run("stress_cpgcontext", passes),
    Run("stress_cpgzc", passes),
    Run("testquorum", waits("quorate   = 1"), limit_s=3),
    Run("testquorummodel", waits("quorate   1"), limit_s=3),
    Run("testvotequorum1", waits("expected votes   3", "Quorate"), limit_s=3),
    Run("testcfg", lambda said: said.code == 0 and "ERROR" not in said.text),
    Run("testsam", lambda said: said.code == 0 and "All tests passed" in said.text),
)


def build(source: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "config.h").write_text(CONFIG)
    libraries = [next(corosyncs.pacemaker().rglob(f"lib{name}.so.[0-9]*")) for name in LIBRARIES]
    flags = ["-O1", "-w", f"-I{folder}", f"-I{source / 'include'}", "-Wl,--allow-shlib-undefined"]
    for program in sorted({run.program for run in RUNS}):
        text = source / "test" / f"{program}.c"
        subprocess.run(["cc", *flags, "-o", folder / program, text, *libraries, "-lz", "-lpthread"], check=True)


def play(up: Cluster, folder: Path, run: Run) -> list[Said]:
    """What it has said at each of its nodes."""
    typed = f"({run.typed}) | " if run.typed else ""
    started = []
    for node in run.nodes:
        name = f"program-{run.program}"
        up.log(node, name).unlink(missing_ok=True)
        started.append(up.spawn(node, name, "sh", "-c", f"{typed}exec stdbuf -oL {folder / run.program} {run.words}"))
    deadline = time.monotonic() + (run.limit_s or LONG_S)
    codes: list[int | None] = []
    for process in started:
        try:
            codes.append(process.wait(max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            codes.append(None if run.limit_s else -1)
    for node in run.nodes:  # in the node's own pid namespace
        up.run(node, "pkill", "-KILL", "-x", run.program[:15])
    return [
        Said(code, up.log(node, f"program-{run.program}").read_text(errors="replace"))
        for node, code in zip(run.nodes, codes, strict=True)
    ]


def main(source: Path, stack: Stack, programs: list[str]) -> int:
    wrong = 0
    with nodes_of(3, stack, pacemaker=False, options={"fail_timeout_ms": 2000}) as up:
        build(source, up.lab.directory / "programs")
        wait_for(lambda: all("Nodes:            3" in up.run(node, "corosync-quorumtool").stdout for node in ALL), "a ring")
        for run in RUNS:
            if programs and run.program not in programs:
                continue
            began = time.monotonic()
            found = play(up, up.lab.directory / "programs", run)
            good = all(map(run.good, found))
            wrong += not good
            last = (found[0].text.strip().splitlines() or [""])[-1][:90]
            words = f"{run.program} {run.words}".strip()
            print(f"{'ok' if good else 'WRONG'} {words} at {len(found)}: {last} ({time.monotonic() - began:.0f} s)", flush=True)
            if not good:
                print("\n".join(f"  code {said.code}: …{said.text[-600:]}" for said in found), flush=True)
        whole = all("Nodes:            3" in up.run(node, "corosync-quorumtool").stdout for node in ALL)
        print(f"{'ok' if whole else 'WRONG'} the ring has three nodes as before")
    return 1 if wrong or not whole else 0


if __name__ == "__main__":
    folder, *words = sys.argv[1:]
    which: Stack = "corosync" if words[:1] == ["corosync"] else "zenjun"
    sys.exit(main(Path(folder).resolve(), which, [word for word in words if word not in ("zenjun", "corosync")]))
