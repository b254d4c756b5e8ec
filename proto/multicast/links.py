"""Links: for each other station a core of two, which carries records to it and from it (rules L1 to L5 of docs/multicast.md).

Frames are the driver's part: it feeds ``Pair.core``, steps it, sends what it queues to the address that ``pair_to_group``
chooses, and calls ``take`` and ``pump`` after that. A message waits once for all links that it is for: their queues hold the
same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from ..core import Core, Stage
from ..engineconfig import EngineConfig, make_core
from ..envelope import pieces_carry
from ..wire import view_hash
from .codec import Encoded, decode
from .records import Record
from .sendqueue import SendQueue

if TYPE_CHECKING:
    from .fast import FastStation

WINDOW: Final = 64
SLOTS: Final = 128
"""Of a link, PDUs: those under way at most, and buffers of each end."""
MESSAGE_MAX: Final = 1024 * 1024
"""Bytes of the largest message of a program to such groups, and of all messages of an originator that are not finished."""
MESSAGE_EXTRA: Final = 256
"""Bytes of a record besides the program's message, at most."""


class LinkLife(NamedTuple):
    """Rule L3: the first instance that has both incarnations, and the two, the lower station first."""

    instance: int
    lower: tuple[int, int]
    higher: tuple[int, int]


class Pair:
    """This station's end of a link. MemoryError if its core does not fit."""

    def __init__(
        self, life: LinkLife, station: int, config: EngineConfig, frame_max: int, now: int, own_frame_max: int | None = None
    ) -> None:
        """config: the cluster's; frame_max: largest PDU that all members take, bytes; own_frame_max: largest that the interface
        carries, None: the configuration's."""
        low, high = life.lower[0], life.higher[0]
        self.life = life
        self.other, self.incarnation = life.higher if station == low else life.lower
        self.core: Core = make_core(
            replace(
                config,
                stations=2,
                station=1 if station == low else 2,
                window_frames=min(WINDOW, config.window_frames),
                slots=SLOTS,
                message_max=MESSAGE_MAX + MESSAGE_EXTRA,
            ),
            pair=(low, high),
        )
        incarnations = (life.lower[1], life.higher[1])
        self.core.open(now, life.instance, view_hash(life.instance, incarnations), incarnations, frame_max)
        if own_frame_max is not None:  # else what the other end takes would be built, whatever the interface carries
            self.core.set_frame_max(own_frame_max)
        self.index = 1 if station == low else 0
        """Of the other end in the core."""
        self._queue = SendQueue()
        self._since = now
        self.malformed = 0
        """Messages of the other station that are no records."""

    @property
    def queue_pointer(self) -> int:
        """Of the records that wait, for the data path."""
        return self._queue.pointer

    @property
    def waits(self) -> bool:
        """Records wait for room: call ``pump`` when the core has some."""
        return bool(self._queue)

    def send(self, record: Encoded) -> None:
        """Give the link a record, after those that it has."""
        self._queue.put(record)

    def take_from(self, machine: FastStation) -> None:
        """Give the link what the machine has for it, after those that it has."""
        machine.flush(self.other, self._queue)

    def pump(self, now: int) -> bool:
        """Give the core what it has room for. Returns whether it has taken something: step it then."""
        return self._queue.pump(self.core.handle, now)

    def give_to(self, machine: FastStation) -> None:
        """Give the machine the records that have been accepted, without a detour through Python."""
        self.malformed += machine.take_link(self.core.handle, self.index, self.other, self.incarnation)
        self.core.positions()

    def take(self) -> list[list[Record]]:
        """Records that have been accepted, by PDU."""
        arrived = [m for m in self.core.deliver() if m.src == self.index and m.stage == Stage.ACCEPTED]
        out: list[list[Record]] = []
        for _, messages in groupby(arrived, lambda m: m.clock):
            records: list[Record] = []
            for m in messages:
                record = decode(Encoded(m.type, m.group, m.client, m.data), self.other, self.incarnation)
                if record is None:
                    self.malformed += 1
                else:
                    records.append(record)
            out.append(records)
        self.core.positions()
        return out

    def restart(self, now: int) -> None:
        """The time for rule L4 begins anew."""
        self._since = now

    def is_stuck(self, now: int, timeout_ns: int) -> bool:
        """Rule L4: something is pending, and nothing was confirmed for this time."""
        moved = max(self._since, self._queue.since_ns, self.core.peer(self.index).ack_moved_ns)
        return (self.core.unstable or bool(self._queue)) and now - moved >= timeout_ns


class Links:
    """The links of one station in one instance and those that follow from it by votes."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.station = config.station
        self.frame_max = config.frame_max
        self.own_frame_max = config.frame_max
        """Largest PDU that the interface carries, bytes."""
        self.pairs: dict[int, Pair] = {}
        """Open links, by the other station."""
        self._since: dict[int, tuple[int, int]] = {}
        """Of each member its incarnation, and the first instance here that has it."""

    def begin(self, instance: int, incarnations: Sequence[int], frame_max: int) -> None:
        """An instance has started. incarnations: of stations 1..n, 0: no member."""
        self.end()
        self.frame_max = frame_max
        self.change(instance, incarnations)

    def change(self, instance: int, incarnations: Sequence[int]) -> list[int]:
        """A view event. Returns the stations whose links are closed by it."""
        lives = {station: life for station, life in enumerate(incarnations, 1) if life}
        self._since = {z: s for z, s in self._since.items() if lives.get(z) == s[0]}
        for station, life in lives.items():
            self._since.setdefault(station, (life, instance))
        closed = [z for z, pair in self.pairs.items() if lives.get(z) != pair.incarnation]
        for station in closed:
            del self.pairs[station]
        return closed

    def end(self) -> None:
        """The instance has ended: all links are closed."""
        self.pairs.clear()
        self._since.clear()

    def set_frame_max(self, frame_max: int) -> None:
        """The interface carries PDUs of this size in bytes from now on."""
        self.own_frame_max = min(frame_max, self.config.frame_max)
        for pair in self.pairs.values():
            pair.core.set_frame_max(self.own_frame_max)

    @property
    def too_long(self) -> bool:
        """Whether a PDU is so much larger than the interface carries now that it cannot be sent again, not in pieces either. A
        link has no gaps: only a new incarnation can help."""
        return any(pair.core.is_too_long(pieces_carry(pair.core.pdu_max)) for pair in self.pairs.values())

    def is_member(self, station: int) -> bool:
        return station in self._since

    def pair(self, station: int, now: int) -> Pair:
        """The link to a member, opened if it is not."""
        pair = self.pairs.get(station)
        if pair is None:
            (life, since), (own, own_since) = self._since[station], self._since[self.station]
            lower, higher = sorted(((station, life), (self.station, own)))
            link = LinkLife(max(since, own_since), lower, higher)
            pair = Pair(link, self.station, self.config, self.frame_max, now, self.own_frame_max)
            self.pairs[station] = pair
        return pair
