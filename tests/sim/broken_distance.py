"""Parts of the use of databases at a distance that break a rule each. The docstring of each begins with the rule
(docs/database.md)."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from typing import Any

from zenjun.proto.service.base import Effect, Source
from zenjun.proto.service.database.distance import Distance, Frame
from zenjun.proto.service.database.errand import Begin, Call, Errand, SessionLost, Steps, TransactionLost


class AnyZones(Distance):
    """Z1: a station serves, and uses, others whose zones are configured otherwise."""

    def refused(self) -> str:
        return ""

    def active(self, uuid: str) -> dict[int, Source]:
        return {k[0]: k for k, said in self.said.items() if k in self.members and uuid in said.databases}

    def _why_not(self, source: Source, frame: Frame) -> str:
        return "" if not frame.number else super()._why_not(source, frame)


class LowestPrimary(Distance):
    """Z3: the lowest station that is active is used, whatever its zone."""

    def nearest(self, uuid: str, sites: Container[int]) -> Source | None:
        return min(self.active(uuid).values(), default=None)


class ServesOn(Distance):
    """Z4: a session goes on at its station when the process of its program has gone."""

    def on_view(self, members: Collection[Source], joined: Collection[Source]) -> list[Effect]:
        kept, self.served = self.served, {}
        effects = super().on_view(members, joined)
        self.served = kept
        return effects


class GoesOnElsewhere(Errand):
    """Z4: a transaction whose session is lost goes on in another one."""

    def run(self, body: Mapping[str, Any]) -> Steps:
        self.has_run = False
        reply = yield from super().run(body)
        return reply


class LostIsNotCommitted(Errand):
    """Z5: a program that loses its session in a commit is told that nothing is committed."""

    def commit(self) -> Steps:
        txid, session, self.txid = self.txid, self.session, None
        assert txid is not None and session is not None
        try:
            reply: dict[str, Any] = yield Call(session, {"do": "commit", "txid": txid.encode().hex()})
        except SessionLost as lost:
            self.session = None
            raise TransactionLost(str(lost)) from None
        self._learn(reply)
        return reply


class LostIsCommitted(LostIsNotCommitted):
    """Z5: it is told that all is committed."""

    def commit(self) -> Steps:
        try:
            reply = yield from super().commit()
        except TransactionLost:
            reply = {"seen": list(self.snapshot)}
        return reply


class ForgetsSeen(Errand):
    """Z6: another session may show what is older."""

    def _present(self) -> Any:
        if self.session is None:
            session = yield Begin()
            yield Call(session, {**self._opening(), "seen": [0, 0]})
            self.session = session
        return self.session


def sends_on(machine: Any, began: Source) -> bool:
    """Z5: a site that was cut off goes on with a commit of a session as another service."""
    return True


PARTS: dict[str, dict[str, Any]] = {
    "SendsOn": {"may_send": sends_on},
    "AnyZones": {"distance": AnyZones},
    "LowestPrimary": {"distance": LowestPrimary},
    "ServesOn": {"distance": ServesOn},
    "GoesOnElsewhere": {"errand": GoesOnElsewhere},
    "LostIsNotCommitted": {"errand": LostIsNotCommitted},
    "LostIsCommitted": {"errand": LostIsCommitted},
    "ForgetsSeen": {"errand": ForgetsSeen},
}
"""Broken rule to what a world is made of in place of the honest parts."""
