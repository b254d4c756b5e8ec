"""``zenjun top``: rates, curves, the picture, and the program on a terminal against a daemon of the tests."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from zenjun.tools.cli.topview import HISTORY, Latencies, Rates, curve, picture

from ..client.fake_daemon import FakeThread, fake_daemon
from ..timing import in_time

EXAMPLE = Path(__file__).parents[1] / "status_example.json"
PROGRAM = [sys.executable, "-c", "from zenjun.tools.cli import main; main()", "top"]
WAIT_S = 120.0


def example() -> dict[str, Any]:
    return dict(json.loads(EXAMPLE.read_text()))


def shown(s: dict[str, Any], rates: Rates, latencies: Latencies | None = None, width: int = 100, note: str = "") -> str:
    console = Console(file=StringIO(), width=width, highlight=False, force_terminal=False)
    console.print(picture(s, rates, latencies, note))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def row(text: str, label: str) -> list[str]:
    """The words behind a row's label."""
    (line,) = [line for line in text.splitlines() if line.strip().startswith(label)]
    return line.strip().removeprefix(label).split()


def grown(s: dict[str, Any], **core: int) -> dict[str, Any]:
    new = json.loads(json.dumps(s))
    for name, by in core.items():
        new["counters"]["core"][name] = new["counters"]["core"].get(name, 0) + by
    return dict(new)


def test_rates_are_growth_per_second() -> None:
    rates, s = Rates(), example()
    rates.feed(10.0, s)
    assert rates.rate("core.messages_sent") is None and rates.total("core.messages_sent") == 99
    later = grown(s, messages_sent=500)
    later["peers"][1]["ordered"] += 30
    later["drops"]["checksum"] += 5
    later["clients"][0]["delivered"] += 4
    rates.feed(12.0, later)
    assert rates.rate("core.messages_sent") == 250 and rates.rate("core.tx_nak") == 0
    assert rates.rate("peer.2.ordered") == 15 and rates.rate("drop.checksum") == 2.5 and rates.rate("client.5.delivered") == 2
    text = shown(later, rates)
    assert row(text, "messages sent")[0] == "250" and row(text, "checksum")[0] == "2.5"
    assert row(text, "receive ring full")[0] == "0"


def test_a_new_life_or_a_new_instance_shows_no_false_rates() -> None:
    rates, s = Rates(), example()
    rates.feed(1.0, s)
    again = example()
    again["peers"][0]["ordered"] = 0
    rates.feed(2.0, again)
    assert rates.rate("peer.1.ordered") is None, "it went back"
    again["pid"] = 9999
    rates.feed(3.0, again)
    assert rates.rate("core.messages_sent") is None
    rates.feed(4.0, again)
    assert rates.rate("core.messages_sent") == 0


def test_curves_are_bounded_and_forget_programs_that_have_gone() -> None:
    rates, s = Rates(), example()
    for n in range(HISTORY + 20):
        rates.feed(float(n), grown(s, messages_sent=n))
    assert len(rates.curve("core.messages_sent")) == HISTORY
    assert rates.curve("client.5.sent")
    s["clients"] = []
    rates.feed(1000.0, s)
    assert rates.curve("client.5.sent") == ()
    assert curve([0, 1, 4, 8]) == "▁▂▅█" and curve([]) == "" and curve([0, 0]) == "▁▁"


def test_latencies() -> None:
    latencies = Latencies()
    assert latencies.quantile(0.5) is None
    for n in range(1, 101):
        latencies.add(n / 1000)
    assert (latencies.quantile(0), latencies.quantile(0.5), latencies.quantile(1)) == (0.001, 0.051, 0.1)
    latencies.missed = 3
    text = shown(example(), Rates(), latencies)
    assert "median 51.0 ms · 99 % 100.0 ms · worst 100.0 ms of 100" in text and "3 not in time" in text
    assert "no probe has come through yet" in shown(example(), Rates(), Latencies())
    assert "latency" not in shown(example(), Rates())


