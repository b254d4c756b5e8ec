"""Ends of links as the product has them: cores of two stations (``proto/multicast/links.py``), on the wire of ``lossy.py``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from zenjun.proto.core import Fault, Status
from zenjun.proto.engineconfig import EngineConfig
from zenjun.proto.multicast.codec import encode
from zenjun.proto.multicast.links import LinkLife, Pair
from zenjun.proto.multicast.records import Record
from zenjun.proto.wire import HEADER, Flag, Kind

from ...virtual.engines import CONFIG
from .link import MS, STUCK_NS, Frame, LinkEnd, LinkId
from .lossy import LossyWorld

LINK_CONFIG: Final[EngineConfig] = replace(
    CONFIG,
    stations=8,
    window_frames=8,
    frame_max=576,
    confirm_delay_ns=1 * MS,
    nak_delay_ns=MS // 2,
    nak_retry_ns=2 * MS,
    nak_retry_max_ns=8 * MS,
    poll_delay_ns=4 * MS,
    poll_delay_max_ns=32 * MS,
    retransmit_gap_ns=MS // 2,
)
MAC: Final = bytes(6)
NEVER: Final = 2**64 - 1


@dataclass(frozen=True)
class CoreFrame(Frame):
    """A frame of a core."""

    pdu: bytes = b""

    @property
    def asks(self) -> bool:
        return bool(self.pdu[HEADER.offset("flags")] & Flag.POLL)

    @property
    def is_nak(self) -> bool:
        return self.pdu[HEADER.offset("kind")] == Kind.NAK


class CoreEnd(LinkEnd):
    """One end, with the interface of the model's."""

    def __init__(self, link: LinkId, me: int) -> None:
        super().__init__(link, me)
        self.pair = Pair(LinkLife(*link), me, self.config(link), LINK_CONFIG.frame_max, 0)
        self.time = 0

    def config(self, link: LinkId) -> EngineConfig:
        return replace(LINK_CONFIG, station=self.me, seed=hash(link) & 0xFFFF)

    @property
    def deadline(self) -> int | None:
        core = self.pair.core
        due = min(core.nak_due_ns(), core.poll_due_ns(), core.confirm_due_ns())
        return None if due == NEVER else max(due, self.time)

    def is_stuck(self, now: int) -> bool:
        return self.pair.is_stuck(now, STUCK_NS)

    def send(self, now: int, records: Iterable[Record]) -> None:
        for record in records:
            self.pair.send(encode(record))
        self._turn(now)

    def on_frame(self, now: int, frame: Frame) -> list[tuple[Record, ...]]:
        assert isinstance(frame, CoreFrame)
        self.receive(now, frame)
        self._turn(now)
        return [tuple(records) for records in self.pair.take()]

    def receive(self, now: int, frame: CoreFrame) -> None:
        self.pair.core.pair_rx(now, frame.pdu, MAC, frame.to_group)

    def on_time(self, now: int) -> None:
        core = self.pair.core
        if core.nak_due_ns() <= now:
            core.nak(now)
        if core.poll_due_ns() <= now:
            core.step(now, False)
            core.poll(now)
        self._turn(now)

    def to_group(self, pdu: bytes) -> bool:
        return self.pair.core.pair_to_group(pdu)

    def _turn(self, now: int) -> None:
        """What the data path does in a turn."""
        self.time = now
        core = self.pair.core
        self._step(now)
        while self.pair.pump(now):
            if not self._step(now) & Status.ROOM:
                break
        for pdu in core.tx(now):
            self.out.append(CoreFrame(self.link, self.me, "", 0, 0, (), self.to_group(pdu), pdu))
        self._step(now)

    def _step(self, now: int) -> int:
        """What is still to be taken mostly has an answer, which confirms as well."""
        status = self.pair.core.step(now, False)
        return status if status & Status.DELIVER else self.pair.core.step(now, True)


class CoreWorld(LossyWorld):
    """Runs on cores."""

    end_class = CoreEnd


# ---- broken on purpose


class CoreNoPoll(CoreEnd):
    """L1: a sender without confirmations does not poll."""

    @property
    def deadline(self) -> int | None:
        core = self.pair.core
        due = min(core.nak_due_ns(), core.confirm_due_ns())
        return None if due == NEVER else max(due, self.time)


class CoreSkipsGaps(CoreEnd):
    """L1: a PDU after a gap is accepted, and what is missing is lost."""

    def config(self, link: LinkId) -> EngineConfig:
        return replace(super().config(link), faults=int(Fault.SKIP_GAP))


class CoreNoFallback(CoreEnd):
    """L2: once an address is known, frames go there whatever happens."""

    is_known = False

    def receive(self, now: int, frame: CoreFrame) -> None:
        super().receive(now, frame)
        self.is_known = True

    def to_group(self, pdu: bytes) -> bool:
        return not self.is_known


class CoreAnswersByAddress(CoreEnd):
    """L2, as designed: a station that receives a frame at the group address answers to the sender's address."""

    def receive(self, now: int, frame: CoreFrame) -> None:
        super().receive(now, replace(frame, to_group=False))


class CoreCalledForGood(CoreEnd):
    """L2, first form: who has been asked at the group address stays as long as the other one's frames come there."""

    is_called = False

    def receive(self, now: int, frame: CoreFrame) -> None:
        self.is_called = frame.to_group and (self.is_called or frame.asks)
        super().receive(now, frame)

    def to_group(self, pdu: bytes) -> bool:
        return self.is_called or super().to_group(pdu)


class CoreOneLife(CoreEnd):
    """L3: links of other incarnations look alike."""

    def __init__(self, link: LinkId, me: int) -> None:
        super().__init__(link._replace(instance=1, lower=(link.lower[0], 1), higher=(link.higher[0], 1)), me)


class CoreNeverStuck(CoreEnd):
    """L4: no station is removed because a link is blocked."""

    def is_stuck(self, now: int) -> bool:
        return False
