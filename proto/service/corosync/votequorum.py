"""Votes, and whether the ring has quorum: a function of the rings so far, of what was set, and of corosync.conf.

Every member of a ring comes to the same: it begins with the words that all gave in the round, and hears the same since. Rules Y11
to Y13 of docs/corosync.md; what corosync's exec/votequorum.c does is kept wherever a program can tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...wire import STATIONS_MAX
from .messages import Votes, Word
from .results import Answer, Changed, Code, Meeting

TWO: Final = 2
EXPECTED_MAX: Final = 0xFFFFFFFF
VOTES_MAX: Final = EXPECTED_MAX // STATIONS_MAX
"""Of a node: messages and libraries have 32 bits for the votes of all."""
NEEDS_TWO: Final = {
    "last_man_standing": "quorum would go down while nodes leave, but a ring of several nodes has a majority of stations",
    "allow_downscale": "quorum would go down while nodes leave, but a ring of several nodes has a majority of stations",
    "quorum.device": "the device's vote would make a minority quorate, but nodes without a majority of stations are alone",
}
"""What is refused, and why."""


@dataclass(frozen=True, slots=True)
class Config:
    """The section ``quorum`` and the nodelist's votes, as every node has them."""

    votes: dict[int, int]
    """By node id."""
    expected: int = 0
    """``expected_votes``; 0: the sum of all votes."""
    two_node: bool = False
    wait_for_all: bool | None = None
    """None: as ``two_node``."""
    auto_tie_breaker: bool = False
    last_man_standing: bool = False
    allow_downscale: bool = False
    device: bool = False

    @property
    def waits_for_all(self) -> bool:
        return self.two_node if self.wait_for_all is None else self.wait_for_all

    def problems(self) -> list[tuple[str, str]]:
        """What cannot be: option of corosync.conf, and the reason. A stand-in with any of these does not start."""
        wanted = {
            "last_man_standing": self.last_man_standing,
            "allow_downscale": self.allow_downscale,
            "quorum.device": self.device,
        }
        found = [(name, NEEDS_TWO[name]) for name, is_on in wanted.items() if is_on]
        several = len(self.votes) != TWO
        if self.auto_tie_breaker and several:
            found.append(("auto_tie_breaker", "half of the stations are alone, each for itself; it works with two nodes"))
        if self.two_node and several:
            found.append(("two_node", f"the nodelist has {len(self.votes)} nodes"))
        if self.two_node and self.auto_tie_breaker:
            found.append(("two_node", "auto_tie_breaker decides by node id which of the two goes on: choose one of them"))
        return found


class Votequorum:
    """Quorum at one node."""

    def __init__(self, node: int, config: Config) -> None:
        self.node, self.config = node, config
        self.members: tuple[int, ...] = (node,)
        self.votes: dict[int, int] = {node: config.votes[node]}
        """Of the nodes that have been seen."""
        self.expected = config.expected or sum(config.votes.values())
        self.quorate = False
        self.waiting = config.waits_for_all
        """For all votes at once, or for a member that has quorum."""
        self._lowest: int | None = None
        """The lowest node of the last quorate ring."""

    # ---- what others may ask

    def word(self) -> Word:
        return Word(self.votes[self.node], self.expected, self.quorate)

    @property
    def total(self) -> int:
        return sum(self.votes[node] for node in self.members)

    @property
    def quorum(self) -> int:
        """Votes that are needed."""
        return self._needed(self.expected, self.total)

    def known(self) -> tuple[tuple[int, bool], ...]:
        """The nodes that have been seen, and whether they are in the ring."""
        return tuple((node, node in self.members) for node in sorted(self.votes))

    def _needed(self, expected: int, total: int) -> int:
        if self.config.two_node and len(self.members) <= TWO:
            return 1
        return max(expected, total) // 2 + 1

    # ---- inputs

    def on_changed(self, changed: Changed) -> None:
        """A ring begins."""
        if changed.meeting is not None:
            self._meet(changed.meeting)
        self.members = changed.members
        self._decide()

    def _meet(self, meeting: Meeting) -> None:
        """Rings come together. Expected votes are those of a part that has quorum, or the most that anybody expects."""
        if meeting.before and self.node not in meeting.before:
            self._take_over(meeting)
        parts = [Word(0, self.expected, self.quorate)] if meeting.before else []
        parts += meeting.alone.values()
        quorate = [word.expected for word in parts if word.quorate]
        self.expected = max(quorate or [word.expected for word in parts])
        if quorate:
            self.waiting = False
        self.votes = _votes(meeting.before) | self.votes | _votes(meeting.alone)

    def _take_over(self, meeting: Meeting) -> None:
        """What the ring that lets this node in has come to: as of the round's place, and what was set since."""
        own = self.votes[self.node]
        self.members = tuple(sorted(meeting.before))
        self.votes |= _votes(meeting.before)
        first = next(iter(meeting.before.values()))
        self.expected, self.quorate = first.expected, first.quorate
        self.waiting = self.config.waits_for_all and not first.quorate
        for votes in meeting.since:
            self.on_votes(votes)
        self.votes[self.node] = own

    def on_votes(self, votes: Votes) -> None:
        """Votes were set, at their place. More than there is room for, which a stand-in of before lets pass, are none."""
        if votes.node == 0:
            self.expected = votes.number
        elif votes.node in self.votes and votes.number <= VOTES_MAX:
            self.votes[votes.node] = votes.number
        self._decide()

    def _decide(self) -> None:
        self.expected = max(self.expected, self.total)
        if self.waiting and self.total < self.expected:
            self.quorate = False
            return
        self.quorate = self.total >= self.quorum or self._breaks_tie()
        if self.quorate:
            self._lowest = self.members[0]
        self.waiting = self.config.waits_for_all and not self.quorate

    def _breaks_tie(self) -> bool:
        """One of two nodes, with half of the votes: the one that was the lower one when there was quorum last. A ring of both
        does not ask who that was, for who has started since does not know."""
        is_half = len(self.members) == 1 and self.total * 2 == self.expected
        return self.config.auto_tie_breaker and is_half and self._lowest == self.node

    # ---- what programs ask

    def set_expected(self, handle: int, expected: int) -> tuple[Answer, Votes | None]:
        """votequorum_setexpected: the answer, and what to tell all. Fewer than are present cannot be expected."""
        if expected < self.total:
            return Answer(handle, Code.INVALID_PARAM), None
        return self._may_set(handle, Votes(0, expected), self._needed(expected, self.total), self.total)

    def set_votes(self, handle: int, node: int, votes: int) -> tuple[Answer, Votes | None]:
        """votequorum_setvotes; node 0: this one."""
        node = node or self.node
        if node not in self.votes:
            return Answer(handle, Code.NAME_NOT_FOUND), None
        total = self.total + (votes - self.votes[node] if node in self.members else 0)
        return self._may_set(handle, Votes(node, votes), self._needed(self.expected, total), total)

    def _may_set(self, handle: int, votes: Votes, needed: int, total: int) -> tuple[Answer, Votes | None]:
        none = votes.node == 0 and votes.number == 0
        most = EXPECTED_MAX if votes.node == 0 else VOTES_MAX
        if none or not total // 2 <= needed <= total or votes.number > most:
            return Answer(handle, Code.INVALID_PARAM), None
        return Answer(handle, Code.OK), votes


def _votes(words: dict[int, Word]) -> dict[int, int]:
    return {node: min(word.votes, VOTES_MAX) for node, word in words.items()}
