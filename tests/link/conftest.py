"""The double of the core, compiled once, and data paths on it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cffi import FFI
from zenjun.daemon.datapath import DataPath

from .rig import CLUSTER, ETHERTYPE, GROUP_MAC, Bench, Double

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@pytest.fixture(scope="session")
def double_library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The double, compiled once."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "these tests need a C compiler"
    target = tmp_path_factory.mktemp("double") / "core_double.so"
    core = ROOT / "proto" / "core"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", f"-I{core}"]
    subprocess.run([compiler, *flags, str(HERE / "core_double.c"), "-o", str(target)], check=True, timeout=60)
    ffi = FFI()
    declarations = (core / "zj.h").read_text()
    structs = re.findall(r"^struct zj_offer \{.*?^\};", declarations, re.DOTALL | re.MULTILINE)
    ffi.cdef("struct zj_api;" + structs[0] + (HERE / "core_double.h").read_text())
    return ffi, ffi.dlopen(str(target))


@pytest.fixture
def make_bench(double_library: tuple[Any, Any]) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(**options: Any) -> Bench:
        core = Double(*double_library, 0)
        core.c.room = 1 << 60
        settings: dict[str, Any] = {
            "rest_ns": 0,
            "linger_ns": 0,
            "slice_ns": 10**10,
            "message_max": 1 << 20,
            "queue_bytes_max": 1 << 20,
        }
        settings.update(options)
        dp = DataPath(core, station_index=0, ethertype=ETHERTYPE, cluster=CLUSTER, group_mac=GROUP_MAC, **settings)
        bench = Bench(core, dp)
        benches.append(bench)
        return bench

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()
