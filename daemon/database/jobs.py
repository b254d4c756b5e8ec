"""How the loop and the thread that has a database's copy work together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

SLOW_S: Final = 0.05
"""A short job that took so long has met a slow disk, or rows that take long: the next ones are the thread's."""
SLOW_PAUSE_S: Final = 2.0
"""For that long at least."""
SLOW_SHARE: Final = 100
"""And for so many times as long as it took: the loop stands still for one part in so many at most."""


class Jobs:
    """A thread that runs one function after another. What is given while it runs is run together afterwards: each change between
    threads takes as long as a transaction."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._clock = clock
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._held = 0
        """Calls of ``run`` whose results have not gone on."""
        self._slow_until = 0.0
        self._closed = False

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What it returns, or raises. Those who wait go on in the order of their calls."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((lambda: function(*arguments), future))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        self._held += 1
        try:
            return await future
        finally:
            self._held -= 1

    async def run_short(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``run``, for what takes less time than a change between threads: here and now, if the thread has nothing to do and all
        results have gone on, so that they do so in the order of the calls."""
        began = self._clock()
        is_idle = not self._held and (self._task is None or self._task.done())
        if not is_idle or self._closed or began < self._slow_until:
            return await self.run(function, *arguments)
        try:
            return function(*arguments)
        finally:
            took = self._clock() - began
            if took > SLOW_S:
                self._slow_until = began + took + max(SLOW_PAUSE_S, SLOW_SHARE * took)

    async def _run(self) -> None:
        while self._waiting:
            jobs = [job for job in self._waiting if not job[1].cancelled()]
            self._waiting.clear()
            try:
                ended = await asyncio.get_running_loop().run_in_executor(self._thread, _ended, [job for job, _ in jobs])
            except RuntimeError as error:  # the thread is closed
                ended = [(None, error)] * len(jobs)
            for (_, future), (result, error_of_job) in zip(jobs, ended, strict=True):
                if future.cancelled():
                    continue
                if error_of_job is None:
                    future.set_result(result)
                else:
                    future.set_exception(error_of_job)

    def close(self) -> None:
        """No more of them; the one that runs comes to its end."""
        self._closed = True
        self._thread.shutdown(wait=False)


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
