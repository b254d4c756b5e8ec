"""libFuzzer on the C core, on groups that overlap beside it, and on libzenjun, under the address and undefined-behaviour
sanitizers (cases 59, 133, 137 and 139).

Long runs by hand:

    ZENJUN_FUZZ_SECONDS=3600 ZENJUN_FUZZ_SEED=0 pytest -s tests/fuzz/test_fuzz_core.py

A finding is printed with the input's path; put the input into tests/fuzz/regressions/TARGET under a name that tells what it
found.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ..amounts import amount
from ..timing import in_time

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CORE = ROOT / "proto" / "core"
CLIENT = ROOT / "daemon" / "client" / "c"
SANITIZE = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
SECONDS = int(os.environ.get("ZENJUN_FUZZ_SECONDS", str(amount(5, 10))))
SEED = int(os.environ.get("ZENJUN_FUZZ_SEED", "20261128"))
"""0: another one every time. The same one in tools/test, so that what fails there comes from the change."""
INPUT_BYTES_MAX = {"codec": 700, "rx": 6000, "client": 4000, "pieces": 2000, "multi": 3000}
PART = {"pieces": 4, "multi": 3}
"""Of the time: small ones find what they find soon."""
PIECES = [ROOT / "daemon" / "datapath" / name for name in ("pieces.c", "hearing.c")]
BUILD_SECONDS_MAX = 600


def clang() -> str:
    found = shutil.which("clang")
    if found is None:
        # A skip would hide that nothing was fuzzed.
        pytest.fail("clang is missing: install the packages clang and libclang-rt-dev (Debian 12: libclang-rt-14-dev)")
    return found


def run(command: list[str], seconds_max: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds_max, check=False)


@pytest.fixture(scope="module", params=list(INPUT_BYTES_MAX))
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(name, program built from the sources as they are now)."""
    name = str(request.param)
    program = tmp_path_factory.mktemp("fuzz") / f"fuzz_{name}"
    folder = CLIENT if name == "client" else CORE
    files = {"pieces": PIECES, "multi": sorted((CORE / "multi").glob("*.c"))}.get(name) or sorted(folder.rglob("*.c"))
    sources = [str(path) for path in files if path.name != "_core.c"]
    datapath = f"-I{ROOT / 'daemon' / 'datapath'}"
    include = [f"-I{CORE}", *([datapath] if name == "pieces" else [f"-I{CLIENT}", datapath])]
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    built = run(
        [clang(), "-g", "-O1", *warnings, *SANITIZE, *include, "-o", str(program), str(HERE / f"fuzz_{name}.c"), *sources],
        BUILD_SECONDS_MAX,
    )
    if "libclang_rt" in built.stderr:
        pytest.fail("clang has no fuzzer runtime: install libclang-rt-dev (Debian 12: libclang-rt-14-dev)")
    assert built.returncode == 0, built.stderr
    return name, program


def report(done: subprocess.CompletedProcess[str]) -> str:
    """What matters of a libFuzzer log."""
    wanted = re.compile(r"not so|runtime error|ERROR|SUMMARY|Test unit|#\d+ 0x\w+ in (?!fuzzer|__|main|_start)")
    return "\n".join(line for line in done.stderr.splitlines() if wanted.search(line)) or done.stderr[-2000:]


def test_seeds_and_past_findings_pass(target: tuple[str, Path]) -> None:
    name, program = target
    seeds = sorted((HERE / "corpus" / name).iterdir())
    assert seeds, "the corpus is empty: python -m tests.fuzz.make_corpus"
    regressions = sorted(path for path in (HERE / "regressions" / name).glob("*"))
    failed = {}
    for path in seeds + regressions:
        done = run([str(program), str(path)], 240)
        if done.returncode != 0:
            failed[f"{path.parent.name}/{path.name}"] = report(done)
    assert not failed, "\n".join(f"{path}:\n{text}" for path, text in failed.items())


def test_nothing_is_found_in_bounded_time(target: tuple[str, Path], tmp_path: Path) -> None:
    name, program = target
    new = tmp_path / "new"
    new.mkdir()
    seconds = max(3, SECONDS // PART.get(name, 1))
    done = run(
        [
            str(program),
            f"-max_total_time={seconds}",
            f"-seed={SEED}",
            f"-max_len={INPUT_BYTES_MAX[name]}",
            "-print_final_stats=1",
            "-timeout=100",
            f"-artifact_prefix={tmp_path}/",
            str(new),
            str(HERE / "corpus" / name),
        ],
        seconds + 400,
    )
    assert done.returncode == 0, report(done)
    executions = re.search(r"number_of_executed_units:\s+(\d+)", done.stderr)
    assert executions, done.stderr[-2000:]
    print(f"fuzz_{name}: {executions[1]} executions in {seconds} s, no finding")
    in_time(int(executions[1]) > 100, "a hundred executions")


def test_memory_does_not_grow(target: tuple[str, Path]) -> None:
    """Case 137: the same input five hundred times leaves nothing behind (LeakSanitizer ends the program otherwise)."""
    name, program = target
    seed = max((HERE / "corpus" / name).iterdir(), key=lambda path: path.stat().st_size)
    done = run([str(program), "-runs=500", str(seed)], 120)
    assert done.returncode == 0, report(done)
