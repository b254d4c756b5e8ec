"""``python -m tests.sim.compiled [FOLDER]``: a copy of the engine and the simulator compiled by mypyc, for long runs.

The copy (default build/sim) runs the same seeds to the same traces; ``PYTHONPATH=build/sim python -m tests.sim …`` from that
folder. What is compiled is the Python of both, nothing is left out: the oracle still reads frames by itself. It is made anew
after every change of a source. The compiler takes several minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "build" / "sim"
PROTO: Final = (
    *("timers", "engine", "membership", "ballots", "peer", "peerstate", "votes", "opening", "openstate", "openpdu", "silence"),
    *("joining", "reset", "wire", "effects"),
)
SIM: Final = ("checker", "checkers", "checkers_membership", "bus", "cluster", "facts", "frames", "network", "station", "trace")
"""What is called most. Exceptions, options and commands stay as they are."""
SETUP: Final = """
from setuptools import setup
from mypyc.build import mypycify

setup(name="sim", packages=[], ext_modules=mypycify({paths!r}, opt_level="1", debug_level="0", multi_file=True))
"""
MYPY: Final = "[mypy]\n[mypy-zenjun.proto.core._core,zenjun.daemon.*,scapy.*,pyroute2.*]\nignore_missing_imports = True\n"


def build(folder: Path = FOLDER, minutes: float = 30) -> None:
    """Make it anew. CalledProcessError, TimeoutExpired: the compiler says why."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "zenjun").mkdir(parents=True)
    (folder / "zenjun" / "__init__.py").touch()
    shutil.copytree(ROOT / "proto", folder / "zenjun" / "proto")
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "__init__.py", folder / "tests")
    shutil.copytree(ROOT / "tests" / "sim", folder / "tests" / "sim", ignore=shutil.ignore_patterns("test_*"))
    paths = [f"zenjun/proto/{name}.py" for name in PROTO] + [f"tests/sim/{name}.py" for name in SIM]
    (folder / "setup.py").write_text(SETUP.format(paths=paths))
    (folder / "mypy.ini").write_text(MYPY)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=folder, env=environment, timeout=minutes * 60, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOLDER)
