"""Which sites there are, which sets of them may decide, and who opens the database when no site is active.

All members of the group follow the roll call alike, those that have no state yet included: it is a function of the group's views
and messages since the view that began it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..base import Source
from .messages import FORMAT, Disk, Position, Stand

NOTHING: Final = Position(0, 0, bytes(16))


def named(release: int) -> str:
    """A release of SQLite as people write it: 3054001 is 3.54.1."""
    return f"{release // 1_000_000}.{release // 1000 % 1000}.{release % 1000}"


class Sites(NamedTuple):
    """The stations that have a copy, and how many of them decide; equal at all."""

    stations: frozenset[int]
    required: frozenset[int] = frozenset()
    """Each of these stations is needed for every decision."""
    quorum: int = 0
    """With ``required``: the number of sites needed."""
    from_file: bool = False
    """The first rows come from a file that one of the sites has: without it none begins."""

    def sufficient(self, stations: Iterable[int]) -> bool:
        """More than half of the sites; or, with ``required``, all of these and the quorum. Two such sets have a station in
        common."""
        here = self.stations & set(stations)
        if self.required:
            return self.required <= here and len(here) >= self.quorum
        return 2 * len(here) > len(self.stations)


class Opening(NamedTuple):
    """How the database opens."""

    position: Position
    """The winner's."""
    uuid: bytes
    equal: frozenset[Source]
    """The sites that have exactly this position and this release, and are active from here on."""
    release: int
    """Of SQLite, in the epoch that begins."""


@dataclass(slots=True)
class Roll:
    """A roll call: each member reports what it has."""

    number: int = 0
    """Clock of the place where it began."""
    stands: dict[Source, Stand | None] = field(default_factory=dict)
    """By member; None: it has not reported yet."""

    def begin(self, number: int, members: Iterable[Source]) -> None:
        self.number = number
        self.stands = dict.fromkeys(sorted(members))

    def remove(self, members: Iterable[Source]) -> None:
        for member in members:
            self.stands.pop(member, None)

    def set_active(self, member: Source, epoch: int) -> None:
        """The member is active from here on, in this epoch."""
        if (stand := self.stands.get(member)) is not None:
            self.stands[member] = stand._replace(active=True, position=stand.position._replace(epoch=epoch))

    def is_present(self, epoch: int) -> bool:
        """The active sites are in this epoch. What a site has said of itself in an earlier one, on its way while the database was
        opened again, does not apply any more."""
        return any(s is not None and s.active and s.position.epoch == epoch for s in self.stands.values())

    def leave(self, member: Source, epoch: int) -> None:
        """The site was active in this epoch, and is no longer. A report from before an opening does not apply to the epoch that
        began there."""
        stand = self.stands.get(member)
        if stand is not None and stand.position.epoch == epoch:
            self.stands[member] = stand._replace(active=False)

    @property
    def is_over(self) -> bool:
        return bool(self.stands) and None not in self.stands.values()

    def unlike(self, release: int) -> str:
        """Why a site with this release and our format cannot become active now; empty: it can."""
        for member in self.active():
            stand = self.stands[member]
            if stand is not None and stand.format != FORMAT:
                return f"the database has format {stand.format}; this release of zenjun-db knows {FORMAT}"
            if stand is not None and not self.fits(release, stand.release):
                return f"the active sites have SQLite {named(stand.release)}; here it is {named(release)}"
        return ""

    def active(self) -> list[Source]:
        return [member for member, stand in self.stands.items() if stand is not None and stand.active]

    def is_whole(self, sites: Sites) -> bool:
        """All sites are members, and each one knows what it has."""
        return sites.stations == {m[0] for m, s in self.stands.items() if s is not None and s.disk is not Disk.UNABLE}

    def opening(self, sites: Sites) -> Opening | None:
        """How the present sites open the database; None: they cannot. The roll call is complete and no site is active.

        The greatest epoch wins, then the greatest version: a sufficient set has every acknowledged version, and shares a site
        with this set; and a site that has been in a later epoch has everything acknowledged in earlier ones. A blank site may
        have forgotten what it has acknowledged, so it counts only while no site has a state; or if all sites are there and those
        that are not blank have version 0, which nobody has opened yet.
        """
        stands = {m: s for m, s in self.stands.items() if s is not None and m[0] in sites.stations}
        speakers = {m: s for m, s in stands.items() if s.disk is Disk.COPY}
        if self.is_unopened(stands, sites):
            return self._of(speakers)
        if not speakers and not sites.from_file:
            speakers = stands if all(s.disk is Disk.BLANK for s in stands.values()) else {}
            return self._of(speakers) if sites.sufficient(m[0] for m in speakers) else None
        if not sites.sufficient(m[0] for m in speakers) or len({s.uuid for s in speakers.values()}) > 1:
            return None
        position = self.winner(speakers)
        return self._of({m: s for m, s in speakers.items() if s.position == position})

    def is_unopened(self, stands: dict[Source, Stand], sites: Sites) -> bool:
        """All sites are there, one at least has version 0 of a database, and no site anything later."""
        kinds = {(s.disk, s.position[:2]) for s in stands.values()}
        alike = len({s.position for s in stands.values() if s.disk is Disk.COPY}) == 1
        return alike and self.is_whole(sites) and kinds <= {(Disk.COPY, (0, 0)), (Disk.BLANK, (0, 0))}

    def forced(self, sites: Sites) -> Opening | None:
        """The opening that an operator wants: by the sites that are there and have something, however few they are."""
        speakers = {m: s for m, s in self.stands.items() if s is not None and m[0] in sites.stations and s.disk is Disk.COPY}
        if not speakers or len({s.uuid for s in speakers.values()}) > 1:
            return None
        position = self.winner(speakers)
        return self._of({m: s for m, s in speakers.items() if s.position == position})

    def _of(self, equal: dict[Source, Stand]) -> Opening:
        """The opening by sites with one position: those of the release that most of them have, or the lowest site."""
        counts = Counter(stand.release for stand in equal.values())
        release = max((stand.release for _, stand in sorted(equal.items())), key=lambda release: counts[release])
        same = {m: s for m, s in equal.items() if self.fits(release, s.release)}
        return Opening(same[min(same)].position, same[min(same)].uuid, frozenset(same), release)

    @staticmethod
    def fits(release: int, other: int) -> bool:
        """Sites with these releases of SQLite decide alike."""
        return release == other

    @staticmethod
    def winner(speakers: dict[Source, Stand]) -> Position:
        """The greatest epoch and version, and of these the digest that most sites have; if two have as many, the lowest
        site's."""
        best = max(s.position[:2] for s in speakers.values())
        among = {m: s.position for m, s in sorted(speakers.items()) if s.position[:2] == best}
        counts = Counter(among.values())
        return max(among.values(), key=lambda position: counts[position])
