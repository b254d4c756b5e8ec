"""One run by what makes it: its medium, a seed, changes of its options by name, single options. As text, and run."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from . import bus
from .cluster import Result, Simulation, finish
from .collector import once
from .coverage import Watch
from .options import Faults, Options
from .rare import CHANGES, apply
from .violation import Violation

_NAMES: Final = {f.name for f in fields(Options)} | {f"faults.{f.name}" for f in fields(Faults)}


@dataclass(frozen=True)
class Case:
    """``settings``: pairs (option, value) on top of the profile's."""

    seed: int
    profile: str = ""
    """Names of changes (``rare.CHANGES``) with ``+`` between them."""
    settings: tuple[tuple[str, Any], ...] = ()
    bus: bool = False
    """On a bus; what a change of the options asks of it that it cannot do is left out."""

    def set(self, **values: Any) -> Case:
        """With these options as well; ``__`` stands for the dot of ``faults.loss``."""
        named = {name.replace("__", "."): value for name, value in values.items()}
        return replace(self, settings=tuple({**dict(self.settings), **named}.items()))

    def command(self) -> str:
        """What replays it."""
        out = f"python -m tests.sim{' --bus' if self.bus else ''} --seed {self.seed}"
        if self.profile:
            out += f" --profile {self.profile}"
        return out + "".join(f" --set {name}={str(value).replace(' ', '')}" for name, value in self.settings)

    def change(self) -> Callable[[Options], Options]:
        change = apply(self.profile, dict(self.settings))
        return change if not self.bus else lambda o: bus.possible(change(o))

    def simulation(self, only: tuple[str, ...] = ()) -> Simulation:
        """``only`` is of the switched medium."""
        if self.bus:
            return bus.BusSimulation(self.seed, change=self.change())
        return Simulation(self.seed, only=only, change=self.change())


def parse_settings(items: list[str]) -> tuple[tuple[str, Any], ...]:
    """``name=value`` each. Raises ``ValueError`` that names what is wrong."""
    out = []
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or name not in _NAMES:
            raise ValueError(f"{item}: no such option")
        try:
            out.append((name, ast.literal_eval(text)))
        except (ValueError, SyntaxError):
            out.append((name, text))
    return tuple(out)


def check_profile(names: str) -> None:
    """Raises ``ValueError`` if one is unknown."""
    if unknown := [name for name in names.split("+") if name and name not in CHANGES]:
        raise ValueError(f"no such profile: {', '.join(unknown)}; there are {', '.join(CHANGES)}")


@dataclass(frozen=True)
class Run:
    """A case that was run: how it ended, and what it has met."""

    case: Case
    result: Result | bus.Result
    met: frozenset[str]

    @property
    def checker(self) -> str:
        """Which has failed; empty: none."""
        return self.result.violation.checker if isinstance(self.result.violation, Violation) else ""


def run(case: Case, only: tuple[str, ...] = ()) -> Run:
    """Run it to its end."""
    return once(lambda: _run(case, only))


def _run(case: Case, only: tuple[str, ...]) -> Run:
    sim = case.simulation(only)
    watch = Watch(sim)
    result = bus.finish_bus(sim) if isinstance(sim, bus.BusSimulation) else finish(sim)
    return Run(case, result, watch.met())
