"""The settings of one engine, and their bounds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from .core import Core, Medium
from .errors import UsageError
from .openpdu import FRAME_MAX_MIN, INCARNATION_MAX, INSTANCE_MAX
from .votes import Quorum
from .wire import MESSAGE_MAX, STATIONS_MAX, cluster_id

MS: Final = 1_000_000
WINDOW_MAX: Final = 32768
SLOTS_MIN: Final = 64


DIRECT_FROM: Final = 4
"""``direct_from`` where it is wanted: with three members nothing is won."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of one engine; ``Engine`` checks them and raises ``UsageError`` for impossible ones.

    ``_ns`` are durations in nanoseconds. Those of the whole cluster (roster, window, slots, first_seq) must be equal at all
    stations: put them into ``fingerprint``.

    Settings that users choose have no default here: it is in the table of options (``daemon/config/options.py``), where tests
    find it, too.
    """

    cluster: str
    """Name of the cluster; its CRC-32 is on the wire."""
    stations: int
    """n, 1..64."""
    station: int
    """Own number, 1..n."""
    window_frames: int
    """W: own PDUs in flight at most, 1..32768."""
    slots: int = 0
    """Buffers per stream, a power of two >= 2 * window_frames; 0: the smallest such, at least 64."""
    frame_max: int
    """Bytes of the largest PDU a buffer holds (512..65535): the largest MTU this station will ever use."""
    message_max: int
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
    """Random 64-bit number of this run of the daemon: distinguishes two daemons with one station number."""
    confirm_delay_ns: int
    nak_delay_ns: int
    nak_retry_ns: int
    nak_retry_max_ns: int
    nak_even: int = 0
    """So many requests for a frame after the second one come ``nak_retry_ns`` after the one before; then the time doubles."""
    tagged: bool = False
    """PDUs come in frames whose tags have been looked at, and their checksums need not be."""
    poll_own: int = 0
    """Own PDUs put a poll off for so many ``poll_delay_ns`` at most, 0: for as long as they go on."""
    poll_delay_ns: int
    poll_delay_max_ns: int
    retransmit_gap_ns: int
    heartbeat_ns: int
    """Interval at which an idle station sends a CONFIRM."""
    fail_timeout_ns: int
    """Time without a frame after which a removal is proposed. More than two heartbeats; see ``probe_interval_ns``."""
    quorum_timeout_ns: int = 0
    """Time without a frame of so many members that the others are no quorum, after which this station says that there is none; 0:
    when they are suspected."""
    probe_interval_ns: int
    """Interval at which a member is polled that was not heard for 1.25 heartbeats, so that loss alone does not remove it."""
    adopt_timeout_ns: int
    """Time after which reports of other members about a station are accepted, even if it looks different from here."""
    give_up_timeout_ns: int
    """A stop that is not agreed on within this time, for lack of quorum or otherwise, makes this station leave the instance."""
    progress_timeout_ns: int
    """Time for which a member's acks may stay behind the others' without advancing: then it is not receiving (deaf), and is
    removed."""
    recover_interval_ns: int
    """Time after which RCV is repeated, then twice, then four times that, with jitter."""
    quorum: int = 0
    """Stations an instance needs at least; 0: the majority of the schema."""
    required: tuple[int, ...] = ()
    """Stations it cannot be without; with some, ``quorum`` may be less than the majority."""
    number: int = 0
    """Of the configuration (``changing.py``); it is in the fingerprint if it is not 0."""
    options: bytes = b""
    """What others are told of the configuration (``Claim.options``)."""
    vacant: tuple[int, ...] = ()
    """Numbers up to n that no station has."""
    both: tuple[Quorum, ...] = ()
    """A quorum by each of these, of the present configuration and of the former one, is needed instead: it is not decided."""
    outside: bool = False
    """This station is not of the roster."""
    medium: int = Medium.SWITCHED
    """``Medium``: how the segment orders frames."""
    direct_from: int = 0
    """Members from which on who owes a confirmation to one station only sends it to that one (rules C6 to C9); 0: never."""
    own_timeout_ns: int
    """Bus: time after which an own PDU that has not come back is lost."""
    bus_probe_ns: int = 3000 * MS
    """Bus: if the first own frames have not come back for this time, the medium is no bus, and this station stops."""
    answer_each: bool = False
    """Bus, to measure the TO paper's worst case: every reception is answered at once by a CONFIRM of its own."""
    open_interval_ns: int
    """Interval of OPENs while opening, and the shortest time between two answers to one once open."""
    open_window_ns: int
    """Time for which a station counts as present after its last OPEN, and for which a newcomer listens before it proposes."""


