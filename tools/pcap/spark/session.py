"""A Spark session for one command: started beside other work, quiet, and gone without a trace afterwards."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ..work import scratch
from ..work.progress import Progress, tracked
from . import java

START_SECONDS_MAX: Final = 120
_LOG_LINES: Final = 6
_REACH_S: Final = 5.0
_END_S: Final = 5.0
_QUIET: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class SessionError(Exception):
    """Spark did not start, or has gone; the text is for people."""


def is_local(master: str) -> bool:
    """Whether Spark runs inside of one JVM of ours."""
    return master == "local" or (master.startswith("local[") and master.endswith("]"))


def _reach(master: str) -> None:
    """Raises SessionError if no process listens at any of ``spark://HOST:PORT,HOST:PORT``: Spark itself tries for a minute, and
    then reports another error."""
    scheme, _, places = master.partition("://")
    if scheme != "spark":
        return
    reasons = []
    for place in places.split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
            return
        except ValueError:
            reasons.append(f"{place!r} is not like HOST:7077")
        except OSError as error:
            reasons.append(f"{place}: {error.strerror or error}")
    raise SessionError(f"no Spark answers at {master} ({'; '.join(reasons)})")


def _conf(master: str, folder: Path) -> dict[str, str]:
    conf = {
        "spark.master": master,
        "spark.app.name": "zenjun",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": str(min(16, max(4, 2 * _cores(master)))),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.worker.faulthandler.enabled": "true",
    }
    if is_local(master):
        conf["spark.local.dir"] = str(folder)
        conf["spark.sql.warehouse.dir"] = str(folder / "warehouse")
    return conf


def _cores(master: str) -> int:
    inside = master.removeprefix("local").strip("[]").split(",")[0]
    if inside.isdigit():
        return max(1, int(inside))
    return (os.cpu_count() or 1) if inside == "*" else 8


class Session:
    """Spark, local (a JVM of our own) or at *master* (in Spark's ordinary way). The constructor returns at once while Spark comes
    up beside it.

    ``spark`` waits until it is there. Use as a context manager: at the end the JVM is ended and its files are removed, also after
    Ctrl-C. One at a time in a process.
    """

    def __init__(
        self,
        master: str = "local[*]",
        *,
        progress: Progress | None = None,
        heap: str = "2g",
        small: bool = False,
        conf: dict[str, str] | None = None,
    ) -> None:
        """small: little data, so that what counts is a quick start. conf: on top of ours. Raises java.JavaError if there is no
        Java that will do, SessionError if no cluster answers at *master*."""
        self.master = master
        self.progress = progress or Progress(quiet=True)
        self.local = is_local(master)
        found = java.find()
        if not self.local and not java.suits_scripts(found):
            raise java.JavaError(
                f"a Spark cluster is reached by Spark's own scripts, which {found.program} does not suit (it lacks the module"
                " jdk.incubator.vector): apt-get install openjdk-17-jre-headless"
            )
        _reach(master)
        self.folder = scratch.name("spark")
        self.log = self.folder / "jvm.log"
        self._conf = _conf(master, self.folder) | (conf or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._spark: Any = None
        self._error: BaseException | None = None
        self._closed = False
        if not self.local:
            os.environ.setdefault("JAVA_HOME", str(found.program.resolve().parent.parent))
        self._lock, self._launched = threading.Lock(), threading.Event()
        # What has to be ended and removed is made by the thread alone, where Ctrl-C cannot come in between.
        self._thread = threading.Thread(
            target=self._start, args=(found, self._home(), heap, small), name="zenjun-spark", daemon=True
        )
        atexit.register(self.close)
        try:
            self._thread.start()
            self._launched.wait()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _home() -> Path:
        """Of Spark."""
        from importlib.util import find_spec

        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
        return Path(os.environ.get("SPARK_HOME") or Path(spec.origin).parent)

    def _launch(self, found: java.Java, home: Path, heap: str, small: bool) -> None:
        # Little data is over before the second compiler has paid for itself.
        options = ["-XX:TieredStopAtLevel=1", "-Xshare:auto"] if small else []
        line = java.command(found, home, heap=heap, folder=self.folder, options=options, conf=self._conf)
        with self.log.open("wb") as log:
            self._process = java.launch(line, self.folder, log)

    # ---- coming up, in a thread of its own ----

    def _start(self, found: java.Java, home: Path, heap: str, small: bool) -> None:
        try:
            with self._lock:
                if self._closed:
                    return
                scratch.make(self.folder)
                if self.local:
                    self._launch(found, home, heap, small)
            self._launched.set()
            self._connect()
        except BaseException as error:
            self._error = error
        finally:
            self._launched.set()

    def _connect(self) -> None:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder
        for key, value in self._conf.items():
            builder = builder.config(key, value)
        environment: dict[str, str] = {}
        if not self.local:
            self._submit()
        else:
            port, secret = self._connection()
            environment = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret, "PYSPARK_PYTHON": sys.executable}
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            spark = builder.getOrCreate()
        except Exception:
            _forget(None)  # half of a connection would be in the next session's way
            raise
        finally:
            for name, old in before.items():
                if old is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = old
        hush()
        self._spark = spark

    def _submit(self) -> None:
        """Start the driver's JVM by Spark's own scripts, with its output in the log."""
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = SparkConf(loadDefaults=False).setAll(list(self._conf.items()))
        with self.log.open("wb") as log:
            popen = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
            start: Any = launch_gateway
            gateway = start(conf, popen)
        self._process = gateway.proc
        SparkContext._ensure_initialized(gateway=gateway)

    def _connection(self) -> tuple[int, str]:
        """Port and secret that the JVM writes when it is ready."""
        assert self._process is not None
        file = self.folder / "connection"
        deadline = time.monotonic() + START_SECONDS_MAX
        while not file.exists():
            if self._process.poll() is not None:
                raise SessionError(f"Java ended while Spark was starting (exit code {self._process.returncode}){self.log_tail()}")
            if time.monotonic() > deadline:
                raise SessionError(f"Spark has not started within {START_SECONDS_MAX} s{self.log_tail()}")
            time.sleep(0.02)
        data = file.read_bytes()
        port, size = struct.unpack(">ii", data[:8])
        return port, data[8 : 8 + size].decode()

    # ---- in use ----

    @property
    def spark(self) -> Any:
        """The SparkSession, once it is there. Raises SessionError."""
        while self._thread.is_alive():
            self._thread.join(0.2)  # with a time limit, so that Ctrl-C gets through
        if self._closed:
            raise SessionError("Spark has been ended")
        if self._error is not None:
            if isinstance(self._error, (SessionError, java.JavaError, ImportError)):
                raise self._error
            raise SessionError(f"Spark at {self.master} did not start: {_reason(self._error)}{self.log_tail()}")
        return self._spark

    @property
    def ready(self) -> bool:
        """Whether ``spark`` would not wait."""
        return not self._thread.is_alive()

    def wait(self) -> Any:
        """``spark``, with a phase of progress if it is not there yet."""
        if not self.ready:
            self.progress.phase(f"starting Spark ({self.master})")
        return self.spark

    @contextmanager
    def job(self, what: str) -> Iterator[Any]:
        """Give the SparkSession; the jobs that the block runs show as a phase of progress. Raises SessionError if the JVM has
        ended under it."""
        spark = self.wait()
        try:
            with tracked(spark.sparkContext, self.progress, what):
                yield spark
        except Exception as error:
            if self._process is not None and self._process.poll() is not None and not self._closed:
                raise SessionError(f"Java ended (exit code {self._process.returncode}) while {what}{self.log_tail()}") from error
            raise

    def log_tail(self) -> str:
        """The last informative lines of the JVM's output, to follow a message; empty if there was none."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        telling = [line.rstrip() for line in lines if line.strip() and not line.startswith(("\tat ", "\t...", "    at "))]
        return "".join(f"\n  | {line[:200]}" for line in telling[-_LOG_LINES:])

    # ---- the end ----

    def close(self) -> None:
        """End Spark and the JVM and remove their files. Not an error twice."""
        if self._closed:
            return
        self._closed = True
        if self._lock.acquire(timeout=_END_S):  # not while the JVM is being started
            self._lock.release()
        atexit.unregister(self.close)
        if not self.local:
            while self._thread.is_alive():
                self._thread.join(0.2)
            if self._spark is not None:
                with contextlib.suppress(Exception):
                    self._spark.stop()  # the cluster is to know
        if self._process is not None:
            if self.ready and self._spark is not None:
                _hang_up(self._spark)
            _end(self._process)
            self._thread.join(_END_S)
            # If it is not ready it is importing pyspark, and may do so forever where Ctrl-C has left a module's lock behind; and
            # what PySpark keeps is another session's as long as this one has none.
            if self.ready and self._spark is not None:
                _forget(self._spark)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Everything Spark has of us is temporary: no shutdown hooks are waited for longer than a moment. Its Python workers end with
    the JVM, whose pipes they read."""
    process.terminate()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _reason(error: BaseException) -> str:
    """One line of py4j's long message: that of the exception in the JVM."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    thrown = [line for line in lines if line.startswith(": ")]
    return (thrown or lines)[0].removeprefix(": ")


def _hang_up(spark: Any) -> None:
    """Keep PySpark and py4j from reporting that the JVM no longer answers."""
    from pyspark import SparkContext

    server = getattr(getattr(spark, "_sc", None), "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None
    if SparkContext._gateway is not None:
        SparkContext._gateway._gateway_client.is_connected = False  # objects that go from now on need not be told of


def _forget(spark: Any) -> None:
    """PySpark keeps the connection to a JVM that has gone in class attributes; the next session needs its own."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    server = getattr(getattr(spark, "_sc", None), "_accumulatorServer", None)
    if server is not None:
        threading.Thread(target=server.shutdown, daemon=True).start()  # takes up to half a second
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.close()


def _told(record: logging.LogRecord) -> bool:
    """Filter: not what py4j says, to the root logger and with its stack, of Ctrl-C while it waits; the exception goes on."""
    return not str(record.msg).startswith("KeyboardInterrupt while sending command")


def hush() -> None:
    """PySpark prints each SQL error as a JSON line with the JVM's whole stack; what is raised says enough."""
    from pyspark.logger import PySparkLogger

    logging.getLogger().addFilter(_told)
    py4j = logging.getLogger("py4j")  # it tells, with stacks, of connections to a JVM that has been ended
    py4j.addHandler(logging.NullHandler())
    py4j.propagate = False
    for name in _QUIET:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
