"""Fixtures for tests of the lab: everything runs in namespaces that the test makes, files in a short temporary folder."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from zenjun.tools.lab import Lab, LabUnsupported

from .support import MARK, marked_processes, wait_for


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A word in the environment of every process that the test starts; none of them may outlive the test."""
    word = uuid.uuid4().hex
    monkeypatch.setenv(MARK, word)
    yield word
    wait_for(lambda: not marked_processes(word), "no process of the test is left")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, mark: str) -> Iterator[Path]:
    """An empty folder for labs with a path short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="zl", dir="/tmp"))
    monkeypatch.setenv("ZENJUN_LAB_HOME", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def make_lab(home: Path) -> Iterator[Callable[..., Lab]]:
    """Makes labs that are up; they go down after the test. Skips where the machine cannot make any."""
    labs: list[Lab] = []

    def make(stations: int, **options: object) -> Lab:
        lab = Lab(stations, **options)  # type: ignore[arg-type]
        try:
            lab.up()
        except LabUnsupported as error:
            if "cannot be made here" in str(error):
                pytest.skip(str(error))
            raise
        labs.append(lab)
        return lab

    yield make
    for lab in labs:
        lab.down(grace_s=0.5)
