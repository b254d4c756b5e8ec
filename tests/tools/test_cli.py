"""The commands as people run them: real processes with pipes, against a daemon of the tests."""

from __future__ import annotations

import base64
import importlib
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from typing import IO, Any

import click
import pytest
from rich.console import Console
from zenjun.daemon.client import connect_sync
from zenjun.proto.peerstate import PeerState
from zenjun.tools.cli import COMMANDS, cli, common, run
from zenjun.tools.cli.common import EXIT_CODES, size_of
from zenjun.tools.cli.events import describe
from zenjun.tools.cli.lazy import Entry, LazyGroup
from zenjun.tools.cli.status import PEER_STATES, render
from zenjun.tools.lab import Lab, LabError

from ..client.fake_daemon import MESSAGE_MAX, FakeThread, fake_daemon
from ..timing import in_time

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-c", "from zenjun.tools.cli import main; main()"]
WAIT_S = 120


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeThread]:
    with fake_daemon(tmp_path) as fake:
        monkeypatch.setenv("ZENJUN_SOCKET", str(fake.daemon.path))
        yield fake


def zenjun(*args: str, stdin: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run([*PROGRAM, *args], input=stdin, capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode == code, (done.returncode, done.stderr.decode())
    assert b"Traceback" not in done.stderr
    return done


def start(*args: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PROGRAM, *args],
        bufsize=0,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        in_time(time.monotonic() < deadline, what)
        time.sleep(0.005)


def joined(fake: FakeThread, group: str, count: int = 1) -> None:
    until(lambda: len(fake.daemon.groups.get(group, [])) >= count, f"{count} members of {group}")


def nobody(fake: FakeThread) -> None:
    """The daemon has seen that all programs of before have gone: the next member of a group is the next program."""
    until(lambda: not fake.daemon.clients and not any(fake.daemon.groups.values()), "nobody is connected")


def read_line(stream: IO[bytes]) -> bytes:
    ready, _, _ = select.select([stream], [], [], WAIT_S)
    in_time(bool(ready), "no line")
    return stream.readline()


def payloads(fake: FakeThread) -> list[bytes]:
    return [body for kind, _, _, body in fake.daemon.received if kind == 4]


# ---- send


def asks(frame: tuple[int, int, int, bytes], kind: int) -> bool:
    """Whether the frame is a REQUEST of this kind."""
    return frame[0] == 9 and struct.unpack_from("<IH", frame[3])[1] == kind


def test_send_arguments(fake: FakeThread) -> None:
    done = zenjun("send", "-g", "g", "-l", "ack", "hello", "größer")
    assert (done.stdout, done.stderr) == (b"", b"")
    assert payloads(fake) == [b"hello", "größer".encode()]
    assert fake.daemon.received[-1][0] == 6, "says BYE"


def test_send_counts_and_repeats(fake: FakeThread) -> None:
    zenjun("send", "a", "b", "-n", "5")
    zenjun("send", "c", "--repeat", "3")
    zenjun("send", "d", "e", "--repeat", "2", "-n", "3")
    assert b"".join(payloads(fake)) == b"ababa" + b"ccc" + b"ded"


def test_send_many_is_fast_enough_to_be_piped(fake: FakeThread) -> None:
    zenjun("send", "x", "-n", "20000")
    assert len(payloads(fake)) == 20000


def test_send_lines(fake: FakeThread) -> None:
    zenjun("send", stdin=b"one\ntwo\r\n\nlast without end")
    zenjun("send", "-n", "1", "-", stdin=b"first\nsecond\n")
    zenjun("send", stdin=b"")
    assert payloads(fake) == [b"one", b"two", b"", b"last without end", b"first"]


def test_a_line_is_sent_when_it_is_typed(fake: FakeThread) -> None:
    p = start("send", stdin=subprocess.PIPE)
    assert p.stdin is not None
    for line in (b"1", b"2"):
        p.stdin.write(line + b"\n")
        p.stdin.flush()
        until(partial(lambda wanted: payloads(fake)[-1:] == [wanted], line), "line")
    p.communicate(timeout=WAIT_S)
    assert p.returncode == 0


def test_send_binary_and_files(fake: FakeThread, tmp_path: Path) -> None:
    blob = os.urandom(200_000)
    file = tmp_path / "f"
    file.write_bytes(blob)
    zenjun("send", "-b", stdin=blob)
    zenjun("send", "-b", "--chunk", "64k", stdin=blob)
    zenjun("send", "-f", str(file), "-f", str(file))
    zenjun("send", "-f", str(file), "--chunk", "150000B")
    zenjun("send", "-b", stdin=b"")
    got = payloads(fake)
    assert [len(p) for p in got] == [200_000, 65536, 65536, 65536, 3392, 200_000, 200_000, 150_000, 50_000, 0]
    assert got[0] == b"".join(got[1:5]) == got[5] == got[7] + got[8] == blob


def test_send_too_large_says_the_limit(fake: FakeThread) -> None:
    done = zenjun("send", "-b", stdin=bytes(MESSAGE_MAX + 5), code=1)
    assert f"larger than the limit of {MESSAGE_MAX} bytes".encode() in done.stderr and payloads(fake) == []


def test_send_rate(fake: FakeThread) -> None:
    begin = time.monotonic()
    zenjun("send", "x", "-n", "11", "-r", "50")
    assert time.monotonic() - begin >= 0.2 and len(payloads(fake)) == 11


def test_send_only_to_a_closed_group(fake: FakeThread) -> None:
    done = zenjun("send", "--send-only", "-g", "closed", "x", code=1)
    assert done.stderr == b"zenjun: because of closed-group\n"


def test_usage_errors(fake: FakeThread) -> None:
    for args in (
        ["send", "x", "-b"], ["send", "--chunk", "3", "x"], ["send", "--repeat", "2"], ["send", "-l", "best", "x"],
        ["send", "-n", "0", "x"], ["send", "-b", "--chunk", "1q"], ["send", "-b", "--chunk", "0"], ["recv", "-F", "xml"], ["snd"],
        ["completion", "tcsh"], ["send", "-f", "/does/not/exist"], ["config", "chekc"],
    ):  # fmt: skip
        assert b"Error: " in zenjun(*args, code=2).stderr
    assert b"did you mean 'send'" in zenjun("snd", code=2).stderr
    assert b"'abc' is not a valid integer." in zenjun("recv", "-n", "abc", code=2).stderr
    assert b"'abc' is not a valid number." in zenjun("recv", "-t", "abc", code=2).stderr


def test_a_key_is_added_only_where_one_is_in_use(fake: FakeThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon without a key would find one at its next start, which the other stations may not have."""
    new = zenjun("key", "new").stdout
    monkeypatch.setenv("ZENJUN_CONFIG", str(tmp_path / "zenjund.toml"))
    assert b"--config FILE names another" in zenjun("key", "add", "-", stdin=new, code=1).stderr
    (tmp_path / "zenjund.toml").write_text(zenjun("config", "example").stdout.decode())
    assert b"runs without a key" in zenjun("key", "add", "-", stdin=new, code=1).stderr
    assert not (tmp_path / "zenjund.key").exists()
    monkeypatch.setenv("ZENJUN_SOCKET", str(tmp_path / "nobody.sock"))
    assert b"no daemon runs here" in zenjun("key", "add", "-", stdin=new).stderr
    assert (tmp_path / "zenjund.key").read_bytes() == new


def test_sizes() -> None:
    assert [size_of(t) for t in ("1300", "64k", "16M", "1MiB", "2 kB", "1g")] == [1300, 65536, 1 << 24, 1 << 20, 2048, 1 << 30]


# ---- recv


def test_recv_formats(fake: FakeThread) -> None:
    readers = {
        form: start("recv", "-g", "g", "-F", form, "-n", "2", *more)
        for form, more in (("text", ["-v"]), ("hex", []), ("json", []), ("raw", []))
    }
    joined(fake, "g", 4)
    zenjun("send", "-g", "g", "-b", stdin=b"\xff\x00")
    zenjun("send", "-g", "g", "zwölf")
    out = {}
    for form, p in readers.items():
        out[form], err = p.communicate(timeout=WAIT_S)
        assert p.returncode == 0 and err == b""
    assert re.fullmatch(r"1/\d+ @\d+\.1\.5  �\\x00\n1/\d+ @\d+\.1\.5  zwölf\n", out["text"].decode())
    assert out["hex"].split() == [b"ff00", "zwölf".encode().hex().encode()]
    assert out["raw"] == b"\xff\x00" + "zwölf".encode()
    first, second = map(json.loads, out["json"].splitlines())
    assert base64.b64decode(first["base64"]) == b"\xff\x00" and "text" not in first
    assert second["text"] == "zwölf" and second["type"] == "message" and second["size"] == 6 and second["own"] is False
    assert (first["clock"], first["station"], first["index"]) < (second["clock"], second["station"], second["index"])


def test_recv_views_and_events(fake: FakeThread) -> None:
    text, objects = start("recv", "--views"), start("recv", "--views", "-F", "json")
    joined(fake, "default", 2)
    zenjun("send", "x")
    fake.call(lambda: fake.daemon.event(event="blocked", stations=[{"station": 3, "reason": "silent"}]))
    assert text.stdout and objects.stdout
    lines: list[bytes] = []
    while b"waits" not in (lines or [b""])[-1]:
        lines.append(read_line(text.stdout))
    joins = [line for line in lines if line.startswith(b"* join: +1/")]
    assert b"zenjun recv" in joins[0] and b"zenjun send" in joins[-1]
    assert any(line.startswith(b"* leave: -1/") for line in lines)
    assert lines.index(b"x\n") > lines.index(joins[-1]) and lines[-1] == b"* the cluster waits for station 3 (silent)\n"
    kinds: list[str] = []
    while kinds[-1:] != ["event"]:
        kinds.append(json.loads(read_line(objects.stdout))["type"])
    assert kinds[:1] == ["view"] and "message" in kinds
    for p in (text, objects):
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=WAIT_S)
        assert p.returncode == 130 and err == b"", "Ctrl-C ends without a traceback"


def test_recv_timeouts(fake: FakeThread) -> None:
    done = zenjun("recv", "-t", "4", code=4)  # connecting and joining have no longer, either
    assert b"waiting for a message of group 'default'" in done.stderr
    with connect_sync(str(fake.daemon.path)) as c:  # a command would take its time to start, and recv's is running
        sender = c.join("default", send_only=True)
        p = start("recv", "-t", "5")
        joined(fake, "default")
        sender.send(b"x")
        assert p.communicate(timeout=WAIT_S)[0] == b"x\n" and p.returncode == 0
        until(lambda: not fake.daemon.groups["default"], "the first reader has left")
        p = start("recv", "-t", "5", "-n", "2")  # the first comes sooner, however late this one starts
        joined(fake, "default")
        sender.send(b"x")
        out, err = p.communicate(timeout=WAIT_S)
    assert out == b"x\n" and p.returncode == 4 and b"(got 1 of 2)" in err


def test_recv_slow_receiver_and_closing(fake: FakeThread) -> None:
    p = start("recv")
    joined(fake, "default")
    fake.call(lambda: fake.daemon.error(next(iter(fake.daemon.clients.values())), "slow-receiver", fatal=True))
    _, err = p.communicate(timeout=WAIT_S)
    assert p.returncode == 5 and err == b"zenjun: because of slow-receiver\n"
    nobody(fake)
    p = start("recv")
    joined(fake, "default")
    fake.call(fake.daemon.go_away)
    _, err = p.communicate(timeout=WAIT_S)
    assert p.returncode == 5 and err == b"zenjun: the daemon is stopping\nzenjun: the daemon is stopping\n"


def test_sigpipe_is_quiet(fake: FakeThread) -> None:
    p = start("recv")
    joined(fake, "default")
    assert p.stdout and p.stderr
    p.stdout.close()
    with connect_sync(str(fake.daemon.path)) as c:
        g = c.join("default", receive=False)

        def gone() -> bool:
            g.send(b"x")
            return p.poll() is not None

        until(gone, "end of recv")
    assert p.returncode == 141 and p.stderr.read() == b""
    p.stderr.close()


# ---- status, members


def test_status_for_people_and_as_json(fake: FakeThread) -> None:
    status = json.loads((ROOT / "tests" / "status_example.json").read_text())
    fake.daemon.status = status
    assert json.loads(zenjun("status", "--json").stdout) == status
    text = zenjun("status", "--matrix").stdout.decode()
    for part in (
        "open", "waits for station 3: silent for 1.5 s", "station 2 waits for station 3: told for 1.2 s",
        "1500 (interface)", "1372 (station 2)", "dropped: checksum", "node-b",
        "41 PDUs into instance 4294", "retransmissions sent",
        "02:00:00:00:00:02", "zenjun recv", "What each station next expects",
    ):  # fmt: skip
        assert part in text, part
    assert "\x1b" not in text, "no colours in a pipe"


def names(title: str) -> set[str]:
    """Members that docs/status.md lists under a title."""
    section = (ROOT / "docs" / "status.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.M))


def test_status_example_is_the_document() -> None:
    """The example has exactly the members of docs/status.md."""
    status = json.loads((ROOT / "tests" / "status_example.json").read_text())
    assert set(status) == names("Top level")
    assert set(status["interface"]) == names("`interface`")
    assert all(set(link) >= names("`links[]`") for link in status["links"])
    assert set(status["membership"]) == names("`membership`")
    assert list(PEER_STATES) == [state.name for state in PeerState]
    assert set(status["peers"][0]) == names("`peers[]`")
    assert set(status["clients"][0]) == names("`clients[]`")


def shown(status: dict[str, Any], width: int) -> str:
    out = StringIO()
    render(status, Console(file=out, width=width))
    return out.getvalue()


def test_status_shows_the_table_of_peer_states_members_quorum_and_who_waits() -> None:
    status = json.loads((ROOT / "tests" / "status_example.json").read_text())
    lines = [line.rstrip() for line in shown(status, 80).splitlines()]
    at = lines.index("States of the stations, as each sees them")
    assert lines[at + 1 : at + 6] == [
        "  by  1  2  3",
        "   1  A  A  AS",
        "   2  A  A  SA",
        "   3  -  -  -",
        "  AS its stop is being agreed · SA its recovery is being agreed · - not known",
    ]
    assert "  members    1 node-a (incarnation 77) · 2 node-b (incarnation 78)" in lines
    assert "  quorum     3 of 3 are members · 2 needed · required: 1 · reached" in lines
    assert "  membership 4 changes · last 65.0 s ago · instance 4295 is being agreed" in lines
    status["membership"] |= {"proposed": 0, "changes": 0, "last_change_ms": None}
    status |= {"members": [], "quorum": {"needed": 2, "required": [], "have": False}}
    text = shown(status, 80)
    assert "none: in no instance" in text and "2 needed · not reached" in text and "membership no change yet" in text


def test_what_is_waited_for_is_named_once() -> None:
    """A station whose removal is under way may also be among those that delivery waits for."""
    status = json.loads((ROOT / "tests" / "status_example.json").read_text())
    status["blocked"] = [{"station": k, "reason": "silent", "since_ms": 9000} for k in (2, 3)]
    waits = [line for line in shown(status, 80).splitlines() if "waits for" in line]
    assert waits == [
        "  waits for station 2: silent for 9.0 s",
        "  waits for station 3: silent for 1.5 s",
        "  station 2 waits for station 3: told for 1.2 s",
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_status_fits_a_narrow_terminal(width: int) -> None:
    status = json.loads((ROOT / "tests" / "status_example.json").read_text())
    numbers = range(1, 17)
    status["membership"]["letters"] = {str(k): {str(j): "AAS" if j == 9 else "A" for j in numbers} for k in numbers}
    text = shown(status, width)
    at = text.index("States of the stations")
    table = text[at : text.index("AAS others report its stop")].splitlines()[1:]
    assert all(len(line) <= width for line in table)
    # every cell is there, whatever blocks the columns are in
    heads = [int(n) for line in table if line.split()[:1] == ["by"] for n in line.split()[1:]]
    assert heads == list(numbers)
    rows = [line.split() for line in table if line.split()[:1] not in ([], ["by"])]
    assert sum(len(row) - 1 for row in rows) == 16 * 16 and sum(row[1:].count("AAS") for row in rows) == 16
    # what a table shows of the stations is never less than number, state, age and host
    assert re.search(r"station +state +heard +host", text) and re.search(r"3 +silent +1.5 s +-", text)


def test_status_has_a_line_for_each_of_several_links() -> None:
    rows = [
        {"link": 1, "name": "eth0", "state": "up", "data": "auto", "stations": [{"station": 2, "state": "up"}]},
        {
            "link": 2,
            "name": "eth1",
            "state": "up",
            "data": "none",
            "doubtful": True,
            "stations": [{"station": 2, "state": "one-way"}],
        },
    ]
    text = shown({"cluster": "c", "state": "open", "links": rows}, 120)
    assert re.search("link 1 +eth0 up · up to all stations · data: auto", text), text
    assert re.search("link 2 +eth1 up · station 2 one-way · data: none · doubtful", text), text
    assert "link 1" not in shown({"cluster": "c", "state": "open", "links": rows[:1]}, 120)


def test_status_of_another_version_is_shown_as_far_as_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    for odd in (
        {"membership": {"letters": {"1": None, "x": {}}, "waiting": [{}, 3]}, "members": [1, []], "quorum": {}},
        {},
        {"peers": [{}], "clients": [{}], "groups": [{}], "matrix": [[1]], "interface": None, "blocked": [{}]},
    ):
        out = StringIO()
        render(odd, Console(file=out, width=200), matrix=True)
        assert "Stations" in out.getvalue()
    out = StringIO()
    render({"cluster": "[red]x[/red]", "state": "[bold]"}, Console(file=out, width=200))
    assert "[red]x[/red]" in out.getvalue(), "names are text, not markup"


def test_tokens(fake: FakeThread) -> None:
    assert zenjun("members", "tokens", "--tokens").stdout == b"1\tsuper token\n2\tfollows 3\n3\ttoken\n"
    found = json.loads(zenjun("members", "tokens", "--tokens", "--json").stdout)
    assert found == {"hosts": [1, 3], "super": 1, "follows": [[1, 1], [2, 3], [3, 3]]}
    other = zenjun("members", "g", "--tokens")
    assert not other.stdout and b"no program is in a group g of order token" in other.stderr
    assert b"--tokens needs GROUP" in zenjun("members", "--tokens", code=2).stderr


def test_members(fake: FakeThread) -> None:
    assert zenjun("members").stdout == b"1\thost1\tA\n2\thost2\tA\n3\thost3\tA\n"
    assert [m[0] for m in json.loads(zenjun("members", "--json").stdout)] == [1, 2, 3]
    with connect_sync(str(fake.daemon.path), name="prog") as c:
        c.join("g")
        number = c.welcome.client
        assert zenjun("members", "g").stdout == f"1\t{number}\tprog\n".encode()
        assert json.loads(zenjun("members", "g", "--json").stdout) == [[1, number, "prog"]]
        p = start("members", "g", "--watch", "--interval", "0.05")
        assert p.stdout
        assert read_line(p.stdout) == f"1\t{number}\tprog\n".encode()
    assert read_line(p.stdout) == f"-\t1\t{number}\tprog\n".encode()
    p.send_signal(signal.SIGINT)
    assert p.communicate(timeout=WAIT_S) == (b"", b"") and p.returncode == 130


OPEN = {
    "version": "0", "station": 1, "state": "open", "instance": 7, "members": [[1, 11], [2, 12], [3, 13]],
}  # fmt: skip
VIEW = {
    "event": "view", "instance": 8, "members": [[1, 11, "node-1"], [2, 12, "node-2"]], "joined": [], "left": [3], "clock": 9,
    "station": 2, "index": 65535,
}  # fmt: skip


def connected(fake: FakeThread, count: int = 1) -> None:
    """So many clients have been welcomed and have had an answer to STATUS."""
    until(lambda: sum(asks(f, 1) for f in fake.daemon.received) >= count, f"{count} requests for the status")


def test_members_watch_prints_events_as_they_come(fake: FakeThread) -> None:
    fake.daemon.status = OPEN
    text, objects = start("members", "--watch"), start("members", "-w", "--json")
    assert text.stdout and objects.stdout
    clock = rb"\d\d:\d\d:\d\d\.\d\d\d  "
    assert re.fullmatch(clock + rb"now        instance 7: 1 host1, 2 host2, 3 host3\n", read_line(text.stdout))
    now = json.loads(read_line(objects.stdout))
    assert now.pop("time")[10] == "T" and now == {
        "event": "now", "instance": 7, "state": "open", "members": [[k, 10 + k, f"host{k}"] for k in (1, 2, 3)],
    }  # fmt: skip
    for event, words in (
        (VIEW, b"view       instance 8: 1 node-1, 2 node-2; left 3 host3"),
        (
            {"event": "blocked", "stations": [{"station": 2, "reason": "silent"}], "quorum": False},
            b"blocked    the cluster waits for station 2 (silent); there is no quorum, nothing is sent or delivered",
        ),
        (
            {"event": "expelled", "instance": 8, "reason": "agreed by others", "station": 2, "undecided": 0, "unsafe": True},
            b"expelled   the others continue without this station (agreed by others); what was delivered at level ordered only "
            b"may be unknown to the others",
        ),
        (
            {"event": "reopened", "instance": 9, "members": [1, 2, 3], "joined": True, "undecided": 2},
            b"reopened   this station has been admitted again, instance 9: 1 host1, 2 host2, 3 host3; 2 own messages are"
            b" undecided",
        ),
    ):
        fake.call(lambda event=event: fake.daemon.event(**event))  # type: ignore[misc]
        line = read_line(text.stdout)
        assert re.match(clock, line) and line[14:] == words + b"\n"
        got = json.loads(read_line(objects.stdout))
        assert got.pop("time") and got == event
    for p in (text, objects):
        p.send_signal(signal.SIGINT)
        assert p.communicate(timeout=WAIT_S) == (b"", b"") and p.returncode == 130


def test_members_watch_when_the_daemon_goes(fake: FakeThread, tmp_path: Path) -> None:
    fake.daemon.status = OPEN
    plain, retry = start("members", "--watch"), start("members", "--watch", "--retry")
    assert plain.stdout and retry.stdout
    # Who is in comes when they have asked for it: only then do both watch.
    first = [read_line(stream) for stream in (plain.stdout, retry.stdout)]
    fake.call(fake.daemon.go_away)
    out, err = plain.communicate(timeout=WAIT_S)
    assert plain.returncode == 5 and err == b"zenjun: the daemon is stopping\n"
    assert out.splitlines()[-1].endswith(b"closing    the daemon is stopping")
    lines = [read_line(retry.stdout)[14:] for _ in range(3)]
    again = b"now        instance 7: 1 host1, 2 host2, 3 host3\n"
    assert [line[14:] for line in first] == [again, again]
    assert lines == [
        b"closing    the daemon is stopping\n",
        b"lost       the daemon is stopping; waiting for the daemon\n",
        again,
    ]
    retry.send_signal(signal.SIGINT)
    assert retry.communicate(timeout=WAIT_S) == (b"", b"") and retry.returncode == 130
    done = zenjun("members", "--watch", "--retry", "-s", str(tmp_path / "none"), code=3)
    assert b"cannot reach the daemon" in done.stderr, "a daemon that was never there is an error of the call"
    assert b"--retry needs --watch" in zenjun("members", "--retry", code=2).stderr


def admin(fake: FakeThread) -> list[dict[str, Any]]:
    return [json.loads(f[3][8:]) for f in fake.daemon.received if asks(f, 3)]


def test_expel_waits_for_the_view_without_the_station(fake: FakeThread) -> None:
    p = start("expel", "3")
    until(lambda: admin(fake), "the command")
    fake.call(lambda: fake.daemon.event(**{**VIEW, "left": [2], "members": [[1, 11, "node-1"], [3, 13, "node-3"]]}))
    time.sleep(0.1)  # too little to be sure, enough to fail nearly always if the wrong view counted
    assert p.poll() is None, "another station's removal is not the one asked for"
    fake.call(lambda: fake.daemon.event(**VIEW))
    out, err = p.communicate(timeout=WAIT_S)
    assert (p.returncode, out) == (0, b"")
    assert err == b"station 3 is removed; instance 8: 1 node-1, 2 node-2; left 3\n"
    assert admin(fake) == [{"command": "expel", "station": 3}]


def test_expel_that_cannot_be(fake: FakeThread, monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"no station 4: cluster test has 1 to 3" in zenjun("expel", "4", code=3).stderr
    assert b"station 1 is this one: zenjun leave lets it go" in zenjun("expel", "1", code=2).stderr
    assert b"Error: " in zenjun("expel", "0", code=2).stderr and b"Error: " in zenjun("expel", code=2).stderr
    for wrong in (("expel", "65"), ("cluster", "add", "x"), ("cluster", "remove", "1.5")):
        assert b"is no station: expected a number from 1 to 64" in zenjun(*wrong, code=2).stderr
    absent = {2}
    reply = fake.daemon.reply

    def without(c: Any, number: int, body: Any, code: str = "") -> None:
        if "detail" in body:
            body = {**body, "detail": [{**d, "member": d["station"] not in absent} for d in body["detail"]]}
        reply(c, number, body, code)

    monkeypatch.setattr(fake.daemon, "reply", without)
    assert zenjun("expel", "2", code=1).stderr == b"zenjun expel: station 2 is not a member\n"
    absent |= {1, 3}
    assert b"station 2 is not a member: this station is in no instance" in zenjun("expel", "2", code=1).stderr
    assert admin(fake) == [], "nothing of this has reached the daemon"
    absent.clear()
    # The time counts from the start: what comes before the waiting must be done before it is over.
    assert b"station 2 is not agreed after 4 s" in zenjun("expel", "2", "-t", "4", code=4).stderr
    fake.daemon.operator = False
    for args in (["expel", "2"], ["leave"]):
        assert zenjun(*args, code=1).stderr == b"zenjun: because of not-permitted\n"


def test_leave_waits_until_the_daemon_has_gone(fake: FakeThread) -> None:
    p = start("leave")
    until(lambda: admin(fake), "the command")
    assert p.poll() is None
    fake.call(fake.daemon.go_away)
    assert p.communicate(timeout=WAIT_S) == (b"", b"station 1 of cluster test has left\n") and p.returncode == 0
    assert admin(fake) == [{"command": "leave"}]
    assert b"its daemon still runs after 4 s" in zenjun("leave", "-t", "4", code=4).stderr


@pytest.mark.parametrize(("answer", "asked", "code"), [(b"n\n", 0, 1), (b"y\n", 1, 0)])
def test_a_person_is_asked_first(fake: FakeThread, answer: bytes, asked: int, code: int) -> None:
    master, slave = pty.openpty()
    p = start("leave", stdin=slave)
    os.close(slave)
    assert p.stderr
    asked_for = b""
    while b"its daemon ends. Go on? [y/N]" not in asked_for:
        ready, _, _ = select.select([p.stderr], [], [], WAIT_S)
        more = os.read(p.stderr.fileno(), 4096) if ready else b""
        assert more, asked_for
        asked_for += more
    os.write(master, answer)
    if asked:
        until(lambda: admin(fake), "the command")
        fake.call(fake.daemon.hang_up)
    p.communicate(timeout=WAIT_S)
    os.close(master)
    assert p.returncode == code and len(admin(fake)) == asked


def test_events_of_another_version_are_described_as_far_as_it_goes() -> None:
    for odd in (
        {},
        {"event": "view"},
        {"event": "blocked", "stations": None},
        {"event": "reopened", "members": 3},
        {"event": "new"},
    ):
        assert describe(odd)
    assert describe({"event": "view", "instance": 1, "members": [[1, 5, "a\x1b[31m"]]}) == r"instance 1: 1 a\x1b[31m"


# ---- with real daemons


@pytest.fixture
def lab() -> Iterator[Lab]:
    try:
        # Silence is not what is tested here: on a busy machine nobody is to be taken for dead.
        lab = Lab(3, options={"cluster": {"fail_timeout_ms": 5000, "progress_timeout_ms": 10_000}})
        lab.up()
    except LabError as error:
        pytest.skip(str(error))
    try:
        lab.start_daemons()
        lab.wait_open(WAIT_S)
        yield lab
    finally:
        lab.down()


@pytest.mark.lab
def test_operators_and_watchers_of_real_daemons(lab: Lab) -> None:
    def at(station: int, *args: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
        return zenjun(*args, "--socket", str(lab.station(station).socket_path), code=code)

    def members_at(station: int) -> list[list[str]]:
        return [line.split("\t")[::2] for line in at(station, "members").stdout.decode().splitlines()]

    everyone = [["1", "A"], ["2", "A"], ["3", "A"]]
    until(lambda: members_at(1) == everyone, "everyone operational")
    status = json.loads(at(1, "status", "--json").stdout)
    assert set(status) == names("Top level") and set(status["membership"]) == names("`membership`")
    until(
        lambda: re.search(r"  by  1 2 3\n   1  A A A\n   2  A A A\n   3  A A A\n", at(1, "status").stdout.decode()), "the table"
    )

    watch = start("members", "--watch", "--json", "--socket", str(lab.station(1).socket_path))
    assert watch.stdout
    first = json.loads(read_line(watch.stdout))
    assert first["event"] == "now" and [m[0] for m in first["members"]] == [1, 2, 3]

    def view(key: str, stations: list[int]) -> dict[str, Any]:
        """The next view in which these stations have come or gone."""
        while True:
            event: dict[str, Any] = json.loads(read_line(watch.stdout))  # type: ignore[arg-type]
            if event["event"] == "view" and event[key] == stations:
                return event

    assert b"station 3 is removed; instance " in at(1, "expel", "3").stderr
    assert [m[0] for m in view("left", [3])["members"]] == [1, 2]
    assert [m[0] for m in view("joined", [3])["members"]] == [1, 2, 3], "its daemon runs, so it comes back"
    until(lambda: members_at(3) == everyone, "station 3 is back")

    assert at(2, "leave").stderr.decode().startswith("station 2 of cluster ")
    daemon = lab.station(2).daemon
    assert daemon is not None and daemon.wait(WAIT_S) == 0
    assert [m[0] for m in view("left", [2])["members"]] == [1, 3]
    assert b"station 2 is not a member" in at(1, "expel", "2", code=1).stderr
    assert b"quorum" in at(1, "expel", "3", code=1).stderr
    table = at(1, "status").stdout.decode()
    assert "2 of 3 are members · 2 needed · reached" in table and re.search(r"^   1  A S A$", table, re.M)
    lab.station(1).signal(signal.SIGKILL)
    _, err = watch.communicate(timeout=WAIT_S)
    assert watch.returncode == 5 and err.count(b"\n") == 1


# ---- errors


def test_not_reachable(tmp_path: Path) -> None:
    for args in (["send", "x"], ["recv"], ["status"], ["members"]):
        done = zenjun(*args, "-s", str(tmp_path / "none"), code=3)
        assert done.stderr.startswith(b"zenjun: cannot reach the daemon at ") and done.stderr.count(b"\n") == 1


def test_case_147_stopped_daemon(fake: FakeThread) -> None:
    fake.daemon.deaf = True
    for args in (["status", "-t", "0.2"], ["members", "-t", "0.2"], ["send", "x", "-t", "0.2"]):
        done = zenjun(*args, code=4)
        assert b"nothing after 0.2 s" in done.stderr


def test_interrupted_send(fake: FakeThread) -> None:
    p = start("send", "x", "--repeat", "0", "-r", "20")
    until(lambda: len(payloads(fake)) > 2, "messages")
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=WAIT_S)
    assert (p.returncode, out, err) == (130, b"", b"")


# ---- config, completion, help


def test_config_commands(tmp_path: Path) -> None:
    example = zenjun("config", "example").stdout
    file = tmp_path / "z.toml"
    file.write_bytes(example)
    assert b"good. Cluster demo, station 1 of 3 on eth0; fingerprint " in zenjun("config", "check", str(file)).stdout
    shown = json.loads(zenjun("config", "check", "--json", str(file)).stdout)
    assert shown["cluster"]["stations"] == 3 and shown["window"] == 111
    file.write_text("[cluster]\nname = 'x'\nstations = 99\n")
    done = zenjun("config", "check", str(file), code=1)
    assert f"{file}:3: cluster.stations is 99: expected an integer 1..64\n".encode() in done.stderr and done.stdout == b""


def test_completion(fake: FakeThread) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = zenjun("completion", shell).stdout
        assert b"_ZENJUN_COMPLETE" in script
    subprocess.run(["bash", "-n"], input=zenjun("completion", "bash").stdout, check=True, timeout=WAIT_S)
    fake.daemon.status = {"groups": [{"name": "chat"}, {"name": "other"}]}
    for words, wanted in (
        ("zenjun se", "send"),
        ("zenjun send --le", "--level"),
        ("zenjun recv -g c", "chat"),
        ("zenjun members ", "other"),
    ):
        env = {**os.environ, "COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_ZENJUN_COMPLETE": "bash_complete"}
        done = subprocess.run(PROGRAM, env=env, capture_output=True, timeout=WAIT_S, check=True)
        assert wanted in done.stdout.decode(), (words, done.stdout)


def commands(
    group: click.Group, ctx: click.Context, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, ctx, (*path, name))


def test_help_shows_examples_and_explains_every_option() -> None:
    ctx = click.Context(cli)
    ours = {"send", "recv", "status", "members", "leave", "expel", "config", "completion", "version"}
    for path, command in commands(cli, ctx):
        if path[0] in ours:
            text = command.get_help(click.Context(command, info_name=" ".join(path)))
            assert "Example" in text and "zenjun " in text, path
            assert all(p.help for p in command.params if isinstance(p, click.Option)), path
    assert "Examples:" in cli.get_help(ctx)


def test_every_command_loads_and_is_documented() -> None:
    document = (ROOT / "docs" / "cli.md").read_text()
    ctx = click.Context(cli)
    for name in COMMANDS:
        assert cli.get_command(ctx, name) is not None
        assert f"`zenjun {name}`" in document
    for code, text in EXIT_CODES.items():
        assert f"| {code} | {text} |" in document


def test_missing_dependency_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "zenjun.tools.cli.sniff", None)
    monkeypatch.setitem(COMMANDS, "sniff", Entry("sniff", "sniff", "x", "scapy>=2.5,<3"))
    assert run(["sniff"]) == 1
    assert "zenjun sniff" in capsys.readouterr().err
    assert isinstance(cli, LazyGroup)
    monkeypatch.setattr(importlib, "import_module", lambda *_: raises(ModuleNotFoundError("no", name="scapy")))
    monkeypatch.setattr(shutil, "which", lambda _: "/somewhere/else/pip")
    assert run(["sniff"]) == 6
    assert f"zenjun sniff: needs scapy: {sys.executable} -m pip install 'scapy>=2.5,<3'" in capsys.readouterr().err
    beside = Path(sys.executable).parent / "pip"
    monkeypatch.setattr(shutil, "which", lambda _: str(beside))
    assert run(["sniff"]) == 6
    assert "zenjun sniff: needs scapy: pip install 'scapy>=2.5,<3'" in capsys.readouterr().err
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(common, "find_spec", lambda _: None)  # as in the Debian package
    assert run(["sniff"]) == 6
    assert "has no pip; scapy>=2.5,<3 is for one made by pip" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    ["check x", "ingest x --out y", "report x --out y", "compare x x", "clocks x", "show --align x"],
)
def test_without_the_extra_help_is_there_and_the_work_is_refused(command: str, tmp_path: Path) -> None:
    """In a Python whose packages are not there: one line that can be followed, exit code 6."""
    (tmp_path / "x").write_bytes(bytes.fromhex("d4c3b2a1020004000000000000000000ffff000001000000"))
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['numpy', 'pyarrow', 'pyspark'])); "
        "from zenjun.tools.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    line = [sys.executable, "-c", program, "pcap", *command.split()]
    done = subprocess.run([*line, "--help"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0 and "Usage: zenjun pcap" in done.stdout, done.stderr
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 6 and not done.stdout, done.stderr
    (message,) = [text for text in done.stderr.splitlines() if "…" not in text]
    assert message.startswith(f"zenjun pcap {command.split()[0]}: needs ") and message.endswith("pip install 'zenjun[spark]'")


@pytest.mark.parametrize("group", ["lab", "evaluate", "config", "bench", "pcap"])
def test_overviews_cut_no_sentence(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([group, "--help"]) == 0
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


def raises(error: Exception) -> None:
    raise error


def test_start_is_light() -> None:
    """What is not needed is not imported: the overview and ``send`` know neither asyncio nor rich nor the lab."""
    program = (
        "import sys; from zenjun.tools.cli import run; run(['--help']); run(['send', '-s', '/none', 'x']); "
        "bad = [m for m in ('asyncio', 'rich', 'pyroute2', 'scapy', 'cffi', 'uvloop', 'zenjun.tools.lab') if m in sys.modules]; "
        "sys.exit(repr(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=WAIT_S, capture_output=True)


def test_progress_only_on_a_terminal(fake: FakeThread) -> None:
    args = ("send", "x", "-n", "40", "-r", "40")
    assert zenjun(*args).stderr == b""
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    p = start(*args, stderr=slave, stdout=subprocess.DEVNULL, env=env)
    os.close(slave)
    seen = b""
    while True:
        ready, _, _ = select.select([master], [], [], WAIT_S)
        assert ready
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        if not data:
            break
        seen += data
    os.close(master)
    assert p.wait(WAIT_S) == 0
    assert b"at level preack" in seen and b"40 messages" in seen


@pytest.mark.parametrize("command", [("send", "hello"), ("recv",)])
def test_a_group_without_a_name_is_wrong_usage(command: tuple[str, ...], fake: FakeThread) -> None:
    for name, size in (("", 0), ("x" * 129, 129)):
        done = zenjun(*command, "-g", name, code=2)
        assert f"a name has 1 to 128 bytes, not {size}" in done.stderr.decode()
