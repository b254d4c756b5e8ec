"""Look-ups between processes in the simulation: each keeps the entries of some zones only, and asks others (rules L1 to L3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zenjun.proto.service.directory.entries import Place, Who
from zenjun.proto.service.directory.lookup import (
    Ask,
    Common,
    Decision,
    Down,
    Forward,
    Here,
    NotHere,
    Wait,
    after_not_here,
    decide,
    manager_of,
)

from .violation import Violation

if TYPE_CHECKING:
    from .directory import Process, World


class ZonedCopy:
    """A process as one that keeps the zones whose turn it is at its station."""

    def __init__(self, world: World, p: Process) -> None:
        self.world = world
        self.p = p

    @property
    def place(self) -> Place:
        return self.p.state.place

    def common(self, name: str) -> Common | None:
        entry = self.p.state.entry(name)
        return Common(entry.zone, entry.version) if entry else None

    def _stations(self, zone: str) -> list[int]:
        order = ("default", "plant", "north")
        first = order.index(zone) if zone in order else 0
        return [s for s in self.world.clients if s % len(order) == first] or [1]

    def keeps(self, zone: str) -> bool:
        return self.p.who[0] in self._stations(zone)

    def manager(self, zone: str) -> Who | None:
        return manager_of(self._stations(zone), self.p.state.active())


@dataclass(slots=True)
class Task:
    """One look-up under way."""

    name: str
    at: Process
    ask: Ask
    origin: Process
    home_ask: Ask
    """As the origin decided last."""
    forwarded_at: Place | None = None
    """Place of the origin's copy when it forwarded this look-up last."""
    waiting: Place | None = None
    stages: tuple[Process, ...] = ()


class Asking:
    """All look-ups between processes."""

    def __init__(self, world: World, decider: Callable[[Any, Ask], Decision] | None = None) -> None:
        self.world = world
        self.decide = decider or decide
        self.tasks: list[Task] = []
        self.answered = self.forwarded = self.bounced = 0

    def ask(self, p: Process, name: str) -> None:
        """A look-up begins at a process."""
        if len(self.tasks) < 8:
            ask = Ask(len(self.tasks), name)
            self.tasks.append(Task(name, p, ask, p, ask))

    def step(self) -> None:
        """Each task makes one decision."""
        for task in list(self.tasks):
            if not (task.at.usable and task.origin.usable):
                self.tasks.remove(task)
                continue
            if task.waiting is not None:
                if task.at.state.place < task.waiting:
                    continue
                task.waiting = None
            self._decide(task, self.decide(ZonedCopy(self.world, task.at), task.ask))

    def _decide(self, task: Task, decision: Decision) -> None:
        match decision:
            case Here() | Down():
                if isinstance(decision, Here) and task.ask.after > task.at.state.place:
                    raise Violation("back", f"{task.at.who} answers {task.ask} at {task.at.state.place}")
                self.answered += 1
                self.tasks.remove(task)
            case Wait(place):
                task.waiting = place
            case Forward(to, ask):
                self.forwarded += 1
                if task.forwarded_at == task.at.state.place or task.at is not task.origin:
                    raise Violation("hops", f"{task.name} was forwarded twice by what is known at {task.forwarded_at}")
                task.forwarded_at = task.at.state.place
                target = self.world.processes.get(to[0])
                if target is None or target.who != to or not target.usable:
                    self.tasks.remove(task)  # it has gone: the caller asks again
                    return
                task.home_ask = ask._replace(hop=0)
                task.ask, task.at = ask, target
            case NotHere():
                self.bounced += 1
                task.at = task.origin
                task.ask = task.home_ask
                self._decide_after(task, decision)

    def _decide_after(self, task: Task, reply: NotHere) -> None:
        copy = ZonedCopy(self.world, task.at)
        if self.decide is decide:
            self._decide(task, after_not_here(copy, task.ask, reply))
        else:
            self._decide(task, self.decide(copy, task.ask))

    def on_rest(self) -> None:
        """All copies are equal: whatever is asked now is answered."""
        for _ in range(4):
            self.step()
        if self.tasks:
            raise Violation("hops", f"no answer for {self.tasks[0].name}: {self.tasks[0].ask}")
