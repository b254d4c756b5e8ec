"""Messages between stations: records on the links, and broadcasts in the main order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .tables import EraNumber, Program


class Id(NamedTuple):
    """A message's name."""

    era: EraNumber
    origin: int
    number: int


@dataclass(frozen=True)
class Data:
    """A message."""

    id: Id
    program: Program
    order: str
    groups: tuple[int, ...]
    """The addressed groups, lowest first."""
    seen: int
    """The originator's clock when it sent."""
    content: bytes
    safe: bool = False
    """A program waits for level preack: HELD and STABLE are sent at once (rule S3)."""
    finished: int = 0
    """All messages of the originator up to this number are finished (rule S4)."""


@dataclass(frozen=True)
class Timed:
    """``count`` consecutive messages of an originator to the same groups, and a time for all of them (rule O8)."""

    era: EraNumber
    order: str
    origin: int
    number: int
    count: int
    time: int

    def ids(self) -> list[Id]:
        return [Id(self.era, self.origin, self.number + k) for k in range(self.count)]


class Report(Timed):
    """The time at which a proposer has received messages."""


class Decide(Timed):
    """The time that was decided."""


@dataclass(frozen=True)
class Held:
    """What the first ``k`` DECIDEs of this link were about is delivered here and at the followers (rule S1)."""

    era: EraNumber
    order: str
    k: int


@dataclass(frozen=True)
class Stable:
    """The first ``k`` messages are stable: of those decided on this link, or (``sent``) of those received from its other end."""

    era: EraNumber
    order: str
    k: int
    sent: bool = False


@dataclass(frozen=True)
class Relay:
    """A message whose originator is dead."""

    data: Data


Record = Data | Report | Decide | Held | Stable | Relay


def era_of(record: Record) -> EraNumber:
    if isinstance(record, Data):
        return record.id.era
    if isinstance(record, Relay):
        return record.data.id.era
    return record.era


@dataclass(frozen=True)
class Listed:
    """An unfinished message in a FLUSH."""

    id: Id
    program: Program
    order: str
    groups: tuple[int, ...]
    destinations: frozenset[int]
    held: bool
    time: int | None


@dataclass(frozen=True)
class Flush:
    """Rule E3: what a station knows of the eras before ``opens``."""

    opens: EraNumber
    station: int
    clock: int
    listed: tuple[Listed, ...]


@dataclass(frozen=True)
class Closed:
    """Rule E6: a station has delivered what the eras before ``opens`` left for it."""

    opens: EraNumber
    station: int
    digests: tuple[tuple[EraNumber, int, int], ...]
    """(era, group, digest of its messages in the order of their delivery) for the groups that the station was in."""


@dataclass(frozen=True)
class State:
    """What a station that was admitted needs to take part: sent by one that does, while no era before this one is open."""

    era: EraNumber
    clock: int
    part: tuple[tuple[int, int], ...]
    """All stations that take part from this place on, each with its incarnation."""


@dataclass(frozen=True)
class ViewEvent:
    """The members of the cluster from here on, each with its incarnation."""

    instance: int
    members: tuple[tuple[int, int], ...]
    waiting: tuple[int, ...] = ()
    """Of these the stations that do not know the groups yet: they take no part until a later place."""


@dataclass(frozen=True)
class Synced:
    """Stations that were admitted know the tables from here on. All of one place begin one era: who takes part in an era that
    another one follows at once would be awaited there, and knows nothing to say."""

    lives: tuple[tuple[int, int], ...]
    """Each with its incarnation."""


@dataclass(frozen=True)
class Joined:
    """A program joins a group; the first member fixes its order."""

    program: Program
    group: int
    order: str


@dataclass(frozen=True)
class Left:
    """A program leaves a group."""

    program: Program
    group: int


Entry = ViewEvent | Synced | Joined | Left | Flush | Closed
"""What has a place in the main order."""


@dataclass(frozen=True)
class Send:
    """Effect: a record for the link to a station."""

    to: int
    record: Record


@dataclass(frozen=True)
class Broadcast:
    """Effect: give this a place in the main order."""

    entry: Flush | Closed | State


@dataclass(frozen=True)
class Deliver:
    """Effect: a message for the programs of this station, at level ordered."""

    id: Id
    program: Program
    order: str
    groups: tuple[int, ...]
    content: bytes
    time: int


@dataclass(frozen=True)
class DeliverView:
    """Effect: the members of groups, at one place of each order."""

    era: EraNumber
    time: int


@dataclass(frozen=True)
class Release:
    """Effect: a delivered message has reached level preack. They come in the order of delivery."""

    id: Id
    order: str


@dataclass(frozen=True)
class Finished:
    """Effect: an own message is done at both levels."""

    id: Id


@dataclass(frozen=True)
class Opened:
    """Effect: an era is open here."""

    era: EraNumber


@dataclass(frozen=True)
class Fenced:
    """Effect: another member of a group has delivered something else."""

    text: str


@dataclass(frozen=True)
class Settled:
    """Effect: all that the eras before the present one have left is stable, and so are the views that begin it."""

    era: EraNumber


Effect = Send | Broadcast | Deliver | DeliverView | Release | Finished | Opened | Fenced | Settled
