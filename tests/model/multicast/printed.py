"""How the paper determines tokens (section 3.2), join by join: letters h, i and j of docs/multicast.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final


class Tokens:
    """The members of each group, the token hosts, and the super token of each meta-group.

    A joiner is given a token. It is compared with each token host of the group it joins and of those it was in. Two or more
    token hosts in a group form a meta-group, with the super token at the joiner; later ones enter it.
    """

    def __init__(self) -> None:
        self.groups: dict[int, set[int]] = {}
        self.hosts: set[int] = set()
        self.supers: dict[int, int] = {}

    def groups_of(self, station: int) -> set[int]:
        return {g for g, stations in self.groups.items() if station in stations}

    def join(self, station: int, group: int) -> None:
        self.groups.setdefault(group, set()).add(station)
        self.hosts.add(station)
        near = {z for g in self.groups_of(station) for z in self.groups[g]} & self.hosts - {station}
        for holder in sorted(near):
            joiner_loses, holder_loses = self._compare(self.groups_of(station), self.groups_of(holder))
            self.hosts -= {station} if joiner_loses else set()
            self.hosts -= {holder} if holder_loses else set()
        for g in self.groups_of(station):
            if len(self.hosts & self.groups[g]) >= 2:
                self.supers.setdefault(g, station)

    def _compare(self, joiner: set[int], holder: set[int]) -> tuple[bool, bool]:
        """Whether the joiner, and whether the holder loses its token."""
        raise NotImplementedError

    def leave(self, station: int, group: int) -> None:
        """Or stop: the paper has no rule, so nothing happens to the tokens but that this host does not act any more."""
        self.groups[group].discard(station)
        if not self.groups_of(station):
            self.hosts.discard(station)


class BothLose(Tokens):
    """T2: (h) read literally: a station whose set is contained in another's loses the token, so of two equal sets both do."""

    def _compare(self, joiner: set[int], holder: set[int]) -> tuple[bool, bool]:
        return joiner <= holder, holder <= joiner


class JoinerWins(Tokens):
    """T2, T3: (i) of two equal ones the holder loses."""

    def _compare(self, joiner: set[int], holder: set[int]) -> tuple[bool, bool]:
        return joiner < holder, holder <= joiner


class HolderWins(Tokens):
    """T2, T3: (i) of two equal ones the joiner loses."""

    def _compare(self, joiner: set[int], holder: set[int]) -> tuple[bool, bool]:
        return joiner <= holder, holder < joiner


class NoLeave(HolderWins):
    """T1: (j) the same, with programs that leave."""


PRINTED: Final = (BothLose, JoinerWins, HolderWins, NoLeave)


def play(tokens: Tokens, moves: Iterable[str]) -> None:
    """Moves are as in "h3+2": station 3 joins group 2; "h3-2": it leaves."""
    for move in moves:
        station, sign, group = int(move[1]), move[2], int(move[3])
        if sign == "+":
            tokens.join(station, group)
        else:
            tokens.leave(station, group)
