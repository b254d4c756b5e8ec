"""How the simulations on an abstract order run their seeds: directory, seven steps, database, state transfer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from .violation import Violation

Run: TypeAlias = Callable[[int], Violation | None]
"""Runs one seed; what it has broken, or None."""


class World(Protocol):
    """One history. ``run`` raises Violation."""

    @property
    def plan(self) -> object: ...

    @property
    def trace(self) -> Sequence[str]: ...

    def run(self) -> None: ...


def violation_of(world: World, lines: int) -> Violation | None:
    """Run it. The violation has the plan and the last ``lines`` of the trace as notes."""
    try:
        world.run()
    except Violation as violation:
        violation.add_note(str(world.plan))
        for line in world.trace[-lines:]:
            violation.add_note(line)
        return violation
    return None


def run_seeds(simulate: Run, arguments: Sequence[str]) -> int:
    """The command ``FIRST COUNT``: many seeds, each that fails with its notes. Returns the exit code."""
    first, count = int(arguments[0]), int(arguments[1])
    failed = 0
    for seed in range(first, first + count):
        violation = simulate(seed)
        if violation is not None:
            failed += 1
            print(f"seed {seed}: {violation}\n  " + "\n  ".join(violation.__notes__), flush=True)
    print(f"{count} seeds from {first}: {failed} failed")
    return 1 if failed else 0
