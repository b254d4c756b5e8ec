"""``zenjun lab run`` for real: scenarios that hold, verdicts that fail, and nothing left of either."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from zenjun.tools.lab import Lab
from zenjun.tools.lab.takedown import all_labs
from zenjun.tools.scenario import parse, play
from zenjun.tools.scenario.model import KINDS
from zenjun.tools.scenario.plan import plan
from zenjun.tools.scenario.play import own

from ..jepsen.runner import ROOT
from .support import wait_for

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ZENJUN = (sys.executable, "-c", "from zenjun.tools.command import main; main()")
RUN_S = 120
CALM = """
about = "nothing happens"
stations = 3
end = "1s"
[options.cluster]
fail_timeout_ms = 2000
"""
SPLIT = """
about = "two of five are cut off"
stations = 5
[[at]]
t = "1s"
do = "partition"
groups = [[1, 2]]
for = "5s"
[expect]
"""


@pytest.fixture(autouse=True)
def machine(make_lab: Callable[..., Lab], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips where no lab can be made; what commands keep is kept in the test's folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    make_lab(1).down()


def run(*words: str | Path, code: int = 0) -> str:
    """What the command prints, both its outputs."""
    done = subprocess.run(
        [*ZENJUN, "lab", "run", *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}"
    assert "Traceback" not in done.stdout and "\x1b" not in done.stdout
    assert not all_labs(), "the lab is gone"
    return done.stdout


@pytest.mark.parametrize(
    "name", ["partition-heal", "kill-restart", "all-die", "bus-loss", "groups-under-faults", "state-transfer", "wrong-clock"]
)
def test_ready_made_scenarios_hold(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = run(name, "--out", out)
    lines = text.splitlines()
    assert f"{name}: all {sum(line.startswith('holds ') for line in lines)} hold" in text
    assert {path.name for path in out.iterdir()} >= {"plan.txt", "report.txt", "runner.jsonl", "zenjund-1.log", "station-2.jsonl"}
    times = [float(line.split()[0]) for line in lines if line.split()[1:2] == ["s"]]
    assert len(times) > 3 and times == sorted(times), "a time line"


def test_every_word_of_the_time_line(tmp_path: Path) -> None:
    file = Path(__file__).with_name("every.toml")
    scenario = parse(file.read_text(), "every")
    assert {entry.do for entry in scenario.timeline} == set(KINDS)
    assert "every: all " in run(file, "--out", tmp_path / "out")


def test_an_expectation_that_is_not_met_is_exit_code_1(tmp_path: Path) -> None:
    file = tmp_path / "calm.toml"
    file.write_text(f'{CALM}[expect]\nchanges = 3\nremoved = [2]\nserves = [{{ stations = "all", from = "0s", until = "1s" }}]\n')
    text = run(file, code=1)
    assert "VIOLATED  expect.changes" in text and "expected: 3" in text and "VIOLATED  expect.removed" in text
    assert "holds     expect.serves" in text and "calm: VIOLATED: expect.changes, expect.removed" in text
    kept = tmp_path / Path(text.splitlines()[-1].removeprefix("histories and logs: ")).name
    assert (kept / "report.txt").exists(), "what did not hold is kept"


def test_a_daemon_that_ends_by_itself_is_exit_code_1(tmp_path: Path) -> None:
    """Killed by somebody else: nothing on the time line says so."""
    file = tmp_path / "calm.toml"
    file.write_text(CALM.replace('"1s"', '"5s"') + "[expect]\n")
    with subprocess.Popen([*ZENJUN, "lab", "run", file, "--out", tmp_path / "out"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "are in instance" in line)
        lab = Lab.attach(all_labs()[0])
        wait_for(lambda: (tmp_path / "out" / "runner.jsonl").read_text().count("began"), "the time line has begun", 30)
        lab.station(2).signal(signal.SIGKILL)
        text = process.communicate(timeout=RUN_S)[0]
    assert process.returncode == 1 and "VIOLATED  no_breakdown" in text, text


def test_broken_daemons_do_not_pass(home: Path, tmp_path: Path) -> None:
    """The canary: they ignore the quorum, and both sides of the partition go on."""
    scenario = parse(SPLIT, "split")
    broken = [sys.executable, str(ROOT / "tests" / "jepsen" / "broken.py"), "no_quorum", "--config"]
    outcome = play(scenario, own(Lab(5)), tmp_path, daemon=lambda config: [*broken, str(config)], converge_s=5.0)
    assert not outcome.held
    failed = {verdict.name for verdict in outcome.judgement.verdicts if not verdict.held}
    assert {"quorate", "same_members", "common_order"} <= failed
    assert not all_labs()


def test_what_the_kernel_lacks_is_exit_code_6(home: Path) -> None:
    with Lab(1) as lab:
        has_netem = lab.describe()["netem"]
    if has_netem:
        pytest.skip("this kernel has sch_netem")
    text = run("jitter-reorder", code=6)
    assert "scenario jitter-reorder needs sch_netem" in text


def test_a_lab_that_is_up_stays_without_faults(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab = make_lab(3, name="mine", options={"cluster": {"fail_timeout_ms": 1500}})
    lab.start_daemons()
    lab.wait_open(90)
    file = tmp_path / "faults.toml"
    file.write_text(
        'about = "left broken on purpose"\nstations = 5\nend = "1s"\n[network]\nloss = "1%"\n'
        '[[at]]\nt = "200ms"\ndo = "pause"\nstations = 2\n[[at]]\nt = "300ms"\ndo = "cut"\nfrom = 1\nto = 3\n[expect]\n'
    )
    done = subprocess.run(
        [*ZENJUN, "lab", "run", file, "--name", "mine"], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 stations, lab mine" in done.stdout
    described = lab.describe()
    assert described["cuts"] == [] and all(s["impairment"]["loss"] == 0 for s in described["stations"])
    assert lab.wait_open(90) >= 1


def test_interrupted_it_leaves_a_lab_of_others_as_it_was(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab = make_lab(3, name="mine", options={"cluster": {"fail_timeout_ms": 1500}})
    lab.start_daemons()
    lab.wait_open(90)
    file = tmp_path / "faults.toml"
    file.write_text(
        'about = "broken when it is interrupted"\nstations = 3\nend = "60s"\n'
        '[[at]]\nt = "100ms"\ndo = "delete-interface"\nstations = 1\n'
        '[[at]]\nt = "200ms"\ndo = "kill"\nstations = 2\n[expect]\n'
    )
    with subprocess.Popen(
        [*ZENJUN, "lab", "run", file, "--name", "mine"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "kill 2" in line)
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "Traceback" not in rest, rest
    assert lab.wait_open(90) >= 1


def test_a_lab_can_be_kept(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "calm.toml"
    file.write_text(CALM + "[expect]\n")
    done = subprocess.run([*ZENJUN, "lab", "run", file, "--keep"], capture_output=True, text=True, timeout=RUN_S, check=False)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        assert "zenjun lab down --name run-calm" in done.stdout
        assert Lab.attach("run-calm").wait_open(90) >= 1
    finally:
        subprocess.run([*ZENJUN, "lab", "down", "--name", "run-calm"], check=True, timeout=RUN_S, capture_output=True)
    assert not all_labs()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_takes_everything_down(number: int, home: Path) -> None:
    """Also the programs; the fixture looks for processes that are left."""
    with subprocess.Popen(
        [*ZENJUN, "lab", "run", "partition-heal"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "partition 1,2" in line)
        process.send_signal(number)
        rest = process.communicate(timeout=120)[0]
    assert process.returncode == 130 and "Traceback" not in rest, rest
    assert not all_labs()


def test_killed_it_leaves_nothing(home: Path) -> None:
    """The lab goes with its owner, the programs with their pipe."""
    with subprocess.Popen([*ZENJUN, "lab", "run", "partition-heal"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "partition 1,2" in line)
        process.kill()
    wait_for(lambda: not all_labs(), "the lab is gone", 30)


def test_at_a_terminal_it_has_colours(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "calm.toml"
    file.write_text(CALM + "[expect]\n")
    mine, theirs = pty.openpty()
    with subprocess.Popen([*ZENJUN, "lab", "run", file], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        text = b""
        end = time.monotonic() + RUN_S
        while time.monotonic() < end:
            try:
                text += os.read(mine, 4096)
            except OSError:
                break
        assert process.wait(60) == 0, text
    os.close(mine)
    assert b"\x1b[32m" in text and b"calm: all" in text


def test_a_lab_of_another_size_is_refused(make_lab: Callable[..., Lab]) -> None:
    make_lab(2, name="small")
    done = subprocess.run(
        [*ZENJUN, "lab", "run", "partition-heal", "--name", "small"], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 2 and "station 3 does not exist: there are 1 to 2" in done.stderr
    done = subprocess.run(
        [*ZENJUN, "lab", "run", "loss-1", "--name", "nobody"], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 3 and "there is no lab 'nobody'" in done.stderr


def test_another_number_of_stations_and_another_seed(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "drawn.toml"
    file.write_text(CALM + '[[at]]\nt = "100ms-900ms"\ndo = "loss"\nshare = "1%"\nstations = "random 2"\n[expect]\n')
    text = run(file, "-n", "4", "--seed", "6", "--out", tmp_path / "out")
    assert "4 stations, namespaces, seed 6" in text
    acts = plan(parse(file.read_text(), "drawn", stations=4), 6)
    assert (tmp_path / "out" / "plan.txt").read_text() == "".join(f"{act.begin_ms:7d} ms  {act}\n" for act in acts)