def slots_for(config: EngineConfig) -> int:
    """Buffers per stream: as configured, or the smallest power of two that holds two windows."""
    if config.slots:
        return config.slots
    return int(max(SLOTS_MIN, 1 << (2 * config.window_frames - 1).bit_length()))


def validate(config: EngineConfig, incarnation: int, instance: int) -> None:
    """UsageError that names the field and its bounds."""

    def within(name: str, value: int, low: int, high: int) -> None:
        if not low <= value <= high:
            raise UsageError(f"{name} is {value}; allowed: {low}..{high}")

    within("stations", config.stations, 1, STATIONS_MAX)
    within("station", config.station, 1, config.stations)
    within("window_frames", config.window_frames, 1, WINDOW_MAX)
    slots = slots_for(config)
    within("slots", slots, 2 * config.window_frames, 2 * WINDOW_MAX)
    if slots & (slots - 1):
        raise UsageError(f"slots is {slots}; it must be a power of two")
    within("frame_max", config.frame_max, FRAME_MAX_MIN, 65535)
    within("message_max", config.message_max, 1, MESSAGE_MAX)
    within("quorum", config.quorum, 0, config.stations)
    within("direct_from", config.direct_from, 0, STATIONS_MAX)
    for station in config.required:
        within("required station", station, 1, config.stations)
    roster = config.stations - len(config.vacant)
    if config.quorum and not config.required and config.quorum <= roster // 2 and not config.both:
        raise UsageError(f"a quorum of {config.quorum} of {roster} needs required stations: else there may be two")
    within("medium", config.medium, Medium.SWITCHED, Medium.BUS)
    within("incarnation", incarnation, 1, INCARNATION_MAX)
    within("instance", instance, 0, INSTANCE_MAX)
    for name in ("first_seq", "faults", "fingerprint"):
        within(name, getattr(config, name), 0, 2**32 - 1)
    for name in ("seed", "boot"):
        within(name, getattr(config, name), 0, 2**64 - 1)
    for field in fields(config):
        if field.name.endswith("_ns"):
            within(field.name, getattr(config, field.name), 0 if field.default == 0 else 1, 2**62)
    if config.heartbeat_ns >= config.fail_timeout_ns:
        raise UsageError("heartbeat_ns must be shorter than fail_timeout_ns")


def make_quorum(config: EngineConfig) -> Quorum:
    """As configured: by default the majority of the roster."""
    needed = config.quorum or (config.stations - len(config.vacant)) // 2 + 1
    return Quorum(config.stations, needed, config.required, frozenset(config.vacant), config.both, config.outside)


def make_core(config: EngineConfig, pair: tuple[int, int] = (0, 0)) -> Core:
    """The C core for this configuration. pair: of a link, the numbers of its two stations. MemoryError if it does not fit."""
    return Core(
        stations=config.stations,
        self_index=config.station - 1,
        cluster=cluster_id(config.cluster),
        window=config.window_frames,
        slots=slots_for(config),
        frame_max=config.frame_max,
        message_max=config.message_max,
        confirm_delay_ns=config.confirm_delay_ns,
        nak_delay_ns=config.nak_delay_ns,
        nak_retry_ns=config.nak_retry_ns,
        nak_retry_max_ns=config.nak_retry_max_ns,
        poll_delay_ns=config.poll_delay_ns,
        poll_delay_max_ns=config.poll_delay_max_ns,
        retransmit_gap_ns=config.retransmit_gap_ns,
        first_seq=config.first_seq,
        faults=config.faults,
        seed=config.seed,
        medium=int(config.medium),
        answer_each=int(config.answer_each),
        own_timeout_ns=config.own_timeout_ns,
        pair=pair,
        direct=config.direct_from,
        nak_even=config.nak_even,
        poll_own=config.poll_own,
        tagged=config.tagged,
    )
