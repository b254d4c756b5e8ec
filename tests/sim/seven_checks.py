"""What must hold of the seven steps: aims (a) to (d) of the paper, and property P9 of the directory's design."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zenjun.proto.service.directory.entries import NOWHERE, Place, Who
from zenjun.proto.service.directory.seventypes import Keep, Standing

from .violation import Violation

if TYPE_CHECKING:
    from .seven import History, Process, World

CHECKERS: Final = frozenset({
    "one", "served", "content", "equal", "locked", "fair", "kept", "stuck", "copy", "start", "wrong", "rest", "gone",
})  # fmt: skip


class Checks:
    """Looks at everything, from outside."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.content: dict[Place, History] = {}
        """What the directory was at each place."""
        self.served: Place = NOWHERE
        """The latest version that a member of the group has answered."""
        self.durable: set[str] = set()
        """Updates whose callers were told that they are on disk."""
        self.told: dict[str, set[Who]] = {}
        """Updates whose callers were told that they are done, and the processes that kept them and live."""
        self.keepers: dict[str, set[Who]] = {}

    # ---- as it goes

    def on_state(self, p: Process) -> None:
        """(b) All in step: a place has one content."""
        before = self.content.setdefault(p.place, p.history)
        if before != p.history:
            raise Violation("content", f"{p.who} has {p.history} at {p.place}, and another had {before}")

    def on_commit(self, p: Process, owner: Who) -> None:
        if len(set(p.history)) != len(p.history):
            raise Violation("content", f"{p.who} has done an update twice: {p.history}")
        self.on_state(p)

    def on_kept(self, p: Process, keep: Keep) -> None:
        if not keep.copying:
            self.keepers.setdefault(keep.data.decode(), set()).add(p.who)

    def on_locked(self, p: Process) -> None:
        """(d) Nobody starves: no attempt overtakes an older one of a manager that it knows."""
        for q in self._members():
            m = q.machine
            waits = m.standing in (Standing.ASKING, Standing.WAITING)
            known = p.machine.members.get(q.who) == m.life
            if q is not p and waits and m.active and known and q.age < p.age:
                raise Violation("fair", f"{p.who} has all locks before {q.who}, whose attempt is older")

    def on_sent(self, p: Process) -> None:
        """(a) One attempt in state 4."""
        for q in self._members():
            if q is not p and p.connected and q.machine.standing is Standing.SENT:
                raise Violation("one", f"{p.who} and {q.who} are in state 4")

    def on_member(self, p: Process) -> None:
        """(c) Who has failed is left out: no lock outlives its owner's view."""
        lock = p.machine.lock
        if lock is not None and lock.asking.owner != p.who and lock.asking.owner not in p.machine.members:
            raise Violation("locked", f"{p.who} is locked for {lock.asking.owner}, which is not in its view")

    def on_step(self) -> None:
        """(a) Nobody reads in between: an answer is of the latest version that anybody has answered."""
        for p in self._members():
            if not p.serves:
                continue
            if p.version < self.served:
                raise Violation("served", f"{p.who} answers as of {p.version}, somebody has answered as of {self.served}")
            self.served = p.version
        for p in self.world.live():
            if p.serves:
                self.on_state(p)

    def _members(self) -> list[Process]:
        """Those in the group that know of their present life."""
        return [p for p in self.world.here() if p.who in self.world.group and not p.out]

    def on_answer(self, p: Process, name: str, durable: bool) -> None:
        """A caller is told that its update is done."""
        if durable:
            self.durable.add(name)
        self.told[name] = set(self.keepers.get(name, ()))

    # ---- states that come from elsewhere

    def on_copy(self, p: Process, donor: Process) -> None:
        """(c) Back by a copy: of the state that the others have, while nobody changes it."""
        for q in self._members():
            if q.machine.active and q.place != donor.place:
                raise Violation("copy", f"{p.who} gets the state at {donor.place} of {donor.who}, {q.who} is at {q.place}")

    def on_crash(self, p: Process, power: bool) -> None:
        if power:
            for keepers in self.told.values():
                keepers.discard(p.who)
            for keepers in self.keepers.values():
                keepers.discard(p.who)

    def on_start(self, present: list[Process], states: list[History], place: Place) -> None:
        """What was told as done survives: on disk the end of all, else while one lives that has it."""
        if len(set(states)) != 1:
            raise Violation("start", f"the furthest states, at {place}, are {sorted(set(states))}")
        (state,) = set(states)
        here = {p.who for p in present}
        for name in self.durable:
            if name not in state:
                raise Violation("kept", f"{name} was on the disks of a quorum; START has {state}")
        for name, keepers in list(self.told.items()):
            if name in state:
                continue
            if keepers & here:
                raise Violation("kept", f"{name} was done, {sorted(keepers & here)} had it; START has {state}")
            del self.told[name]
        self.content.setdefault(place, state)

    def on_rest(self) -> None:
        """(d) Nobody blocks anybody: when nothing can happen any more, all are active, free and equal."""
        for p in self.world.live():
            m = p.machine
            if not m.active or m.lock is not None or m.standing is not Standing.IDLE or m.waiting or p.queue:
                raise Violation("stuck", f"{p.who}: active {m.active}, {m.standing}, lock {m.lock}, waits for {m.missing}")
            if m.place != p.place:
                raise Violation("equal", f"{p.who}: the machine is at {m.place}, the state at {p.place}")
        states = {(p.place, p.history) for p in self.world.live()}
        if len(states) != 1:
            raise Violation("equal", f"at the end: {sorted(states)}")
        ((_, state),) = states
        for name in self.durable | self.told.keys():
            if name not in state:
                raise Violation("kept", f"{name} was done, and is not there in the end")
