"""A hunt: profiles mixed at random, seeds kept that meet what none has met before, failures written down and made small."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

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
            seed, profile = head.split()
            case = Case(int(seed), "" if profile == "-" else profile)
            out.append((case, frozenset(filter(None, (n.strip() for n in news.split(";"))))))
    return out


def corpus_text(kept: Iterable[tuple[Case, frozenset[str]]]) -> str:
    """The inverse."""
    return _HEAD + "".join(f"{case.seed} {case.profile or '-'} | {'; '.join(sorted(news))}\n" for case, news in kept)


def distil(runs: Iterable[tuple[Case, frozenset[str]]], most: int = CORPUS_MAX) -> list[tuple[Case, frozenset[str]]]:
    """Few cases that together have met as much as possible: always the one next that adds most."""
    left, known, out = list(runs), set[str](), []
    while left and len(out) < most:
        best = max(left, key=lambda entry: len(entry[1] - known))
        news = best[1] - known
        if not news:
            break
        out.append((best[0], frozenset(news)))
        known |= news
        left.remove(best)
    return out


class Hunt:
    """Runs cases until its time is over."""

    def __init__(self, base: int, folder: Path, say: Callable[[str], None], start: Callable[[Case], Run] = run) -> None:
        """base: of the choice of cases, and first seed. Reports go into ``folder``, which is made. start: runs a case."""
        self._rng = random.Random(base)
        self._seed = base
        self._folder = folder
        self._say = say
        self._run = start
        self.kept: list[tuple[Case, frozenset[str]]] = []
        """With all that each has met."""
        self.known: set[str] = set()
        self.failed: list[Case] = []
        self.count = 0
        folder.mkdir(parents=True, exist_ok=True)

    def hunt(self, seconds: float, corpus: Path = CORPUS) -> None:
        """First the corpus, then what it leads to, for so long: the case that runs then is still finished, and no more."""
        until = time.monotonic() + seconds
        for case, _ in read_corpus(corpus):
            if time.monotonic() < until:
                self.try_case(case, until)
        while time.monotonic() < until:
            self.try_case(self.choose(), until)
        (self._folder / "corpus.txt").write_text(corpus_text(distil(self.kept)))

    def choose(self) -> Case:
        """A new seed, or a neighbour of a case that was worth keeping."""
        rng = self._rng
        if self.kept and rng.random() < 0.5:
            case, _ = rng.choice(self.kept[-CORPUS_MAX:])
            what = rng.randrange(3)
            if what == 0:
                return Case(case.seed, rng.choice((*PROFILES, *RARE)))
            if what == 1:
                return Case(self._next_seed(), case.profile)
            name = rng.choice(tuple(MORE))
            names = case.profile.split("+") if case.profile else []
            return Case(case.seed if name not in names else self._next_seed(), "+".join([*names, name][:3]))
        profile = "" if rng.random() < 0.3 else rng.choice((*PROFILES, *RARE))
        return Case(self._next_seed(), profile)

    def try_case(self, case: Case, until: float = float("inf")) -> None:
        """Run one; what it shows is kept or written down."""
        began = time.process_time()
        done = self._run(case)
        took = time.process_time() - began
        self.count += 1
        if done.checker:
            self._report(done, until)
            return
        news = done.met - self.known
        if news and took <= SECONDS_MAX:
            self.known |= news
            self.kept.append((case, done.met))
            self._say(f"{case.command()}: {len(news)} new: {'; '.join(sorted(news)[:4])}{' …' if len(news) > 4 else ''}")

    def _next_seed(self) -> int:
        self._seed += 1
        return self._seed

    def _report(self, done: Run, until: float) -> None:
        self.failed.append(done.case)
        name = f"{done.case.seed}-{done.case.profile.replace('+', '-') or 'drawn'}-{done.checker}.txt"
        path = self._folder / name
        text = f"{done.case.command()}\n\n{done.result.report}\n"
        path.write_text(text)  # at once: what is known does not wait for what makes it smaller
        self._say(f"FAILED {done.case.command()}: {done.result.violation}\n  report: {path}")
        small = shrink(done.case, max(0.0, min(SHRINK_SECONDS, until - time.monotonic())))
        if small.case != done.case:
            path.write_text(f"{small.case.command()}\n\n{small.result.report}\n\nfound as:\n{text}")
            self._say(f"  smaller: {small.case.command()}")
