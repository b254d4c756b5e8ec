"""A hunt: profiles mixed at random, seeds kept that meet what none has met before, failures written down and made small."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

from .case import Case, Run, run
from .options import PROFILES
from .rare import MORE, RARE
from .shrink import shrink

CORPUS: Final = Path(__file__).with_name("corpus.txt")
CORPUS_MAX: Final = 40
"""Cases in a corpus: CI replays all of them."""
SECONDS_MAX: Final = 2.5
"""Processor time of a case that may be kept."""
SHRINK_SECONDS: Final = 90.0
"""For one failure."""
_HEAD: Final = (
    "# Cases that meet what none before them has met (tests/sim/coverage.py): seed, changes of the options (-: as drawn), what\n"
    "# was new. Made by: python -m tests.sim --hunt MINUTES. A test replays them.\n"
)


def read_corpus(path: Path = CORPUS) -> list[tuple[Case, frozenset[str]]]:
    """Cases, and what each met first when it was written down. No such file: none."""
    out = []
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.strip() and not line.startswith("#"):
            head, _, news = line.partition("|")
            seed, profile, *medium = head.split()
            case = Case(int(seed), "" if profile == "-" else profile, bus=medium == ["bus"])
            out.append((case, frozenset(filter(None, (n.strip() for n in news.split(";"))))))
    return out


def corpus_text(kept: Iterable[tuple[Case, frozenset[str]]]) -> str:
    """The inverse."""
    lines = (
        f"{case.seed} {case.profile or '-'}{' bus' if case.bus else ''} | {'; '.join(sorted(news))}\n" for case, news in kept
    )
    return _HEAD + "".join(lines)


def distil(runs: Iterable[tuple[Case, frozenset[str]]], most: int = CORPUS_MAX) -> list[tuple[Case, frozenset[str]]]:
    """Few cases that together have met as much as possible: always the one next that adds most."""
    left, known = list(runs), set[str]()
    out: list[tuple[Case, frozenset[str]]] = []
    while left and len(out) < most:
        best = max(left, key=lambda entry: len(entry[1] - known))
        news = best[1] - known
        if not news:
            break
        out.append((best[0], frozenset(news)))
        known |= news
        left.remove(best)
    return out


def timed(start: Callable[[Case], Run], case: Case) -> tuple[Run, float]:
    """The run, and the processor time it took."""
    began = time.process_time()
    return start(case), time.process_time() - began


class Hunt:
    """Runs cases until its time is over."""

    def __init__(
        self, base: int, folder: Path, say: Callable[[str], None], start: Callable[[Case], Run] = run, bus: bool = False
    ) -> None:
        """base: of the choice of cases, and first seed. Reports go into ``folder``, which is made. start: runs a case. bus: the
        medium of all of them."""
        self._rng = random.Random(base)
        self._seed = base
        self._folder = folder
        self._say = say
        self._run = start
        self._bus = bus
        self.kept: list[tuple[Case, frozenset[str]]] = []
        """With all that each has met."""
        self.known: set[str] = set()
        self.failed: list[Case] = []
        self.count = 0
        folder.mkdir(parents=True, exist_ok=True)

    def hunt(self, seconds: float, corpus: Path = CORPUS, jobs: int = 1) -> None:
        """First the corpus, then what it leads to, for so long, on so many processes: the cases that run then are still finished,
        and no more. With one process the same base tries the same cases."""
        until = time.monotonic() + seconds
        waiting = [case for case, _ in read_corpus(corpus) if case.bus == self._bus][::-1]
        if jobs > 1:
            self._hunt_together(waiting, until, jobs)
        while jobs <= 1 and time.monotonic() < until:
            self.try_case(waiting.pop() if waiting else self.choose(), until)
        (self._folder / "corpus.txt").write_text(corpus_text(distil(self.kept)))

    def _hunt_together(self, waiting: list[Case], until: float, jobs: int) -> None:
        """A case, or a failure to be made small, for each process; what they show is put together here."""
        with ProcessPoolExecutor(jobs) as pool:
            running: set[Future[tuple[Run, float]]] = set()
            shrinking: dict[Future[Run], Run] = {}
            while running or shrinking or time.monotonic() < until:
                while len(running) + len(shrinking) < jobs and time.monotonic() < until:
                    case = waiting.pop() if waiting else self.choose()
                    running.add(pool.submit(timed, self._run, case))
                under_way: list[Future[Any]] = [*running, *shrinking]
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    if future in shrinking:
                        self._smaller(shrinking.pop(future), future.result())
                        continue
                    running.discard(future)
                    done, took = future.result()
                    if self._note(done, took):
                        shrinking[pool.submit(_shrink, self._run, done.case, until)] = done

    def choose(self) -> Case:
        """A new seed, or a neighbour of a case that was worth keeping."""
        rng = self._rng
        if self.kept and rng.random() < 0.5:
            case, _ = rng.choice(self.kept[-CORPUS_MAX:])
            what = rng.randrange(3)
            if what == 0:
                return self._case(case.seed, rng.choice((*PROFILES, *RARE)))
            if what == 1:
                return self._case(self._next_seed(), case.profile)
            name = rng.choice(tuple(MORE))
            names = case.profile.split("+") if case.profile else []
            return self._case(case.seed if name not in names else self._next_seed(), "+".join([*names, name][:3]))
        profile = "" if rng.random() < 0.3 else rng.choice((*PROFILES, *RARE))
        return self._case(self._next_seed(), profile)

    def try_case(self, case: Case, until: float = float("inf")) -> None:
        """Run one; what it shows is kept or written down."""
        done, took = timed(self._run, case)
        if self._note(done, took):
            self._smaller(done, _shrink(self._run, done.case, until))

    def _case(self, seed: int, profile: str) -> Case:
        return Case(seed, profile, bus=self._bus)

    def _note(self, done: Run, took: float) -> bool:
        """True: it has failed, which is written down at once: what is known does not wait for what makes it smaller."""
        self.count += 1
        if done.checker:
            self.failed.append(done.case)
            self._path(done).write_text(_report(done))
            self._say(f"FAILED {done.case.command()}: {done.result.violation}\n  report: {self._path(done)}")
            return True
        news = done.met - self.known
        if news and took <= SECONDS_MAX:
            self.known |= news
            self.kept.append((done.case, done.met))
            more = f"{len(news)} new: {'; '.join(sorted(news)[:4])}{' …' if len(news) > 4 else ''}"
            self._say(f"{done.case.command()}: {more}")
        return False

    def _smaller(self, done: Run, small: Run) -> None:
        if small.case != done.case:
            self._path(done).write_text(f"{_report(small)}\nfound as:\n{_report(done)}")
            self._say(f"  smaller: {small.case.command()}")

    def _path(self, done: Run) -> Path:
        case = done.case
        profile = case.profile.replace("+", "-") or "drawn"
        return self._folder / f"{'bus-' if case.bus else ''}{case.seed}-{profile}-{done.checker}.txt"

    def _next_seed(self) -> int:
        self._seed += 1
        return self._seed


def _report(done: Run) -> str:
    return f"{done.case.command()}\n\n{done.result.report}\n"


def _shrink(start: Callable[[Case], Run], case: Case, until: float) -> Run:
    return shrink(case, max(0.0, min(SHRINK_SECONDS, until - time.monotonic())), start=start)
