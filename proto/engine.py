"""One cluster at one station: composes the C core, opening and the silence watch. Wiring, not logic.

The only class that the daemon and the simulator talk to. It knows no socket, no clock and no randomness: time comes in as monotonic
nanoseconds, bytes as PDUs without their Ethernet header, randomness as a seed. Every input returns the effects to carry out in order.

Two ways to drive it:

- *daemon*: the C data path feeds ``engine.core`` by pointer (``dp_turn``). After each turn call ``poll(now, status)``; it takes the
  control PDUs, serves the deadlines that are due and reports changes. Then flush the core's transmit queue.
- *simulator and tests*: ``on_frames(now, [(pdu, mac), ...])`` does the receiving as well. Then ``engine.core.deliver()`` and
  ``engine.core.tx()`` until both are empty.

In both, call again by ``next_deadline_ns()`` at the latest, and carry out the effects before anything of the transmit queue leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .core import Core
from .effects import Effect
from .timers import NEVER
from .wire import MESSAGE_MAX, MessageType

__all__ = ["NEVER", "Engine", "EngineConfig"]

MS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What one engine is told; checked by ``Engine``, which raises ``UsageError`` for what cannot be.

    ``_ns`` are durations in nanoseconds. Those of the whole cluster (schema, window, slots, first_seq) must be equal at all stations: put
    them into ``fingerprint``.
    """

    cluster: str
    """Name of the cluster; its CRC-32 is on the wire."""
    stations: int
    """n, 1..64."""
    station: int
    """Own number, 1..n."""
    window_frames: int = 128
    """W: own PDUs in flight at most, 1..32768."""
    slots: int = 0
    """Buffers per stream, a power of two >= 2 * window_frames; 0: the smallest such, at least 64."""
    frame_max: int = 1500
    """Bytes of the largest PDU a buffer holds (512..65535): the largest MTU this station will ever use."""
    message_max: int = MESSAGE_MAX
    """Bytes of the largest message, at most 16 MiB."""
    first_seq: int = 0
    """Number of the first PDU of every stream; other than 0 only to test the wrap."""
    faults: int = 0
    """Deliberate defects, ``enum zj_fault``; only for tests of the checkers."""
    seed: int = 0
    """For jitter."""
    host_name: str = ""
    """Told to the others, who name it in messages for people; cut to 64 bytes."""
    fingerprint: int = 0
    """CRC-32 of the options that must be equal in the whole cluster."""
    boot: int = 0
    """Random 64-bit number of this daemon's life: tells two daemons with one station number apart."""
    confirm_delay_ns: int = 200_000
    nak_delay_ns: int = 300_000
    nak_retry_ns: int = 2 * MS
    nak_retry_max_ns: int = 100 * MS
    poll_delay_ns: int = 3 * MS
    poll_delay_max_ns: int = 200 * MS
    retransmit_gap_ns: int = 1 * MS
    heartbeat_ns: int = 250 * MS
    """A CONFIRM goes out when nothing else has for so long."""
    silent_timeout_ns: int = 1000 * MS
    """Not heard for so long: silent. More than three heartbeats, or loss alone will do it."""
    progress_timeout_ns: int = 2000 * MS
    """Heard, but its acks stand still behind the others' for so long: deaf."""
    open_interval_ns: int = 100 * MS
    """OPEN is repeated so often while opening, and answered at most so often once open."""
    open_window_ns: int = 500 * MS
    """A station counts as present for so long after its last OPEN; a newcomer listens so long before it proposes."""


class Engine:
    """One cluster at one station. One thread; no method blocks; nothing a peer sends raises."""

    core: Core
    """The C core: ``deliver``, ``tx``, ``positions`` and, for the data path, its pointers."""

    def __init__(self, config: EngineConfig, *, incarnation: int, instance: int) -> None:
        """Reserve all memory.

        incarnation: number of this life, larger than any used before (the stored one + 1), 1..2**32 - 65537.
        instance: highest instance number stored, 0..2**32 - 65537.
        Raises UsageError for a configuration that cannot be, MemoryError.
        """

    def start(self, now: int) -> list[Effect]:
        """Begin to open. Call once, before anything else. The first effect is the Persist of this incarnation."""
        raise NotImplementedError

    def on_frames(self, now: int, frames: Sequence[tuple[bytes, bytes]]) -> list[Effect]:
        """Take (PDU, source MAC of 6 bytes) pairs in order of arrival, as one batch that leaves nothing unread; then as ``poll``."""
        raise NotImplementedError

    def poll(self, now: int, status: int) -> list[Effect]:
        """After the data path has run a turn that ended with ``status`` (``enum zj_status`` of its last ``zj_step``): take control PDUs,
        serve deadlines that are due, report changes. May fill the core's transmit queue. Calling it too often is harmless."""
        raise NotImplementedError

    def on_timeout(self, now: int) -> list[Effect]:
        """A deadline may be over. Early and repeated calls are harmless."""
        raise NotImplementedError

    def next_deadline_ns(self) -> int:
        """When to call ``on_timeout`` at the latest, or ``NEVER``. A pure read."""
        raise NotImplementedError

    def offer(self, now: int, group: int, client: int, type: int, data: bytes, need_ack: bool = False) -> bool:
        """Queue a message (simulation and tests; in the daemon the data path does it). Then call ``poll`` or ``on_frames`` and drain the
        core. False: not taken (whole) now, offer the very same message again after a later input. Raises UsageError if it is larger
        than message_max."""
        raise NotImplementedError

    def leave(self, now: int) -> list[Effect]:
        """Leave on purpose: queues CONFIRMs with BYE, drain them and stop. Nothing is delivered afterwards."""
        raise NotImplementedError

    def set_frame_max(self, now: int, frame_max: int) -> list[Effect]:
        """The interface now carries PDUs of so many bytes (its MTU)."""
        raise NotImplementedError

    def set_mac(self, mac: bytes) -> None:
        """The interface's own address (6 bytes), to name it and to know own frames that come back. May change."""
        raise NotImplementedError

    def status(self, now: int) -> dict[str, Any]:
        """What ``zenjun status`` needs of the protocol, JSON-able: see docs/status.md."""
        raise NotImplementedError


def message_type(type: int) -> MessageType:
    """For callers that keep plain ints."""
    return MessageType(type)
