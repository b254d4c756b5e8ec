"""Mode unanimous in the driver: a transaction begins on a snapshot that its station shows."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from zenjun.daemon.database.branch import Branch
from zenjun.daemon.database.copy import GatedRows
from zenjun.daemon.database.driver.connection import Connection
from zenjun.daemon.database.driver.gate import begin_open
from zenjun.daemon.database.driver.service import Lost, Service
from zenjun.daemon.database.errors import NoQuorum, OperationalError
from zenjun.daemon.database.files import Files
from zenjun.daemon.database.life import LIFE_S, Life, age_s, is_alive, sign_of

from ..rules import rule


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Of signs of life: a test that waits for its processor is no process that has been stopped."""
    made = SimpleNamespace(ns=10**12)
    monkeypatch.setattr("zenjun.daemon.database.life.time", SimpleNamespace(monotonic_ns=lambda: made.ns))
    return made


class Program:
    """What ``begin_open`` needs of a connection, on a real file. The process answers ``readable`` by what ``answers`` has next:
    it opens the copy (True), or is lost (False)."""

    def __init__(self, folder: Path, answers: list[bool], timeout: float = 60.0) -> None:
        self.files = Files(folder, "shop")
        self.files.folder.mkdir(parents=True)
        self.rows = GatedRows(self.files, bytes(16), self.files.open())
        self.rows.create(bytes(16))
        self.timeout, self.answers = timeout, answers
        self._path = self.files.link
        self.life = Life(folder)
        self.life.beat()
        self.asked: list[str] = []
        self._service: Program | None = self
        self.ended = False
        self._branch: Branch | None = None

    def has_ended(self) -> bool:
        return self.ended

    def _open(self) -> Branch:
        if not self.files.link.exists():
            raise OperationalError("no link")
        self._branch = self._branch or Branch(self.files.link.resolve())
        return self._branch

    def _ask(self, do: str, **_: Any) -> dict[str, Any]:
        self.asked.append(do)
        if do == "readable":
            if not self.answers.pop(0):
                raise Lost("the process has gone")
            self.ended = False
            self.life.beat()
            self.rows.gate(is_open=True)
        return {}

    def begin(self) -> Branch:
        return begin_open(cast(Connection, self))

    def close(self) -> None:
        if self._branch is not None:
            self._branch.close()
        self.rows.close()


@contextlib.contextmanager
def program(folder: Path, *answers: bool, timeout: float = 60.0) -> Iterator[Program]:
    made = Program(folder, list(answers), timeout)
    try:
        yield made
    finally:
        made.close()


def test_an_open_copy_is_read_without_asking(tmp_path: Path) -> None:
    with program(tmp_path) as p:
        p.rows.gate(is_open=True)
        assert p.begin().begun is not None and p.asked == []


@rule("N2")
def test_a_copy_that_shows_nothing_is_waited_for(tmp_path: Path) -> None:
    """Also one that has never been open. The process is told when the snapshot is taken."""
    with program(tmp_path, True, True) as p:
        p.begin().end()
        assert p.asked == ["readable", "began"]
        p.rows.gate(is_open=False)
        p.begin().end()
        assert p.asked == ["readable", "began"] * 2


@rule("N2")
def test_without_the_process_nothing_is_read(tmp_path: Path) -> None:
    """A copy is left open when its process is killed: the driver asks the next one."""
    with program(tmp_path, False, True) as p:
        p.rows.gate(is_open=True)
        p.ended = True
        p.begin().end()
        assert p.asked == ["readable", "readable", "began"]
    with program(tmp_path / "two", *[False] * 100, timeout=0.0) as p:
        p.ended = True
        with pytest.raises(NoQuorum, match="not known whether"):
            p.begin()


@rule("N2")
def test_a_copy_whose_link_is_away_is_not_read(tmp_path: Path) -> None:
    with program(tmp_path, *[False] * 100, timeout=0.0) as p:
        p.rows.gate(is_open=True)
        p.files.shut()
        with pytest.raises(NoQuorum):
            p.begin()


def test_the_end_of_a_connection_is_seen_without_waiting() -> None:
    service = object.__new__(Service)
    ours, theirs = socket.socketpair()
    service._socket = ours
    try:
        assert not service.has_ended()
        theirs.close()
        assert service.has_ended()
        ours.close()
        assert service.has_ended()
    finally:
        ours.close()
        theirs.close()


@rule("N7")
def test_a_process_that_is_stopped_shows_nothing(tmp_path: Path, clock: SimpleNamespace) -> None:
    """Its copy was open when it was stopped, and stays so: programs look whether it lives."""
    with program(tmp_path, True, True) as p:
        p.rows.gate(is_open=True)
        p.begin().end()
        assert p.asked == []
        clock.ns += int(1.1e9 * LIFE_S)
        assert not is_alive(tmp_path)
        p.begin().end()
        assert p.asked[:1] == ["readable"], "it is asked, and has given a sign since"


def test_no_sign_of_life(tmp_path: Path) -> None:
    assert age_s(tmp_path) > LIFE_S and not is_alive(tmp_path)
    sign_of(tmp_path).write_bytes(b"cut")
    assert not is_alive(tmp_path)
    Life(tmp_path)
    assert not is_alive(tmp_path), "none has been given"
