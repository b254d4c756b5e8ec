"""libFuzzer on the stand-in's server of libqb's IPC and on its messages of process groups, as test_fuzz_core.py does it.

ZENJUN_FUZZ_SECONDS=3600 ZENJUN_FUZZ_SEED=0 pytest -s tests/fuzz/test_fuzz_corosync.py
"""

from __future__ import annotations

import re
from pathlib import Path

from ..timing import in_time
from .test_fuzz_core import BUILD_SECONDS_MAX, HERE, ROOT, SANITIZE, SECONDS, SEED, clang, report, run

IPC = ROOT / "daemon" / "corosync" / "ipc"
CLIENT = ROOT / "daemon" / "client" / "c"
SOURCES = (*sorted(p for p in IPC.glob("*.c") if not p.name.startswith("_")), *sorted(CLIENT.glob("*.c")))


def seeds(folder: Path) -> Path:
    """A program that joins, and requests whose length is right, too large, and as large as a message may be."""
    folder.mkdir()
    joined = bytes([0, 0, 0, 0, 0, 4, 0, 0, 3, 0, 0, 0, 9, *b"", 1])
    for name, length, kind in (("right", 24, 1), ("beyond", 100, 1), ("largest", 1 << 20, 1), ("other", 24, 0)):
        request = bytearray(64)
        request[32:36] = length.to_bytes(4, "little")
        (folder / name).write_bytes(joined + bytes([1, 0, 0, 16]) + request + bytes([kind]) + bytes([14, 0, 0]))
    message = bytes([1, 4, 0, 0, 0, 9, 3]) + b"abc" + bytes(5) + b"text!"
    (folder / "deliver").write_bytes(joined + bytes([5, 0, 0, len(message) // 2]) + message + bytes([1, 7, 0, 0, 14, 0, 0]))
    several = b"".join(len(m).to_bytes(4, "big") + m for m in [message[:10] + bytes(5)] * 2).ljust(40, b"\0")
    (folder / "several").write_bytes(joined + bytes([11, 0, 0, 10, 3]) + several + message[7:10] + bytes([15, 14, 0, 0]))
    rows = b"".join(bytes([12, 0, 0, what, size, size]) for what, size in ((0, 9), (0, 250), (2, 0), (2, 0), (3, 0), (4, 0)))
    (folder / "row").write_bytes(rows + bytes([14, 0, 0]))
    return folder


def test_nothing_is_found_in_bounded_time(tmp_path: Path) -> None:
    program, new = tmp_path / "fuzz_corosync", tmp_path / "new"
    new.mkdir()
    folders = [f"-I{folder}" for folder in (IPC, CLIENT, ROOT / "daemon" / "datapath")]
    flags = ["-g", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-DZENJUN_PUBLIC=", *SANITIZE, *folders, "-rdynamic"]
    built = run(
        [clang(), *flags, "-o", str(program), str(HERE / "fuzz_corosync.c"), *map(str, SOURCES), "-ldl"], BUILD_SECONDS_MAX
    )
    assert built.returncode == 0, built.stderr
    options = [f"-max_total_time={SECONDS}", f"-seed={SEED}", "-max_len=6000", "-len_control=0", "-print_final_stats=1"]
    done = run(
        [str(program), *options, "-timeout=100", f"-artifact_prefix={tmp_path}/", str(new), str(seeds(tmp_path / "seeds"))],
        SECONDS + 400,
    )
    assert done.returncode == 0, report(done)
    executions = re.search(r"number_of_executed_units:\s+(\d+)", done.stderr)
    assert executions, done.stderr[-2000:]
    print(f"fuzz_corosync: {executions[1]} executions in {SECONDS} s, no finding")
    in_time(int(executions[1]) > 100, "a hundred executions")