def test_the_picture_has_states_window_drops_and_programs() -> None:
    rates, s = Rates(), example()
    rates.feed(1.0, s)
    text = shown(s, rates, note="no answer: gone")
    assert "demo  station 1 of 3  open  instance 4294  up 1 h 2 min" in text and "no answer: gone" in text
    assert "waits for station 3: silent for 1.5 s" in text and "station 2 waits for station 3: told for 1.2 s" in text
    assert "members 1, 2, 3 · 3 of 3 are members · 2 needed · required: 1 · reached · 4 changes" in text.replace("\n", " ")
    assert row(text, "sees") == ["1", "2", "3"]
    assert [line.split() for line in text.splitlines() if line.split()[:2] in (["1", "A"], ["2", "A"], ["3", "-"])] == [
        ["1", "A", "A", "AS"], ["2", "A", "A", "SA"], ["3", "-", "-", "-"],
    ]  # fmt: skip
    assert "its stop is being agreed" in text
    assert row(text, "2  up")[:2] == ["12", "ms"] and "silent" in text
    assert "3 of 111 frames under way" in text
    assert row(text, "checksum")[-1] == "4" and "cluster" not in [line.split()[0] for line in text.splitlines() if line.strip()]
    assert "zenjun recv" in text and "held" in text


def test_the_table_of_states_is_shown_while_it_says_something() -> None:
    s = example()
    s["members"] = [[1, 77], [2, 78]]
    s["membership"]["letters"] = {"1": {"1": "A", "2": "A", "3": "S"}, "2": {"1": "A", "2": "A", "3": "S"}, "3": None}
    assert "sees" not in shown(s, Rates()), "one that is out is in the table of stations"
    s["membership"]["letters"]["2"]["1"] = "AS"
    assert "sees" in shown(s, Rates())
    s["members"] = []
    s["quorum"]["have"] = False
    text = shown(s, Rates())
    assert "members none" in text and "not reached" in text and "sees" not in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    s = example()
    s["clients"][0]["name"] = "\x1b[31mevil" + "x" * 300
    rates = Rates()
    rates.feed(1.0, s)
    text = shown(s, rates, Latencies(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


def test_a_narrow_terminal_lacks_columns_instead_of_cutting_all_of_them() -> None:
    s = example()
    rates = Rates()
    rates.feed(1.0, s)
    narrow, wide = ([line.split() for line in shown(s, rates, None, width).splitlines()] for width in (40, 100))
    assert ["station", "state", "heard", "missing"] in narrow
    assert ["3", "silent", "1.5", "s", "0"] in narrow
    assert ["program", "groups", "queued"] in narrow and ["zenjun", "recv", "default", "2.0", "KiB", "held"] in narrow
    assert ["station", "state", "heard", "host", "PDUs/s", "missing", "behind", "buffers"] in wide


def test_objects_of_other_versions_are_shown_as_far_as_they_go() -> None:
    assert "-" in shown({}, Rates(), Latencies())
    odd = {"peers": [{"station": 1}], "clients": [{}], "counters": {"new": {"x": 1}}, "blocked": [{}], "window": {"frames": 0}}
    rates = Rates()
    rates.feed(1.0, odd)
    rates.feed(2.0, odd)
    assert shown(odd, rates)


# ---- the program


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeThread]:
    with fake_daemon(tmp_path) as fake:
        fake.daemon.status = example()
        monkeypatch.setenv("ZENJUN_SOCKET", str(fake.daemon.path))
        yield fake


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *args], capture_output=True, text=True, timeout=WAIT_S, check=False)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        in_time(time.monotonic() < deadline, what)
        time.sleep(0.01)


def test_once_prints_one_picture_with_rates(fake: FakeThread) -> None:
    done = run("--once", "--interval", "0.1")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.count("station 1 of 3") == 1
    assert row(done.stdout, "messages sent")[0] == "0", "a rate, not the dash of a first look"
    assert run("--count", "3", "--interval", "0.1", "--no-probe").stdout.count("station 1 of 3") == 3


def test_without_a_daemon_it_says_so(tmp_path: Path) -> None:
    done = run("--socket", str(tmp_path / "none"))
    assert done.returncode == 3 and "cannot reach the daemon" in done.stderr and done.stdout == ""


class Terminal:
    """The program on a pseudo-terminal of its own."""

    def __init__(self, *args: str) -> None:
        self.fd, other = pty.openpty()
        self._text = ""
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        self.process = subprocess.Popen(
            [*PROGRAM, *args], stdin=other, stdout=other, stderr=other, env=env, start_new_session=True
        )
        os.close(other)

    def text(self) -> str:
        """Everything written so far."""
        while select.select([self.fd], [], [], 0)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                break
            if not data:
                break
            self._text += data.decode("utf-8", "replace")
        return self._text

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self.fd)


