"""How labs begin and end: crashes, interrupts, ordinary users, programs and daemons in stations."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from zenjun.tools.lab import Lab, LabError, LabNotFound, LabTimeout, filters, forking
from zenjun.tools.lab.awaiting import open_limit_s

from ..timing import in_time
from .support import CALM, CLI, marked_processes, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.timeout(500)]
MakeLab = Callable[..., Lab]

SLEEPER = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]


def cli(*arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)


def host_state() -> tuple[list[str], dict[str, str]]:
    """What a lab must not touch: named namespaces, and interfaces of the machine that are called as its own are. All others may
    be somebody else's, who makes and removes them meanwhile."""
    named = sorted(entry.name for entry in Path("/run/netns").iterdir()) if Path("/run/netns").exists() else []
    own = [Path("/sys/class/net") / name for name in ("br0", "eth0", *map(filters.port_name, range(1, 4)))]
    return named, {path.name: (path / "ifindex").read_text() for path in own if path.exists()}


def test_up_and_down_leave_nothing(home: Path, mark: str) -> None:
    before = host_state()
    lab = Lab(3)
    lab.up()
    assert len(marked_processes(mark)) == 4, "a holder and three agents"
    assert host_state() == before
    lab.down()
    lab.down()
    assert marked_processes(mark) == []
    assert list(home.iterdir()) == []
    with pytest.raises(LabNotFound, match="is not up"):
        lab.counters()


@pytest.mark.timeout(500, method="thread")  # the signal is the test's
def test_an_interrupted_request_leaves_no_answer_for_the_next_one(make_lab: MakeLab) -> None:
    """Ctrl-C falls between question and answer; what is asked while cleaning up must not get that answer."""
    lab = make_lab(2)

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(200):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + number * 0.00001)
                while True:
                    lab.counters()
            assert set(lab.request("info")) >= {"token", "stations", "mtu"}, "the answer to another question"
    finally:
        signal.signal(signal.SIGALRM, before)


def test_the_networks_are_made_well_under_a_second(make_lab: MakeLab) -> None:
    started = time.process_time()
    make_lab(3)
    in_time(time.process_time() - started < 0.5, "the networks are made")


def test_programs_see_their_own_namespace_folder_and_environment(make_lab: MakeLab, tmp_path: Path) -> None:
    """Case 113: files of the right network namespace are read."""
    lab = make_lab(2)
    done = lab.stations[2].run(
        ["sh", "-c", "ls /sys/class/net; pwd; echo $ZENJUN_STATION $WORD ${ZENJUN_CONFIG##*/}; cat"],
        cwd=tmp_path,
        env={"WORD": "x"},
        input="in",
    )
    assert done.stdout.split() == ["eth0", "lo", str(tmp_path), "2", "x", "zenjund.toml", "in"]
    assert lab.stations[1].run(["sh", "-c", "exit 7"]).returncode == 7
    with pytest.raises(subprocess.TimeoutExpired):
        lab.stations[1].run(["sleep", "60"], timeout_s=0.2)


