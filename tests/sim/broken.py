"""The agreement with rules broken on purpose, each as a subclass of what keeps it: ``engine("no_quorum", …)`` is an Engine to
test checkers with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from zenjun.proto.core import Vote
from zenjun.proto.engine import Engine, EngineConfig
from zenjun.proto.errors import invariant
from zenjun.proto.membership import Membership
from zenjun.proto.outcomes import Outcome, Recovering
from zenjun.proto.repeats import Repeats
from zenjun.proto.reports import Reports
from zenjun.proto.timers import NEVER
from zenjun.proto.votes import ChangeProposal


class CommitOnComplete(Membership):
    """M2: carries out what is complete, whether all have all votes or not."""

    def _is_decided(self, proposal: ChangeProposal) -> bool:
        return True


class LaterHidesEarlier(Membership):
    """M2: knows only its last vote."""

    def _remember_vote(self, proposal: ChangeProposal) -> None:
        self._own_votes = [proposal]


class ShrinkingVotes(Membership):
    """M2: a vote need not take in the earlier ones."""

    def _may_vote(self, proposal: ChangeProposal) -> bool:
        return True

    def _voted_joins(self) -> dict[int, int]:
        return {}


class OneVoteAtATime(Membership):
    """M2: judges each vote of a batch before it has noted the next."""

    def on_votes(self, now: int, votes: Sequence[Vote]) -> list[Outcome]:
        return [outcome for vote in votes for outcome in super(OneVoteAtATime, self).on_votes(now, [vote])]


class NoEqualise(Membership):
    """M1: votes need not agree on where a stream ends."""

    def _equalise(self, now: int) -> None:
        pass

    def _holds_streams(self, ends: Iterable[tuple[int, int]]) -> bool:
        return True


class ForgetPromise(Membership):
    """A stop that is seen makes it forget the joins it has voted for."""

    def _suspect(self, now: int, station: int, reason: str) -> bool:
        suspected = super()._suspect(now, station, reason)
        if suspected:
            self._own_votes = [p for p in self._own_votes if p.stop]
        return suspected


class KeepJoinOnStop(Membership):
    """A stop that is decided cancels no join."""

    def _cancel_joins_after_stop(self) -> None:
        pass


class NoQuorum(Membership):
    """M3: any number of stations may go on."""

    def _may_remove(self, staying: Iterable[int]) -> bool:
        return True


class NeverExpelled(Membership):
    """M6: ignores that the others go on without it."""

    def _removed_by(self) -> list[int]:
        return []

    def _leaves_out(self, state: int, trans: int) -> bool:
        return False


class IgnoreRestart(Membership):
    """M7."""

    def _is_restart(self, station: int, incarnation: int) -> bool:
        return False


class ForgetLater(Membership):
    """M7: does not heed that a joiner has asked again with a later incarnation than the one that joins."""

    def _restarted_while_joining(self) -> list[int]:
        return []


class HeedOldAsking(Membership):
    """M5: repeats votes to a member that has been heard in the instance."""

    def _has_spoken(self, station: int) -> bool:
        return False


class ReuseIssued(Membership):
    """M8: votes for a number that it has issued for an opening."""

    def _reuses_issued(self) -> bool:
        return False


class AdoptNever(Reports):
    """Believes only what it sees itself."""

    def due(self, now: int) -> list[int]:
        return []


class BelieveOne(Reports):
    """Believes a single accuser against what it hears."""

    def lone_accuser(self, station: int) -> int | None:
        return None


class ForgetDoubted(Reports):
    """Does not look again at the votes of a station that is heard again."""

    def set_unresponsive(self, now: int, stations: Iterable[int]) -> bool:
        before, self.unresponsive = self.unresponsive, frozenset(stations)
        return before != self.unresponsive


class DeafToClosed(Membership):
    """Holds it against a station that it takes nothing of a stream that it has closed."""

    def closed_by(self, index: int) -> frozenset[int]:
        return frozenset()


class ResendOwn(Repeats):
    """Repeats only its own vote to a joiner."""

    def helps(self, joiner: int, times: int, members: Sequence[int]) -> bool:
        return False


class NoReopen(Engine):
    """Opens no second instance."""

    def __init__(self, config: EngineConfig, *, incarnation: int, instance: int) -> None:
        super().__init__(config, incarnation=incarnation, instance=instance)
        self.opening._quorum = lambda stations: not self.last_instance and self.quorum(stations)


class BesideRivals(Engine):
    """M9."""

    heeds_rivals = False


class JudgeLate(Engine):
    """Blames others although it is late itself."""

    def _late_ns(self, config: EngineConfig) -> int:
        return NEVER


class WaitForMemory(Engine):
    """M10."""

    def __init__(self, config: EngineConfig, *, incarnation: int, instance: int) -> None:
        super().__init__(config, incarnation=incarnation, instance=instance)
        self.watch.starvation.timeout_ns = NEVER


class LoseQuorumLate(Engine):
    """M11."""

    def __init__(self, config: EngineConfig, *, incarnation: int, instance: int) -> None:
        super().__init__(replace(config, quorum_timeout_ns=0), incarnation=incarnation, instance=instance)


class ForgetHeard(Engine):
    """Does not heed restarts of which it has read before it started."""

    def _restarted(self, now: int) -> list[Recovering]:
        return []


def _name(part: type) -> str:
    """``NoQuorum`` is ``no_quorum``."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in part.__name__).lstrip("_")


def _broken(whole: type[Any]) -> dict[str, Any]:
    """The broken parts of this class, by name."""
    return {_name(part): part for part in whole.__subclasses__()}


_PARTS: Final = {"reports_class": (Reports, _broken(Reports)), "repeats_class": (Repeats, _broken(Repeats))}
"""What ``Membership`` is put together from: the attribute that says which class; the honest one; the broken ones."""
_OF_MEMBERSHIP: Final = _broken(Membership)
_OF_ENGINE: Final = _broken(Engine)
RULES: Final = frozenset({*_OF_MEMBERSHIP, *_OF_ENGINE, *(name for _, broken in _PARTS.values() for name in broken)})
"""Names of what can be broken, one by one or together."""


@cache
def membership(names: frozenset[str]) -> type[Membership]:
    """The agreement with these rules broken; the honest one for none."""
    bases: list[Any] = [_OF_MEMBERSHIP[name] for name in sorted(names & _OF_MEMBERSHIP.keys())]
    parts = {
        attribute: type("Broken" + honest.__name__, tuple(broken[name] for name in sorted(names & broken.keys())), {})
        for attribute, (honest, broken) in _PARTS.items()
        if names & broken.keys()
    }
    return type("BrokenMembership", tuple(bases) or (Membership,), parts) if bases or parts else Membership


@cache
def engine(names: frozenset[str]) -> type[Engine]:
    """The same of the whole engine."""
    invariant(names <= RULES, f"unknown rules: {sorted(names - RULES)}")
    parts: list[Any] = [_OF_ENGINE[name] for name in sorted(names & _OF_ENGINE.keys())]
    if not names:
        return Engine
    return type("BrokenEngine", tuple(parts) or (Engine,), {"membership_class": membership(names)})
