"""Progress of long work: a line at once, then a bar on a terminal, or a line from time to time in a pipe."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, TextIO

LINE_EVERY_S: Final = 5.0
"""In a pipe, at most one line of progress in this time; the first of a phase comes at once."""
POLL_S: Final = 0.5
"""How often Spark's status tracker is asked."""


class Progress:
    """Phases of one command, one after the other, on standard error. May be called from any thread."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False, terminal: bool | None = None) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._lock = threading.Lock()
        self._what = ""
        self._unit: Callable[[float], str] = str
        self._noun = ""
        self._next_line = 0.0
        self._rich: Any = None
        self._task: Any = None
        if not quiet and (self._stream.isatty() if terminal is None else terminal):
            from rich.console import Console
            from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Rich

            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
            self._rich = Rich(*columns, TimeElapsedColumn(), console=Console(file=self._stream), transient=True)
            self._rich.start()

    def phase(self, what: str, *, unit: Callable[[float], str] = lambda n: f"{n:,.0f}", noun: str = "") -> None:
        """A new phase begins; *what* names it, *unit* writes amounts of it, *noun* names what is counted."""
        with self._lock:
            self._what, self._unit, self._noun = what, unit, noun
            self._next_line = time.monotonic() + LINE_EVERY_S
            if self._quiet:
                return
            if self._rich is None:
                self._line(f"{what} …")
                return
            if self._task is not None:
                self._rich.remove_task(self._task)
            self._task = self._rich.add_task(what, total=None, state="")

    def at(self, done: float, total: float) -> None:
        """How far the present phase is."""
        with self._lock:
            if self._quiet:
                return
            state = f"{self._unit(done)} of {self._unit(total)} {self._noun}".rstrip()
            if self._rich is not None:
                if self._task is not None:
                    self._rich.update(self._task, completed=done, total=max(total, 1), state=state)
            elif time.monotonic() >= self._next_line:
                self._next_line = time.monotonic() + LINE_EVERY_S
                self._line(f"{self._what}: {state}")

    def note(self, text: str) -> None:
        """A line that stays: a bad file, where the log is."""
        with self._lock:
            if self._rich is not None:
                self._rich.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                self._line(text)

    def _line(self, text: str) -> None:
        try:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        except OSError:
            self._quiet = True  # there is no reader any more; the work must not fail because of that

    def close(self) -> None:
        with self._lock:
            if self._rich is not None:
                self._rich.stop()
                self._rich = None
            self._quiet = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def amount(count: float) -> str:
    """Bytes for people: 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: PySpark, on its way out, talks to a JVM whose last answer has not been read."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@contextmanager
def tracked(context: Any, progress: Progress, what: str, *, say: bool = True) -> Iterator[None]:
    """While the block runs Spark jobs from this thread: their tasks, done and in all, as a phase of *progress*. context: the
    SparkContext. say: False if the phase has been announced already."""
    if say:
        progress.phase(what, noun="tasks")
    group = f"zenjun-{id(progress)}-{time.monotonic_ns()}"
    context.setJobGroup(group, what, interruptOnCancel=True)
    over = threading.Event()

    def poll() -> None:
        tracker = context.statusTracker()
        while not over.wait(POLL_S):
            try:
                done = total = 0
                for job in tracker.getJobIdsForGroup(group):
                    info = tracker.getJobInfo(job)
                    for stage in info.stageIds if info else ():
                        if found := tracker.getStageInfo(stage):
                            done, total = done + found.numCompletedTasks, total + found.numTasks
                if total:
                    progress.at(done, total)
            except Exception:  # the JVM is going down: the thread that runs the job reports it
                return

    watcher = threading.Thread(target=poll, name="zenjun-progress", daemon=True)
    watcher.start()
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        # PySpark's handler of Ctrl-C talks to the JVM in the middle of another talk, and what comes of it is nobody's concern.
        if _interrupted(error):
            raise KeyboardInterrupt from None
        raise
    finally:
        over.set()
        watcher.join(timeout=5)
        with contextlib.suppress(Exception):  # as above; a return here would swallow Ctrl-C
            context.setLocalProperty("spark.jobGroup.id", None)
