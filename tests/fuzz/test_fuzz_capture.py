"""libFuzzer on the reader of captures, as test_fuzz_core.py does it; the seeds are small captures of all shapes.

ZENJUN_FUZZ_SECONDS=3600 ZENJUN_FUZZ_SEED=0 pytest -s tests/fuzz/test_fuzz_capture.py
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scapy.layers.l2 import Ether

from tests.pcap import shapes
from tests.pcap.built import PDUS

from ..timing import in_time
from .test_fuzz_core import BUILD_SECONDS_MAX, CORE, HERE, SANITIZE, SECONDS, SEED, clang, report, run

DATAPATH = HERE.parent.parent / "daemon" / "datapath"
NATIVE = HERE.parent.parent / "tools" / "pcap" / "native"
SOURCES = (*(NATIVE / name for name in ("capture.c", "pdu.c", "decode.c", "pieces.c")), CORE / "crc.c")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fuzz") / "fuzz_capture"
    flags = ["-g", "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror", *SANITIZE, f"-I{CORE}", f"-I{NATIVE}", f"-I{DATAPATH}"]
    built = run([clang(), *flags, "-o", str(made), str(HERE / "fuzz_capture.c"), *map(str, SOURCES)], BUILD_SECONDS_MAX)
    assert built.returncode == 0, built.stderr
    return made


def seeds(folder: Path) -> Path:
    folder.mkdir()
    frames = [(shapes.NS + k, bytes(Ether() / pdu)) for k, pdu in enumerate(PDUS.values()) if pdu.kind < 11]
    for order in "<>":
        name = "little" if order == "<" else "big"
        (folder / f"pcap-{name}").write_bytes(b"\x01" + shapes.pcap(frames[:6], order))
        (folder / f"pcapng-{name}").write_bytes(b"\x20" + shapes.pcapng(frames[6:], order))
        mixed = (
            shapes.section(order) + shapes.interface(order, resolution=0x80 | 20, offset=3) + shapes.simple(frames[0][1], order)
        )
        mixed += shapes.obsolete(5, frames[1][1], order) + shapes.enhanced(9, frames[2][1], order, flags=2)
        (folder / f"blocks-{name}").write_bytes(b"\x05" + mixed)
    tagged = frames[3][1][:12] + b"\x81\x00\x00\x05" + frames[3][1][12:]
    (folder / "tagged").write_bytes(b"\x00" + shapes.pcap([(1, tagged)]))
    (folder / "sll2").write_bytes(b"\x00" + shapes.pcap([(1, b"\x88\xb5" + bytes(18) + frames[4][1][14:])], link=shapes.SLL2))
    return folder


def test_seeds_pass(program: Path, tmp_path: Path) -> None:
    done = run([str(program), *map(str, sorted(seeds(tmp_path / "seeds").iterdir()))], 240)
    assert done.returncode == 0, report(done)


def test_nothing_is_found_in_bounded_time(program: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    options = [
        f"-max_total_time={SECONDS}",
        f"-seed={SEED}",
        "-max_len=4000",
        "-print_final_stats=1",
        "-timeout=100",
        f"-artifact_prefix={tmp_path}/",
    ]
    done = run([str(program), *options, str(new), str(seeds(tmp_path / "seeds"))], SECONDS + 400)
    assert done.returncode == 0, report(done)
    executions = re.search(r"number_of_executed_units:\s+(\d+)", done.stderr)
    assert executions, done.stderr[-2000:]
    print(f"fuzz_capture: {executions[1]} executions in {SECONDS} s, no finding")
    in_time(int(executions[1]) > 100, "a hundred executions")