@pytest.fixture
def terminal(fake: FakeThread) -> Iterator[Terminal]:
    made = Terminal("--interval", "0.2")
    yield made
    made.close()


def test_keys_freeze_change_the_interval_and_end(terminal: Terminal) -> None:
    until(lambda: "every 0.2 s" in terminal.text(), "the first picture")
    assert "\x1b[?1049h" in terminal.text(), "on the other screen"
    terminal.press("-")
    until(lambda: "every 0.4 s" in terminal.text(), "slower")
    terminal.press("++")
    until(lambda: "every 0.1 s" in terminal.text(), "faster")
    terminal.press(" ")
    until(lambda: "frozen" in terminal.text(), "frozen")
    terminal.press("q")
    until(lambda: terminal.process.poll() is not None, "it ends")
    assert terminal.process.returncode == 0
    # What it wrote last comes through the terminal, which may take longer than its end.
    until(lambda: "\x1b[?1049l" in terminal.text(), "the terminal is as before")


def test_interrupt_is_an_ordinary_end(terminal: Terminal) -> None:
    until(lambda: "every 0.2 s" in terminal.text(), "the first picture")
    terminal.process.send_signal(signal.SIGINT)
    until(lambda: terminal.process.poll() is not None, "it ends")
    until(lambda: "\x1b[?1049l" in terminal.text(), "the terminal is as before")
    assert terminal.process.returncode == 0 and "Traceback" not in terminal.text()


def test_a_daemon_that_goes_and_comes_back(terminal: Terminal, fake: FakeThread) -> None:
    until(lambda: "median" in terminal.text(), "a probe has come through")

    def drop_all() -> None:
        fake.daemon.refuse = ("closing", "not now")
        for client in list(fake.daemon.clients.values()):
            client.writer.close()

    fake.call(drop_all)
    until(lambda: re.search(r"no answer|not now", terminal.text()), "it is said")
    before = len(terminal.text())
    fake.call(lambda: setattr(fake.daemon, "refuse", None))
    until(lambda: "open" in terminal.text()[before:] and "not now" not in terminal.text()[-3000:], "it is back")


def test_it_is_what_people_see_in_a_terminal(fake: FakeThread, tmp_path: Path) -> None:
    """A real terminal emulator (tmux) shows the picture, follows a change of size, and has its own screen back at the end."""
    tmux = shutil.which("tmux")
    assert tmux is not None, "tools/bootstrap.sh test installs tmux"
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}  # pytest's, not those of the terminal here
    base = [tmux, "-u", "-f", "/dev/null", "-S", str(tmp_path / "tmux")]  # -u: in whatever locale the tests run

    def call(*args: str) -> str:
        return subprocess.run([*base, *args], capture_output=True, text=True, timeout=WAIT_S, check=True, env=env).stdout

    def until_screen(condition: Callable[[str], bool], what: str) -> str:
        """What stands on the screen as soon as it is as wanted: a look may come in the middle of a drawing."""
        seen = ""

        def look() -> bool:
            nonlocal seen
            seen = call("capture-pane", "-p")
            return condition(seen)

        until(look, what)
        return seen

    script = tmp_path / "run"
    script.write_text(
        f"echo before\nZENJUN_SOCKET='{fake.daemon.path}' '{PROGRAM[0]}' -c '{PROGRAM[2]}' top -i 0.2\necho ended $?\nread x\n"
    )
    call("new-session", "-d", "-x", "100", "-y", "45", f"sh {script}")
    try:
        screen = until_screen(lambda t: "zenjun recv" in t, "the picture, to its end")
        assert screen.startswith("q quit · space freeze") and "before" not in screen
        assert "waits for station 3: silent" in screen and "3 of 111 frames under way" in screen
        call("resize-window", "-x", "60", "-y", "12")
        until_screen(lambda t: "waits for station 3" in t and "messages sent" not in t, "a small terminal cuts the end")
        call("send-keys", "q")
        until_screen(lambda t: "ended 0" in t and "before" in t and "window" not in t, "the screen of before")
    finally:
        call("kill-server")
