"""How the loop and the thread that has a database's copy work together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from threading import get_ident
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
SLOW_S: Final = 0.05
"""A short job that took so long, besides its waits for a processor, has met a slow disk, or rows that take long: the next ones
are the thread's."""
RECENT_S: Final = 0.01
"""For so long what the kernel has said is used again; waits since then count for a job that has begun since."""
SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds that the thread has run, and that it has waited for a processor."""
SLOW_PAUSE_S: Final = 2.0
"""For that long at least."""
SLOW_SHARE: Final = 100
"""And for so many times as long as it took: the loop stands still for one part in so many at most."""


class Starved:
    """How long the calling thread has waited for a processor: a thread of its own would not have got one either."""

    def __init__(self) -> None:
        self._thread = 0
        self._file: BufferedReader | None = None

    def __call__(self) -> float:
        """Seconds; always 0 where the kernel does not tell."""
        if self._thread != (thread := get_ident()):
            self.close()
            self._thread = thread
            with contextlib.suppress(OSError):
                self._file = SCHEDSTAT.open("rb")
        if self._file is None:
            return 0.0
        return int(os.pread(self._file.fileno(), 100, 0).split()[1]) / 1e9

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Jobs:
    """A thread that runs one function after another. What is given while it runs is run together afterwards: each change between
    threads takes as long as a transaction."""

    def __init__(
        self, name: str, clock: Callable[[], float] = time.monotonic, starved: Callable[[], float] | None = None
    ) -> None:
        """starved: seconds for which the loop's thread has waited for a processor."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._clock = clock
        self._own = Starved()
        self._starved = self._own if starved is None else starved
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._held = 0
        """Calls of ``run`` whose results have not gone on."""
        self._slow_until = 0.0
        self._starved_before = (-RECENT_S, 0.0)
        """When it was asked for last, and what it was."""
        self._closed = False

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What it returns, or raises. Those who wait go on in the order of their calls."""
        future = self._give(function, *arguments)
        self._held += 1
        try:
            return await future
        finally:
            self._held -= 1

    def _give(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((lambda: function(*arguments), future))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return future

    async def run_whole(
        self, then: Callable[[Any], None], function: Callable[..., Any], *arguments: Any, is_short: bool = False
    ) -> None:
        """``run``, or ``run_short``, and give *then* what it returns, even if the caller is cancelled meanwhile: for what must
        not be done by half."""
        if is_short and self.is_free:
            then(self.run_now(function, *arguments))
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(future: asyncio.Future[Any]) -> None:
            self._held -= 1
            wrong = future.exception()
            try:
                if wrong is None:
                    then(future.result())
            except Exception as error:
                if done.cancelled():
                    raise
                wrong = error
            _settle(done, None, wrong)

        self._held += 1
        self._give(function, *arguments).add_done_callback(ended)  # in the order of the calls, with those whom ``run`` lets go on
        await done

    async def run_short(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``run``, for what takes less time than a change between threads: here and now, if the thread has nothing to do and all
        results have gone on, so that they do so in the order of the calls."""
        if not self.is_free:
            return await self.run(function, *arguments)
        return self.run_now(function, *arguments)

    @property
    def is_free(self) -> bool:
        """``run_now`` may be called."""
        is_idle = not self._held and (self._task is None or self._task.done())
        return is_idle and not self._closed and self._clock() >= self._slow_until

    def run_now(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """What ``run_short`` does while ``is_free``."""
        began = self._clock()
        if began - self._starved_before[0] >= RECENT_S:  # the kernel is asked, which takes as long as a short job
            self._starved_before = (began, self._starved())
        starved = self._starved_before[1]
        try:
            return function(*arguments)
        finally:
            took = self._clock() - began
            if took > SLOW_S and (own := took - (self._starved() - starved)) > SLOW_S:
                self._slow_until = began + took + max(SLOW_PAUSE_S, SLOW_SHARE * own)

    async def _run(self) -> None:
        while self._waiting:
            jobs = [job for job in self._waiting if not job[1].cancelled()]
            self._waiting.clear()
            try:
                ended = await asyncio.get_running_loop().run_in_executor(self._thread, _ended, [job for job, _ in jobs])
            except RuntimeError as error:  # the thread is closed
                ended = [(None, error)] * len(jobs)
            for (_, future), (result, error_of_job) in zip(jobs, ended, strict=True):
                _settle(future, result, error_of_job)

    def close(self) -> None:
        """No more of them; the one that runs comes to its end."""
        self._closed = True
        self._own.close()
        self._thread.shutdown(wait=False)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Unless nobody waits for it any more."""
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _ended(functions: Sequence[Callable[[], Any]]) -> list[tuple[Any, Exception | None]]:
    """What each of them returns, or raises."""
    ended: list[tuple[Any, Exception | None]] = []
    for function in functions:
        try:
            ended.append((function(), None))
        except Exception as error:
            ended.append((None, error))
    return ended


class Changes:
    """Those who wait until something holds that may have changed."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Something has changed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until it holds; False: not in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not condition():
            if (left := deadline - loop.time()) <= 0:
                return False
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=left)
            finally:
                self._waiters.discard(waiter)
        return True


async def together(*parts: Coroutine[Any, Any, None], first: type[Exception]) -> None:
    """Run them until the first of them ends, and raise what ended it; an error of class *first* says more than what followed."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [e for e in ended if isinstance(e, Exception)]
    for error in sorted(errors, key=lambda e: not isinstance(e, first)):
        raise error
