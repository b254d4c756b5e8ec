"""What really happened, as the simulator saw it: kept apart from the engines, and the only thing checkers look at."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Protocol

ORDERED, PREACK, ACK = 0, 1, 2
LEVEL_NAMES = ("ordered", "preack", "ack")


@dataclass(slots=True, eq=False)
class Message:
    """What one program handed to its station, and when the core took it."""

    station: int
    life: int
    client: int
    serial: int
    """Per (station, life, client), from 0."""
    group: int
    type: int
    need_ack: bool
    data: bytes
    instance: int = 0
    """In which the core took it whole; 0: not yet."""
    delivered_before: int = 0
    """Messages its station had delivered when the core took it: all of them happened before it."""

    def name(self) -> str:
        return f"s{self.station + 1}.{self.life}/c{self.client}#{self.serial}({len(self.data)} B)"


@dataclass(slots=True, frozen=True)
class Delivery:
    """One message as a station handed it out; ``data`` is its content."""

    src: int
    clock: int
    position: int
    index: int
    group: int
    client: int
    type: int
    data: bytes

    def name(self) -> str:
        return (
            f"[{self.position}.{self.index}] clock={self.clock & 0xFFFFFFFF} src={self.src + 1} client={self.client}"
            f" group={self.group:#x} {len(self.data)} B {self.data[:16].hex()}"
        )


@dataclass(slots=True, frozen=True)
class PeerView:
    """What a core says about one stream: numbers with 64 bits, counted from the instance's first number."""

    req: int
    base: int
    top: int
    min_al: int
    acked: int
    ordered: int


class CoreView(Protocol):
    """What checkers may ask a station's core; hand-made histories bring their own."""

    def peer(self, station: int) -> PeerView: ...

    def window_drops(self) -> int: ...

    def memory_bytes(self) -> int: ...

    def core_clock(self) -> int: ...


@dataclass(slots=True, eq=False)
class Instance:
    """One instance: members, the canonical order, and what everybody has really broadcast in it."""

    number: int
    incarnations: tuple[int, ...]
    first_seq: int
    order: list[Delivery] = field(default_factory=list)
    """The order, as the first station to get that far has it."""
    taken: dict[tuple[int, int], list[Message]] = field(default_factory=dict)
    """(src, client) → messages the source's core has taken, in order."""
    wanted: set[tuple[int, int, bytes]] = field(default_factory=set)
    """(src, client, content) of those whose sender waits for level ack."""
    pdus: list[tuple[int, int, int]] = field(default_factory=list)
    """(clock, src, seq) of every sequenced PDU broadcast, sorted: its place here is its position in the order."""
    top: list[int] = field(default_factory=list)
    """One past the highest number each source has broadcast."""
    ack_sent: list[list[int]] = field(default_factory=list)
    """[j][h]: largest A entry for h that j has broadcast."""
    pack_sent: list[list[int]] = field(default_factory=list)
    """[j][h]: largest P entry for h that j has broadcast."""

    def __post_init__(self) -> None:
        n = len(self.incarnations)
        self.top = [self.first_seq] * n
        self.ack_sent = [[self.first_seq] * n for _ in range(n)]
        self.pack_sent = [[self.first_seq] * n for _ in range(n)]

    def unwrap(self, seq: int) -> int:
        """64-bit number of a 32-bit one; an instance sends far fewer than 2**32 PDUs."""
        return self.first_seq + ((seq - self.first_seq) & 0xFFFFFFFF)

    def add_pdu(self, clock: int, src: int, seq: int) -> None:
        insort(self.pdus, (clock, src, seq))

    def messages(self) -> int:
        """Messages taken by all cores."""
        return sum(len(x) for x in self.taken.values())


@dataclass(slots=True, eq=False)
class View:
    """One station in one instance."""

    station: int
    life: int
    instance: Instance
    core: CoreView
    records: list[Delivery] = field(default_factory=list)
    """Delivered at level ordered."""
    positions: list[int] = field(default_factory=lambda: [0, 0, 0])
    """PDUs of the order that have reached each level."""
    released: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Messages a client of each level has been given: those whose position has been passed."""
    fenced: bool = False
    ended: bool = False
    """The station has left the instance, though it may still deliver and release what all who go on have."""


class Facts:
    """Everything about one run."""

    def __init__(self, stations: int, window: int, slots: int, first_seq: int, want_ack: bool = True) -> None:
        self.stations = stations
        self.window = window
        self.slots = slots
        self.first_seq = first_seq
        self.want_ack = want_ack
        """Somebody waits for level ack; without, cores may let that position jump ahead to keep their log short."""
        self.instances: dict[int, Instance] = {}
        self.views: list[View | None] = [None] * stations
        """The instance each station is in now."""
        self.disk: list[tuple[int, int]] = [(0, 0)] * stations
        """(incarnation, instance) each station has made durable."""
        self.life: list[int] = [0] * stations
        """Incarnation of each station's present daemon; 0: down."""
        self.fences: list[tuple[int, int]] = []
        """(station, position) of each digest alarm."""