def test_spawned_programs_have_their_own_pid_and_end_with_the_lab(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    process = lab.stations[1].spawn(SLEEPER, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    assert b"import time" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert Path(f"/proc/{process.pid}/ns/net").readlink() == Path(f"/proc/{lab.stations[1].netns_pid}/ns/net").readlink()
    lab.down()
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()


def test_daemons_are_started_signalled_and_restarted(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    station = lab.stations[1]
    daemon = station.start_daemon(argv=SLEEPER)
    assert daemon.poll() is None
    wait_for(lambda: station.log_path.read_text() == "here\n", "it runs")
    with pytest.raises(LabError, match="running already"):
        station.start_daemon(argv=SLEEPER)
    station.signal(signal.SIGSTOP)
    wait_for(lambda: " (python" in (s := Path(f"/proc/{daemon.pid}/stat").read_text()) and ") T " in s, "it is stopped")
    station.signal(signal.SIGCONT)
    with pytest.raises(LabTimeout, match="still runs"):
        daemon.wait(0.05)
    assert station.stop_daemon(5) == -signal.SIGTERM
    assert daemon.returncode == -signal.SIGTERM
    with pytest.raises(LabNotFound, match="no daemon is running"):
        station.signal(signal.SIGTERM)
    again = station.start_daemon(argv=SLEEPER)
    assert again.pid != daemon.pid
    wait_for(lambda: station.log_path.read_text().count("here") == 2, "both wrote to the log")
    assert Lab.attach(lab.name).stations[1].daemon is not None
    with pytest.raises(LabNotFound, match="no daemon was started at station 2"):
        lab.stations[2].stop_daemon()


def test_wait_open_tells_why_a_daemon_ended(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    lab.stations[1].start_daemon(argv=["sh", "-c", "echo no such interface >&2; exit 3"])
    with pytest.raises(LabError, match=r"station 1 ended with exit code 3: no such interface"):
        lab.wait_open(90)


def test_a_lab_that_does_not_open_says_what_each_station_waits_for(make_lab: MakeLab) -> None:
    lab = make_lab(4, options=CALM)
    lab.stations[2].start_daemon()
    wait_for(lab.stations[2].socket_path.exists, "the daemon listens", 30)
    wait_for(lambda: len(lab.stations[2].status(5.0)["blocked"]) == 3, "it says that it waits", 30)
    with pytest.raises(LabTimeout, match=r"after 0.1 s:\nstation 2: in no instance: waits for 1, 3-4 \(never seen\)$"):
        lab.wait_open(0.1, [2])


def test_config_is_merged(make_lab: MakeLab) -> None:
    import tomllib

    lab = make_lab(2, options={"cluster": {"window": 8}, "log": {"level": "debug"}})
    config = tomllib.loads(lab.stations[2].write_config({"station": {"note": "x"}}).read_text())
    assert config["cluster"] == {"name": f"lab-{lab.name}", "stations": 2, "medium": "switched", "window": 8}
    assert config["station"] == {
        "id": 2,
        "interface": "eth0",
        "socket": str(lab.stations[2].socket_path),
        "state_dir": str(lab.stations[2].state_directory),
        "note": "x",
    }
    assert config["log"] == {"level": "debug", "format": "text"}


def test_a_second_lab_of_the_same_name_is_refused(make_lab: MakeLab) -> None:
    make_lab(1, name="one")
    with pytest.raises(LabError, match="up already"):
        Lab(1, name="one").up()
    assert Lab.attach("one").size == 1
    make_lab(1, name="two")
    assert cli("list").stdout.count(" up ") == 2


def test_killed_holder_takes_everything_with_it_and_a_new_lab_starts(home: Path, mark: str) -> None:
    """Case 115: an aborted lab leaves nothing that hinders the next one."""
    lab = Lab(3, name="crash")
    lab.up()
    program = lab.stations[1].spawn(SLEEPER, start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "here\n", "the agents die after the program has entered the station, not before"
    program.stdout.close()
    lab.stations[2].start_daemon(argv=SLEEPER)
    assert lab._holder is not None
    os.kill(lab._holder.pid, signal.SIGKILL)
    lab._holder.wait(60)
    assert program.wait(60) == -signal.SIGKILL
    wait_for(lambda: not marked_processes(mark), "agents, daemon and program are gone")
    assert "crashed" in cli("list").stdout
    with pytest.raises(LabNotFound, match="crashed"):
        Lab.attach("crash")
    with Lab(3, name="crash") as again:
        again.stations[1].inject(bytes(60))
    assert list(home.iterdir()) == []


def test_down_clears_up_after_holder_and_agents_were_killed(home: Path, mark: str) -> None:
    """Case 115, worse: not even the agents could clean up."""
    lab = Lab(2, name="crash")
    lab.up()
    program = lab.stations[1].spawn(SLEEPER, start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "here\n", "the agents die after the program has entered the station, not before"
    program.stdout.close()
    assert lab._holder is not None
    pids = [lab._holder.pid, *(s.netns_pid for s in lab.stations.values())]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    lab._holder.wait(60)
    assert program.poll() is None
    done = cli("down", "--name", "crash")
    assert (done.returncode, done.stdout) == (0, "lab crash: down\n")
    assert program.wait(60) == -signal.SIGKILL
    assert list(home.iterdir()) == []


def test_down_ends_a_holder_that_hangs(home: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zenjun.tools.lab.takedown.GONE_S", 3.0)  # also what its processes have for dying
    lab = Lab(2, name="hang")
    lab.up()
    assert lab._holder is not None
    os.kill(lab._holder.pid, signal.SIGSTOP)
    lab.down(grace_s=0.0)
    assert marked_processes(mark) == []


def test_a_lab_ends_with_its_owner(home: Path, mark: str) -> None:
    code = "import time; from zenjun.tools.lab import Lab; Lab(2, name='owned').up(); print('up', flush=True); time.sleep(600)"
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    assert len(marked_processes(mark)) == 4
    owner.kill()
    owner.wait(60)
    owner.stdout.close()
    wait_for(lambda: not marked_processes(mark), "the lab is gone")
    assert list(home.iterdir()) == []


def test_a_detached_lab_stays(home: Path, mark: str) -> None:
    try:
        assert cli("up", "-n", "2", "--no-daemons").returncode == 0
        assert len(marked_processes(mark)) == 3
        attached = Lab.attach("default")
        assert sorted(attached.stations) == [1, 2]
        for _ in range(3):  # connections come and go without harm
            Lab.attach("default").counters()
    finally:
        assert cli("down", "--all").returncode == 0
    assert marked_processes(mark) == []


@pytest.mark.parametrize("moment", ["holder", "socket"])
def test_interrupt_during_up(home: Path, mark: str, moment: str) -> None:
    """Ctrl-C while a lab is being made: exit code 130 and nothing left, whenever it comes."""
    # A daemon of a station more than there are never finds its cluster open: the interrupt always finds `up` at work.
    options = ["-o", "cluster.stations=4"]
    process = subprocess.Popen(
        [*CLI, "up", "-n", "3", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    seen = {
        "holder": lambda: len(marked_processes(mark)) >= 2,
        "socket": lambda: (home / "default" / "lab.json").exists(),
    }
    wait_for(seen[moment], "the lab is on its way")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (130, ""), errors
    wait_for(lambda: not marked_processes(mark), "nothing is left")
    assert not (home / "default").exists()


def test_command_line(home: Path, mark: str, tmp_path: Path) -> None:
    assert cli("down").stdout == "lab default: is not up\n"
    nothing = cli("status")
    assert (nothing.returncode, nothing.stderr) == (3, "zenjun lab: there is no lab 'default': start one with zenjun lab up\n")
    try:
        up = cli("up", "-n", "3", "--no-daemons", "--loss", "5%", "--mtu", "9000")
        assert up.returncode == 0, up.stderr
        assert cli("up", "--no-daemons").returncode == 1
        everywhere = cli("exec", "--", "sh", "-c", "echo $ZENJUN_STATION; exit $ZENJUN_STATION")
        assert sorted(everywhere.stdout.splitlines()) == ["1| 1", "2| 2", "3| 3"]
        assert everywhere.returncode == 3
        one = cli("exec", "-s", "2", "--", "sh", "-c", "echo out; echo err >&2; exit 9")
        assert (one.stdout, one.stderr, one.returncode) == ("out\n", "err\n", 9)
        assert cli("exec", "-s", "4", "--", "true").returncode == 3
        assert cli("partition", "1,2", "3").returncode == 0
        assert cli("cut", "1", "2").returncode == 0
        status = json.loads(cli("status", "--json").stdout)
        assert status["cuts"] == [[1, 2], [1, 3], [2, 3], [3, 1], [3, 2]]
        assert {s["impairment"]["loss"] for s in status["stations"]} == {0.05}
        assert cli("heal").returncode == 0
        assert cli("loss", "20%", "-s", "3").returncode == 0
        assert "loss 20%" in cli("status").stdout
        assert cli("loss", "20").returncode == 2
        assert cli("link", "-s", "2", "down").returncode == 0
        assert "eth0 down" in cli("status").stdout
        captured = cli("capture", "--out", str(tmp_path), "--duration", "50ms", "-s", "1")
        assert captured.stdout == f"station 1: 0 frames, 0 bytes, {tmp_path}/station-1.pcapng\n"
        assert cli("capture", "--out", str(tmp_path), "--background").returncode == 0
        assert cli("capture", "--stop").stdout.count("0 frames") == 3
        assert cli("kill", "-s", "1").returncode == 3, "no daemon runs"
        assert "\x1b" not in cli("status").stdout, "plain when piped"
    finally:
        assert cli("down").stdout == "lab default: down\n"


def test_every_command_has_examples() -> None:
    from zenjun.tools.cli.lab import lab

    for name, command in lab.commands.items():
        assert "Example" in (command.help or ""), name


def test_an_ordinary_user_needs_no_root(mark: str) -> None:
    """One user, network and mount namespace holds the whole lab."""
    if os.geteuid() != 0:
        pytest.skip("the other tests run without root already")
    if (setpriv := shutil.which("setpriv")) is None:
        pytest.skip("setpriv is not installed")
    user = [setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]
    # Root's interpreter may lie where nobody else can read; the system's will do, with our packages.
    environment = {**os.environ, "PYTHONPATH": ":".join([os.environ.get("PYTHONPATH", ""), *sys.path])}
    probe = '"$0" -c "import zenjun.tools.lab.network"'
    for python in (sys.executable, "/usr/bin/python3"):
        if (
            subprocess.run(
                [*user, "sh", "-c", probe, python], env=environment, cwd="/", capture_output=True, check=False
            ).returncode
            == 0
        ):
            break
    else:
        pytest.skip("an ordinary user can read neither this checkout nor a Python for it")
    folder = Path(tempfile.mkdtemp(prefix="zlu", dir="/tmp"))
    os.chown(folder, 65534, 65534)
    code = """
import sys
from pathlib import Path
from zenjun.tools.lab import Lab
with Lab(3, loss=1.0, rate_bit=10**9) as lab:
    first = lab.stations[1]
    print(first.run(["id", "-u"]).stdout.strip(), first.run(["ls", "/sys/class/net"]).stdout.split())
    lab.partition([[1], [2, 3]])
    with lab.capture(Path.cwd()) as paths:
        first.inject(bytes.fromhex("035a4a0000ff025a4a00000188b6") + bytes(46))
    print(lab.counters()[1]["sent"], paths[1].stat().st_size > 150)
    daemon = first.start_daemon(argv=[sys.executable, "-c", "import time; time.sleep(600)"])
    print(first.stop_daemon(5))
"""
    try:
        done = subprocess.run(
            [*user, "sh", "-c", 'exec "$0" -c "$1"', python, code],
            env={**environment, "ZENJUN_LAB_HOME": str(folder / "labs"), "HOME": str(folder)},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if "cannot be made here" in done.stderr:
            pytest.skip(done.stderr.strip().splitlines()[-1])
        assert done.stderr == ""
        assert done.stdout.splitlines() == ["0 ['eth0', 'lo']", "1 True", "-15"]
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)


def test_real_daemons_open_a_cluster(make_lab: MakeLab) -> None:
    lab = make_lab(3, loss=0.02, options=CALM)
    lab.start_daemons()
    instance = lab.wait_open(90)
    assert instance > 0
    assert {s.status(5.0)["instance"] for s in lab.stations.values()} == {instance}
    assert lab.stations[2].stop_daemon(20) == 0


def test_daemons_may_be_forks_of_the_holder(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same to whoever uses the lab: output, folder, environment, session, signals, exit codes. What counts only when an
    interpreter starts has one started, and so does whoever did not ask for forks."""

    def words(pid: int, file: str = "cmdline") -> set[bytes]:
        return set(Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0"))

    monkeypatch.setenv(forking.VARIABLE, "1")
    lab = make_lab(2, options=CALM)
    first, second = lab.stations.values()
    lab.start_daemons()
    lab.wait_open(90)
    assert first.daemon is not None and second.daemon is not None
    for daemon in (first.daemon, second.daemon):
        assert b"zenjun.daemon" not in words(daemon.pid) and os.getsid(daemon.pid) == daemon.pid
        assert Path(f"/proc/{daemon.pid}/cwd").readlink() == Path.cwd()
        assert {Path(f"/proc/{daemon.pid}/fd/{n}").readlink().name for n in range(3)} == {"null", "zenjund.log"}
        for entry in Path(f"/proc/{daemon.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has just closed it
                assert entry.readlink() != lab.directory / "lock", "it says that the lab still runs"
    second.signal(signal.SIGKILL)
    assert second.daemon.wait(20) == -signal.SIGKILL
    assert first.stop_daemon(20) == 0
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    started = first.start_daemon()
    wait_for(lambda: b"zenjun.daemon" in words(started.pid), "a program of its own")
    assert first.stop_daemon(20) in (0, -signal.SIGTERM), "it may not have come to handle signals yet"
    monkeypatch.delenv("PYTHONHASHSEED")
    refused = first.start_daemon({"cluster": {"stations": 0}})
    assert refused.wait(20) == 3
    last = first.log_path.read_text().splitlines()[-1]
    assert "stations" in last and "Traceback" not in first.log_path.read_text(), last
    monkeypatch.setenv(forking.VARIABLE, "")
    started = make_lab(1, options=CALM).stations[1].start_daemon()
    wait_for(lambda: b"zenjun.daemon" in words(started.pid), "a program of its own")


@pytest.mark.slow
def test_sixteen_real_daemons_open_in_one_step(make_lab: MakeLab) -> None:
    """They start one after the other and all at once: seconds of processor time, on machines that have two processors."""
    lab = make_lab(16, options=CALM)
    lab.start_daemons()
    assert lab.wait_open(3 * open_limit_s(64)) <= 3
    members = {len(s.status(10.0)["members"]) for s in lab.stations.values()}
    assert members == {16}


def test_real_daemons_from_the_command_line(home: Path, mark: str) -> None:
    try:
        calm = [word for name, value in CALM["cluster"].items() for word in ("-o", f"cluster.{name}={value}")]
        up = cli("up", "-n", "2", *calm)
        assert up.returncode == 0, up.stderr
        assert "is open" in up.stdout
        assert cli("status").stdout.count("open (") == 2
        assert cli("pause", "-s", "2").returncode == 0
        assert cli("resume", "-s", "2").returncode == 0
        assert cli("kill", "-s", "2").returncode == 0
        wait_for(lambda: "ended: -9" in cli("status").stdout, "the daemon's end is shown")
        assert cli("start", "--wait").returncode == 0
        assert "start: zenjund" in cli("log", "-s", "2").stdout
        assert cli("stop", "-s", "1").stdout == "station 1: exit code 0\n"
    finally:
        assert cli("down").returncode == 0
