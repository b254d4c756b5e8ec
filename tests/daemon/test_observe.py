"""Log lines, their limit, and the service manager's notifications."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import socket
import uuid
from pathlib import Path

import pytest
from zenjun.daemon.companion import until_ended
from zenjun.daemon.observe import BURST, INTERVAL_NS, Journal, Notifier, PatientStream, set_level, set_up


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_text_line_has_everything_on_one_line() -> None:
    out = io.StringIO()
    set_up("text", "info", out).info("open", "instance 7\nis open", instance=7, who="a b", empty="")
    (line,) = lines(out)
    assert line.endswith('info open: instance 7 | is open instance=7 who="a b" empty=""')
    assert line[:4].isdigit() and line.split()[0].endswith("Z")


def test_json_line_is_an_object_and_fields_cannot_hide_the_event() -> None:
    out = io.StringIO()
    set_up("json", "info", out).warning("blocked", "waits\nfor 3", stations=[3], path=Path("/x"), time="never")
    (line,) = lines(out)
    body = json.loads(line)
    assert (body["event"], body["level"], body["stations"]) == ("blocked", "warning", [3]) and body["message"] == "waits\nfor 3"
    assert body["path"] == "/x" and body["time"] != "never"


def test_level_can_change_while_running() -> None:
    out = io.StringIO()
    journal = set_up("text", "warning", out)
    journal.info("a", "hidden")
    set_level("debug")
    journal.debug("b", "seen")
    assert [line.split()[2] for line in lines(out)] == ["b:"]


def test_repeated_events_are_counted_not_written_case_39() -> None:
    out = io.StringIO()
    journal = set_up("json", "info", out)
    for i in range(10_000):
        journal.event(logging.WARNING, "duplicate", f"frame {i}", now=i)
    journal.event(logging.WARNING, "other", "not limited by the first", now=5)
    assert len(lines(out)) == BURST + 1
    assert journal.holds_back
    journal.tell_held(INTERVAL_NS - 1)
    assert len(lines(out)) == BURST + 1, "not before the interval is over"
    journal.tell_held(INTERVAL_NS + 5)
    last = json.loads(lines(out)[-1])
    assert last["repeated"] == 10_000 - BURST and "9995 more" in last["message"] and "frame 9999" in last["message"]
    assert journal.held == 10_000 - BURST
    journal.event(logging.WARNING, "duplicate", "again", now=2 * INTERVAL_NS)
    assert json.loads(lines(out)[-1])["message"] == "again"
    assert not journal.holds_back, "a connection now and then is no reason to look every second"


def test_limit_is_per_key() -> None:
    out = io.StringIO()
    journal = set_up("text", "info", out)
    for key in ("1", "2"):
        for _ in range(2 * BURST):
            journal.event(logging.INFO, "drop", "x", now=0, key=key)
    assert len(lines(out)) == 2 * BURST
    journal.event(logging.INFO, "drop", "x", now=INTERVAL_NS, key="1")
    assert f"and {BURST} more" in lines(out)[-2], "the next line of the event tells what was held back"


def test_closed_stream_does_not_raise() -> None:
    out = io.StringIO()
    journal = set_up("text", "info", out)
    out.close()
    journal.info("a", "b")
    assert isinstance(journal, Journal)


def test_reader_that_does_not_read_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    stream = PatientStream(writer)
    line = "x" * 999 + "\n"
    for _ in range(1000):  # far more than a pipe holds
        stream.write(line)
    assert stream.lost > 500
    assert os.get_blocking(writer), "the pipe of others is left as it was"
    os.read(reader, 65536)
    stream.write("again\n")
    assert b"lines were lost: nobody was reading)\nagain\n" in os.read(reader, 65536)
    os.close(reader)
    stream.write("nobody at all\n")
    stream.close()
    os.close(writer)
    one, other = socket.socketpair()
    with one, other:
        stream = PatientStream(one.fileno())
        for _ in range(10_000):
            stream.write(line)
        assert stream.lost > 0
        stream.close()
        other.recv(10)


def receiver(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(path)
    sock.settimeout(60)
    return sock


@pytest.mark.parametrize("abstract", [False, True])
def test_notifications_arrive(tmp_path: Path, abstract: bool) -> None:
    name = f"zj-test-{uuid.uuid4().hex}"
    with receiver("\0" + name if abstract else str(tmp_path / "n")) as sock:
        notifier = Notifier({"NOTIFY_SOCKET": "@" + name if abstract else str(tmp_path / "n"), "WATCHDOG_USEC": "2000000"}, 1)
        assert notifier.watchdog_ns == 2_000_000_000
        assert notifier.ready("waiting for\ninterface eth0")
        assert sock.recv(4096).decode().split("\n") == [
            "READY=1",
            "STATUS=waiting for | interface eth0",
            f"MAINPID={os.getpid()}",
        ]
        assert notifier.watchdog() and sock.recv(4096) == b"WATCHDOG=1"
        assert notifier.stopping() and sock.recv(4096).startswith(b"STOPPING=1")
        notifier.close()
        notifier.close()
        assert not notifier.status("late")


def test_blocked_absent_or_odd_notify_socket_is_harmless_case_91(tmp_path: Path) -> None:
    assert not Notifier({}, 1).ready("x")
    assert not Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}, 1).ready("x")
    assert not Notifier({"NOTIFY_SOCKET": "vsock:2:1234"}, 1).ready("x")
    assert not Notifier({"NOTIFY_SOCKET": "/" + "x" * 500}, 1).ready("x")
    with receiver(str(tmp_path / "full")):  # never read: the queue fills up and must not block us
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "full")}, 1)
        for _ in range(10_000):
            notifier.status("x" * 500)
        assert notifier.lost > 0
        notifier.close()


def test_watchdog_of_another_process_is_not_ours() -> None:
    assert Notifier({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "2"}, 1).watchdog_ns == 0
    assert Notifier({"WATCHDOG_USEC": "soon"}, 1).watchdog_ns == 0


def test_a_program_beside_zenjund_tells_the_watchdog_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    said: list[bytes] = []

    async def play(sock: socket.socket) -> int:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        async def listen() -> None:
            while said.count(b"WATCHDOG=1") < 3:
                said.append(await loop.sock_recv(sock, 4096))
            stop.set()

        async def close() -> None: ...

        listening = asyncio.create_task(listen())
        code = await until_ended(asyncio.sleep(3600), stop, close, Journal(logging.getLogger("test")), ValueError)
        await listening
        return code

    with receiver(str(tmp_path / "n")) as sock:
        sock.setblocking(False)
        assert asyncio.run(asyncio.wait_for(play(sock), 60)) == 0
    assert said[0].startswith(b"READY=1")
