"""Judges that break one rule each; a run must tell."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zenjun.proto.links import Effect, Judge, Say, State


class TrustOneWay(Judge):
    """J7: what is heard is up, whether or not this station is heard there."""

    def _is_told(self, now: int, link: int, station: int) -> bool:
        return True


class NoHold(Judge):
    """J11: a link that has fallen is used as soon as it is up."""

    def _hold_end(self, link: int) -> int:
        return 0


class LinkIsStation(Judge):
    """J2: a station that stops is a fall of every link."""

    def _has_fallen(self, link: int, down: Sequence[int]) -> bool:
        return True


class OldWords(Judge):
    """J7: what a station said once counts for ever, and so does that it was heard."""

    def _is_fresh(self, now: int, then: int) -> bool:
        return then > 0


class Chatter(Judge):
    """J6: LINKS leave with every step."""

    def _speak(self, now: int, is_open: Collection[int]) -> list[Effect]:
        return [Say(link, self._hears[link]) for link in self.config.links]


class NeverBack(Judge):
    """J11: a link that has fallen is never used again."""

    def _may_spread(self, now: int, link: int) -> bool:
        return super()._may_spread(now, link) and not self._falls[link]


class AnyMember(Judge):
    """J7: a link is used that is up to one member."""

    def _weigh(self, now: int, link: int, others: Sequence[int]) -> None:
        up = [s for s in others if self.states[link, s] is State.UP]
        super()._weigh(now, link, up or others)


BROKEN = {
    "truth": (TrustOneWay, OldWords, AnyMember),
    "held": (NoHold,),
    "stopped": (LinkIsStation,),
    "quiet": (Chatter,),
    "back": (NeverBack,),
}
"""By the check that must tell."""
