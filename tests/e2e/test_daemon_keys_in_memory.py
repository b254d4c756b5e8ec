"""The cluster's keys lie in one locked block of a daemon's memory and nowhere else in it."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from zenjun.tools.lab import Lab

from .cluster import PATIENT, reported, status, together, wait_for

pytestmark = pytest.mark.lab
MEMBERS = (1, 2)


def found(pid: int, secret: bytes) -> dict[str, set[str]]:
    """Where the memory of a process has these bytes, or their digits: for each mapping its flags (``VmFlags`` of smaps)."""
    out: dict[str, set[str]] = {}
    looked_for = [secret, secret.hex().encode(), secret.hex().upper().encode(), secret.hex().encode("utf-16-le")]
    text = Path(f"/proc/{pid}/smaps").read_text()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for low, high, rights, about in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) .*\n((?:[A-Z].*\n)*)", text, re.M):
            if rights[0] != "r" or "[v" in about:
                continue
            try:
                memory.seek(int(low, 16))
                data = memory.read(int(high, 16) - int(low, 16))
            except (OSError, ValueError, OverflowError):  # what the kernel shows nobody
                continue
            if any(each in data for each in looked_for):
                flags = re.search(r"^VmFlags: (.*)$", about, re.M)
                locked = re.search(r"^Locked: +(\d+) kB$", about, re.M)
                out[f"{low} {rights}"] = set(flags[1].split() if flags else ()) | (
                    {"locked"} if locked and int(locked[1]) else set()
                )
    return out


@pytest.mark.parametrize("size", [32, 16], ids=["sessions", "seal"])
def test_keys_are_in_one_locked_block_only(tmp_path: Path, size: int) -> None:
    first, second = secrets.token_bytes(size), secrets.token_bytes(size)
    files = {n: tmp_path / f"{n}.key" for n in MEMBERS}
    for path in files.values():
        path.write_text(first.hex() + "\n" + (second.hex() + " later\n" if size == 32 else ""))
        path.chmod(0o600)
    with Lab(len(MEMBERS), options=PATIENT) as lab, reported(lab):
        for n in MEMBERS:
            lab.stations[n].start_daemon({"station": {"key_file": str(files[n])}})
        together(lab, MEMBERS)
        one = lab.stations[1]
        assert one.daemon is not None
        pid = one.daemon.pid
        for secret in (first, second)[: 2 if size == 32 else 1]:
            places = found(pid, secret)
            assert len(places) == 1, places
            (flags,) = places.values()
            assert {"lo", "dd", "locked"} <= flags, f"locked, and in no dump: {flags}"
        if size == 32:
            sealed = status(one)["sessions"]["frames"]
            wait_for(lambda: status(one)["sessions"]["frames"] > sealed, "it seals frames")
            assert len(found(pid, first)) == 1


def test_of_a_process_that_reads_them_in_python_they_are_found_elsewhere(tmp_path: Path) -> None:
    """Broken variant: as daemons did before."""
    secret = secrets.token_bytes(32)
    path = tmp_path / "k"
    path.write_text(secret.hex() + "\n")
    path.chmod(0o600)
    script = (
        "import sys, pathlib; from zenjun.daemon import key; k = key.read(pathlib.Path(sys.argv[1])); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        assert any("lo" not in flags for flags in found(process.pid, secret).values())
        process.communicate(b"\n", timeout=60)
