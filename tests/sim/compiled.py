"""``python -m tests.sim.compiled ARGUMENTS…``: ``python -m tests.sim ARGUMENTS…`` with engine and simulator compiled by mypyc.

For long runs. The copy, build/sim/DIGEST, is made when a source has changed (about a minute of processor time), and is used only
if it runs a few seeds to the same traces as the sources do. All Python of the hot paths is compiled, nothing is left out: the
oracle still reads frames by itself. The fastest interpreter on the PATH that can load the copy runs it: one of a distribution
is built with optimisation, those that version managers build are not. Without arguments it is only made. Several processes may
ask for it at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "build" / "sim"
KEPT: Final = 3
"""Copies of earlier sources that may still be in use."""
PLAIN: Final = ("__init__", "errors", "wire")
"""Modules of the engine that stay as they are: exceptions cannot be compiled, and what ``wire`` computes once and remembers
(``cached_property``) would be computed each time."""
SIM: Final = (
    *("checker", "checkers", "checkers_membership", "bus", "cluster", "facts", "frames", "network", "station", "trace"),
    *("coverage", "variants"),
)
"""What is called most. Exceptions, schedules and commands stay as they are, and so do options: what is frozen and compiled
does not get from one process to another by itself. Rules are not broken in the copy (``broken``): compiled classes have no
subclasses there."""
SETUP: Final = """
from setuptools import setup
from mypyc.build import mypycify

setup(name="sim", packages=[], ext_modules=mypycify({paths!r}, opt_level="1", debug_level="0", multi_file=True))
"""
MYPY: Final = "[mypy]\n[mypy-zenjun.proto.core._core,zenjun.daemon.*,scapy.*,pyroute2.*]\nignore_missing_imports = True\n"
PROBE: Final = """
import sysconfig, time
def work():
    began, table = time.process_time(), {}
    for k in range(100_000):
        table[k & 255] = (k, str(k))
    return time.process_time() - began
print(sysconfig.get_config_var("SOABI"), min(work() for _ in range(5)))
"""
FASTER: Final = 0.9
"""Another interpreter is taken only if it needs less than this part of the time."""
COMPARE: Final = """
import pickle
from tests.sim.bus import simulate_bus
from tests.sim.cluster import simulate
done = [*map(simulate, range(6)), *map(simulate_bus, range(2))]
print(*[result.trace_hash for result in pickle.loads(pickle.dumps(done))])
"""


def digest() -> str:
    """Of everything that the copy is made of."""
    found = hashlib.blake2b(sys.version.encode(), digest_size=6)
    files = [*(ROOT / "proto").rglob("*.py"), *(ROOT / "proto" / "core").glob("*.so"), *(ROOT / "tests" / "sim").glob("*.py")]
    for path in sorted(files):
        if not path.name.startswith("test_"):
            found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def ensure(minutes: float = 30) -> Path:
    """The folder of the copy of these sources. CalledProcessError, TimeoutExpired, RuntimeError: it cannot be made, or runs
    otherwise than its sources."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = FOLDER / digest()
        if not folder.exists():
            began = time.monotonic()
            new = FOLDER / "new"
            build(new, minutes)
            python = fastest()
            (new / "interpreter").write_text(python)
            compare(new, python)
            new.rename(folder)
            sys.stderr.write(f"{folder}: made in {time.monotonic() - began:.0f} s\n")
        folder.touch()
        copies = sorted((path for path in FOLDER.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
        for path in copies[: -1 - KEPT]:
            shutil.rmtree(path)
    return folder


def build(folder: Path, minutes: float) -> None:
    """Make a copy."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "zenjun").mkdir(parents=True)
    (folder / "zenjun" / "__init__.py").touch()
    shutil.copytree(ROOT / "proto", folder / "zenjun" / "proto")
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "__init__.py", folder / "tests")
    shutil.copytree(ROOT / "tests" / "sim", folder / "tests" / "sim", ignore=shutil.ignore_patterns("test_*"))
    proto = sorted(path.stem for path in (ROOT / "proto").glob("*.py") if path.stem not in PLAIN)
    proto += ["core/core", "core/records"]
    paths = [f"zenjun/proto/{name}.py" for name in proto] + [f"tests/sim/{name}.py" for name in SIM]
    (folder / "setup.py").write_text(SETUP.format(paths=paths))
    (folder / "mypy.ini").write_text(MYPY)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=folder, env=environment, timeout=minutes * 60, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder / "build", ignore_errors=True)


def environment_of(folder: Path) -> dict[str, str]:
    """In which ``python -P`` finds the copy first."""
    paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *site.getsitepackages()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def fastest() -> str:
    """Path of the interpreter that is to run the copy: this one, or one of the same binary interface that is faster."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    taken: list[tuple[float, str]] = []
    for path in dict.fromkeys(
        [sys.executable, *(str(Path(d) / name) for d in os.environ.get("PATH", "").split(os.pathsep) if d)]
    ):
        try:
            said = subprocess.run([path, "-I", "-S", "-c", PROBE], check=True, capture_output=True, text=True, timeout=60).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        interface, seconds = said.split()
        if interface == sysconfig.get_config_var("SOABI"):
            taken.append((float(seconds) / (1 if path == sys.executable else FASTER), path))
    return min(taken)[1]


def compare(folder: Path, python: str) -> None:
    """``python`` runs the copy. RuntimeError: the copy does not do what the sources do."""
    sources = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / ".typing"), str(ROOT), os.environ.get("PYTHONPATH", "")])}
    said = [
        subprocess.run([path, "-P", "-c", COMPARE], env=env, check=True, capture_output=True, text=True, timeout=600).stdout
        for path, env in ((sys.executable, sources), (python, environment_of(folder)))
    ]
    if said[0] != said[1]:
        raise RuntimeError(f"{folder} does not run as its sources do:\n{said[0]}{said[1]}")


def main(argv: list[str]) -> int:
    folder = ensure()
    if argv:
        python = (folder / "interpreter").read_text()
        os.execve(python, [python, "-P", "-m", "tests.sim", *argv], environment_of(folder))
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
