"""``zenjun bench programs``: its table, its checks, and each kind of program."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from zenjun.daemon.client import Message
from zenjun.tools.bench.programs import KIND, ProgramsPlan, measure, render
from zenjun.tools.bench.pyload import BURST, CYCLE, NUMBER, RECEIVES, WHAT, Count, Credits, Wrong, blocking, bodies, check
from zenjun.tools.cli import cli

from ..client.fake_daemon import fake_daemon


def line(what: str, interface: str, rate: float, **more: Any) -> dict[str, Any]:
    head = {"bench": KIND, "system": "zenjun", "size": 64, "ok": True, "problems": []}
    return {**head, "what": what, "interface": interface, "messages_per_s": rate, "cpu_us": 1e6 / rate, "p50_us": None, **more}


ROWS = [line("own", "blocking", rate) for rate in (100_000.0, 200_000.0, 400_000.0)]
ROWS += [line("closed", "asyncio", 4_000.0, p50_us=240.0), line("own", "asyncio", 1.0, ok=False)]


def test_the_table_has_medians_of_what_succeeded() -> None:
    text = render(ROWS)
    assert "| blocking | asyncio |" in text and "uvloop" not in text
    assert "| 200,000 · 5 | – |" in text and "4,000 · 250, p50 240 µs" in text


def test_saved_lines_make_the_table(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    shown = CliRunner().invoke(cli, ["bench", "table", str(file)])
    assert shown.exit_code == 0 and "200,000 · 5" in shown.output


def test_the_command_refuses_what_it_does_not_know() -> None:
    for words, error in (
        (["--what", "own,x"], "must be one of"),
        (["--interfaces", "trio"], "must be one of"),
        (["--size", "7"], "range"),
    ):
        shown = CliRunner().invoke(cli, ["bench", "programs", *words])
        assert shown.exit_code == 2 and error in shown.output


def test_a_message_out_of_place_fails_the_run() -> None:
    def message(body: bytes) -> Message:
        return Message(body, "programs", 1, 1, (1, 1, 0), False)

    made = bodies(64)
    assert {len(body) for body in made} == {64}
    check(message(made[5]), CYCLE + 5)
    with pytest.raises(Wrong, match="message 6 of the group has the body of 5"):
        check(message(NUMBER.pack(5)), 6)


def test_only_the_window_counts() -> None:
    count = Count(0.0, time.monotonic_ns())
    count.total = 1000
    assert not count.is_over(), "it begins"
    assert not count.is_over(), "nothing has passed"
    count.total = 1001
    assert count.is_over()
    assert count.result()["messages_per_s"] > 0 and count.result()["p50_us"] is None


@pytest.mark.parametrize("what", [what for what in WHAT if what not in RECEIVES])
def test_a_program_that_sends(what: str, tmp_path: Path) -> None:
    """Against the daemon of the client library's tests."""
    with fake_daemon(tmp_path) as daemon:
        station = SimpleNamespace(directory=tmp_path, socket_path=daemon.daemon.path, spawn=subprocess.Popen)
        lab = cast("Any", SimpleNamespace(station=lambda number: station))
        row = measure(ProgramsPlan(seconds=0.2), lab, what, "asyncio")
    assert row["messages_per_s"] > 0 and row["cpu_us"] > 0 and (row["p50_us"] is None) == (what != "closed")


@pytest.mark.parametrize("what", RECEIVES)
def test_a_program_that_receives_gives_credits_for_what_it_has_got(what: str, tmp_path: Path) -> None:
    made = [Message(body, "programs", 1, 1, (1, 1, 0), False) for body in bodies(64)]
    fifo = tmp_path / "credits"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    def batches() -> Iterator[list[Message]]:
        for at in itertools.cycle(range(0, CYCLE, 512)):
            yield made[at : at + 512]

    found = batches()

    class Group:
        def recv_batch(self) -> list[Message]:
            return next(found)

        def __iter__(self) -> Iterator[Message]:
            return itertools.chain.from_iterable(found)

    count = Count(0.05, time.monotonic_ns())
    with contextlib.closing(Credits(str(fifo))) as credits:
        blocking(what, cast("Any", Group()), count, 64, credits)
    assert count.result()["messages_per_s"] > 0
    given = len(os.read(reader, 1 << 20))
    os.close(reader)
    assert 1 <= given == count.total // BURST or given == 1 << 16
