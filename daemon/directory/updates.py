"""Updates under way: sent until their outcome is known, answered when they are done as their program wants it (rules W4, W5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from ...proto.service.directory.entries import Place
from ...proto.service.directory.messages import APPLIED, ONDISK, Id, Update, encode
from ...proto.service.directory.state import Outcome
from ..timing import Timing

FLAGS = {"memory": 0, "disk": ONDISK, "everywhere": APPLIED}


class Pending:
    """One update that a program waits for."""

    def __init__(self, update: Update, wait: str, data: bytes) -> None:
        self.update = update
        self.wait = wait
        self.data = data
        self.sent = False
        """It has been given to the group, so it may happen."""
        self.outcome: Outcome | None = None
        self.done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def settle(self) -> None:
        if self.outcome is not None and not self.done.done():
            self.done.set_result(self.outcome)


class Updates:
    """send: gives a message to the group, False: not now. What is lost is sent again under the same id, so it is done once.

    holders: stations that keep these names; most of their disks must have an update of ``wait`` disk.
    """

    def __init__(self, send: Callable[[bytes], bool], holders: Sequence[int]) -> None:
        self._send = send
        self._holders = holders
        self._quorum = len(holders) // 2 + 1
        self._pending: dict[Id, Pending] = {}
        self._by_data: dict[bytes, Pending] = {}
        self._placed: dict[Id, Pending] = {}
        """Those of them that have taken effect, and wait for other stations."""
        self._disks: dict[int, Place] = {}
        self._applied: dict[int, Place] = {}
        self.timings: dict[str, Timing] = {wait: Timing() for wait in FLAGS}
        """From a program's request to its answer, of what was done, by what it waits for."""

    def __len__(self) -> int:
        return len(self._pending)

    def start(self, update: Update, wait: str, data: bytes | None = None) -> Pending:
        """Send an update; one that is under way under this id already continues. data: its message, if that is made already."""
        found = self._pending.get(update.id)
        if found is None:
            found = Pending(update, wait, encode(update) if data is None else data)
            self._pending[update.id] = self._by_data[found.data] = found
            found.sent = self._send(found.data)
        return found

    def forget(self, pending: Pending) -> None:
        """No program waits for it any more; it may still take effect."""
        if self._pending.get(pending.update.id) is pending:
            del self._pending[pending.update.id]
            del self._by_data[pending.data]
            self._placed.pop(pending.update.id, None)

    def message(self, data: bytes) -> Update | None:
        """The update of an own message that has come back, so that it need not be decoded."""
        found = self._by_data.get(data)
        return found.update if found is not None else None

    def again(self) -> None:
        """What was under way may have been lost with the instance, or the connection."""
        for pending in self._pending.values():
            if pending.outcome is None:
                pending.sent |= self._send(pending.data)

    def on_outcome(self, update: Id, outcome: Outcome) -> None:
        pending = self._pending.get(update)
        if pending is not None and pending.outcome is None:
            pending.outcome = outcome
            if outcome.code or pending.wait == "memory":
                pending.settle()
            else:
                self._placed[update] = pending

    def doubt(self) -> list[tuple[Id, Place]]:
        """The state may have another past now: updates that wait for other stations have to be told their outcome again, for
        these stations' places say nothing of them. Returns them, and where they had taken effect."""
        found = [(update, pending.outcome.place) for update, pending in self._placed.items() if pending.outcome is not None]
        for pending in self._placed.values():
            pending.outcome = None
        self._placed.clear()
        return found

    def on_disk(self, station: int, place: Place) -> None:
        self._disks[station] = max(place, self._disks.get(station, place))

    def on_applied(self, station: int, place: Place) -> None:
        self._applied[station] = max(place, self._applied.get(station, place))

    def look(self, active: Collection[int]) -> None:
        """Answer what is done by now. active: stations with an active holder."""
        if not self._placed:
            return
        done_ids = []
        for update, pending in self._placed.items():
            assert pending.outcome is not None
            place = pending.outcome.place
            if pending.wait == "disk":
                done = sum(at >= place for at in self._disks.values()) >= self._quorum
            else:
                done = all(self._applied.get(station, (0, 0, 0)) >= place for station in active)
            if done:
                pending.settle()
                done_ids.append(update)
        for update in done_ids:
            del self._placed[update]

    def resend(self, update: Id) -> bool:
        """It has not happened; False: no program waits for it."""
        pending = self._pending.get(update)
        if pending is None or pending.outcome is not None:
            return False
        pending.sent |= self._send(pending.data)
        return True

    def abandon(self, update: Id) -> None:
        """No program waits for it any more, and it is not sent again."""
        if (pending := self._pending.get(update)) is not None:
            self.forget(pending)

    def under_way(self) -> list[Id]:
        """The updates without an outcome."""
        return [update for update, pending in self._pending.items() if pending.outcome is None]

    def missing(self, pending: Pending, active: Collection[int]) -> list[int]:
        """The stations that an update still waits for."""
        if pending.outcome is None:
            return []
        known = self._disks if pending.wait == "disk" else self._applied
        wanted = self._holders if pending.wait == "disk" else sorted(active)
        return [s for s in wanted if known.get(s, (0, 0, 0)) < pending.outcome.place]
