"""The User-Mode Linux kernel, which has sch_netem; whatever a test starts must be gone afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.tools.lab import LabError, LabUnsupported, uml

from ..conftest import NO_UML
from ..lab.support import wait_for

BOOT_S = 240.0


@pytest.fixture(scope="session")
def kernel() -> Path:
    """The kernel; only a machine on which the package is not installed, or on which it does not even start, may do without."""
    try:
        found = uml.find()
        uml.run(["true"], deadline_s=BOOT_S, say=lambda _: None)
    except LabUnsupported as error:
        pytest.skip(f"{NO_UML}: {error}")
    except LabError as error:
        pytest.skip(f"{NO_UML}: it does not start: {error}")
    return found


@pytest.fixture
def place(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which all files of runs are, with a short path; no file and no process may be left."""
    folder = Path(tempfile.mkdtemp(prefix="zu", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))  # for programs that the test starts
    yield folder
    wait_for(lambda: not processes(folder), "no process of a kernel is left")
    left = list(folder.iterdir())
    shutil.rmtree(folder)
    assert not left


def processes(folder: Path) -> list[int]:
    """Processes of kernels whose files are in this folder; those of the programs inside count, they are forks of the kernel."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"init={folder}/".encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
