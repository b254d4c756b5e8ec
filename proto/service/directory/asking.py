"""Look-ups between processes (rules L2 to L5), without I/O: which process is asked, which requests wait and for what, and which
answers may be kept.

A station that keeps no copy, a *terminal*, asks the manager of its own zone. That manager answers from its copy; or it asks the
manager of the zone that the name is in, and passes on the answer: two messages, or four. Messages may be lost with a process. The
terminal asks again after ``RETRY_NS``, or when another process has become the manager. Asking twice does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from .entries import NOWHERE, Place, Who
from .lookup import (
    Answer,
    Ask,
    AskMessage,
    Copy,
    Decision,
    Down,
    Forward,
    Here,
    NotHere,
    Wait,
    after_not_here,
    decide,
    manager_of,
)

RETRY_NS: Final = 1_000_000_000
"""Until an ASK without an answer is sent again."""
KEPT_MAX: Final = 20_000
"""Answers that a terminal keeps; and look-ups that a process has under way."""

Sent: TypeAlias = tuple[Who, AskMessage]
"""A message and who it is for."""


class Forwarded(NamedTuple):
    """A look-up that another process has been asked for. asker None: one of this process's own programs."""

    asker: Who | None
    ask: Ask
    to: Who
    at: Place
    """Place of the own copy when the request was first forwarded. A NOT_HERE may refer to that place, and report what this copy
    has learnt since."""
    sent_ns: int


class Waiting(NamedTuple):
    """A look-up that is decided when the own copy has reached ``place``."""

    place: Place
    asker: Who | None
    ask: Ask


class Desk:
    """The look-ups at a process that keeps a copy.

    copy: as ``lookup.decide`` reads it. answer: makes the answer from the copy. Every input returns the messages to be sent, in
    their order. ``answered``: answers to own programs' look-ups, by the request number; the caller takes them out.
    """

    decide: Callable[[Copy, Ask], Decision] = staticmethod(decide)
    after_not_here: Callable[[Copy, Ask, NotHere], Decision] = staticmethod(after_not_here)

    def __init__(self, copy: Copy, answer: Callable[[Ask], Answer]) -> None:
        self.copy = copy
        self.answered: dict[int, Answer] = {}
        self._answer = answer
        self._waiting: list[Waiting] = []
        self._forwarded: dict[int, Forwarded] = {}
        self._under_way: set[tuple[Who | None, int]] = set()
        """Asker and request of all these."""
        self._requests = 0

    def __len__(self) -> int:
        return len(self._under_way)

    def number(self) -> int:
        """A number for a look-up of an own program."""
        self._requests += 1
        return self._requests

    def look_up(self, ask: Ask, now_ns: int) -> list[Sent]:
        """A look-up of an own program begins, with a request of ``number``."""
        return list(self._carry_out(None, ask, self.decide(self.copy, ask), now_ns))

    def on_message(self, sender: Who, message: AskMessage, now_ns: int) -> list[Sent]:
        """A message for this process. What was not asked for is ignored."""
        match message:
            case Ask():
                if (sender, message.request) in self._under_way or len(self) >= KEPT_MAX:
                    return []  # it has been asked again, or will be
                return list(self._carry_out(sender, message, self.decide(self.copy, message), now_ns))
            case Answer(request):
                found = self._forwarded.get(request)
                if found is None or found.to != sender:
                    return []
                del self._forwarded[request]
                self._under_way.discard((found.asker, found.ask.request))
                return list(self._give(found.asker, message._replace(request=found.ask.request)))
            case NotHere(request):
                found = self._forwarded.get(request)
                if found is None or found.to != sender:
                    return []
                del self._forwarded[request]
                return list(self._carry_out(found.asker, found.ask, self.after_not_here(self.copy, found.ask, message), now_ns))

    def on_place(self, now_ns: int) -> list[Sent]:
        """The own copy has advanced: requests that waited for that may be decided, and managers may have changed."""
        out: list[Sent] = []
        waiting, self._waiting = self._waiting, []
        for w in waiting:
            if w.place > self.copy.place:
                self._waiting.append(w)
            else:
                out += self._carry_out(w.asker, w.ask, self.decide(self.copy, w.ask), now_ns)
        return out

    def on_time(self, now_ns: int) -> list[Sent]:
        """Decide again what has had no answer for ``RETRY_NS``. What goes to the same process goes under the same number: with a
        new one each time, an answer that takes longer than that would never be the one that is waited for."""
        out: list[Sent] = []
        for request, f in list(self._forwarded.items()):
            if f.sent_ns + RETRY_NS > now_ns:
                continue
            decision = self.decide(self.copy, f.ask)
            if isinstance(decision, Forward) and decision.to == f.to:
                self._forwarded[request] = f._replace(sent_ns=now_ns)
                out.append((f.to, decision.ask._replace(request=request)))
            else:
                del self._forwarded[request]
                out += self._carry_out(f.asker, f.ask, decision, now_ns)
        return out

    def drop(self, request: int) -> None:
        """The program that began this look-up waits for it no more."""
        self._under_way.discard((None, request))
        self._waiting = [w for w in self._waiting if w.asker is not None or w.ask.request != request]
        for number, f in list(self._forwarded.items()):
            if f.asker is None and f.ask.request == request:
                del self._forwarded[number]

    def _carry_out(self, asker: Who | None, ask: Ask, decision: Decision, now_ns: int) -> Iterator[Sent]:
        self._under_way.discard((asker, ask.request))
        match decision:
            case Here():
                yield from self._give(asker, self._answer(ask))
            case Down(zone):
                yield from self._give(asker, Answer(ask.request, self.copy.place, "zone-down", zone=zone))
            case Wait(place):
                # What is waited for is part of the question: deciding again without it would forward by what is known to be old.
                self._waiting.append(Waiting(place, asker, ask._replace(after=max(ask.after, place))))
                self._under_way.add((asker, ask.request))
            case NotHere():
                if asker is not None:
                    yield asker, decision
            case Forward(to, forwarded):
                number = self.number()
                self._forwarded[number] = Forwarded(asker, ask, to, self.copy.place, now_ns)
                self._under_way.add((asker, ask.request))
                yield to, forwarded._replace(request=number)

    def _give(self, asker: Who | None, answer: Answer) -> Iterator[Sent]:
        if asker is None:
            self.answered[answer.request] = answer
        else:
            yield asker, answer


class _Asked(NamedTuple):
    ask: Ask
    to: Who | None
    sent_ns: int


class Terminal:
    """The look-ups at a station without a copy. zone: the stations of its own zone that keep one, (): any may be asked.

    ``answered`` as in ``Desk``.
    """

    def __init__(self, zone: Iterable[int] = (), first: int = 0) -> None:
        """first: number before that of the first request."""
        self.answered: dict[int, Answer] = {}
        self._zone = frozenset(zone)
        self._active: tuple[Who, ...] = ()
        self._asked: dict[int, _Asked] = {}
        self._kept: dict[str, tuple[Answer, int]] = {}
        self._requests = first

    def __len__(self) -> int:
        return len(self._asked)

    def number(self) -> int:
        """A number for a request that is not a look-up."""
        self._requests += 1
        return self._requests

    def manager(self) -> Who | None:
        """The process to ask: the own zone's manager, or, if it has none, the lowest active holder of all (rule Z3)."""
        return manager_of(self._zone, self._active) or min(self._active, default=None)

    def kept(self, name: str, after: Place, now_ns: int) -> Answer | None:
        """An answer that may still be given: kept for no longer than its ttl, and not from before ``after``."""
        found = self._kept.get(name)
        if found is None or found[1] <= now_ns or found[0].place < after:
            return None
        return found[0]

    def look_up(self, name: str, after: Place, now_ns: int) -> tuple[int, list[Sent]]:
        """Ask for a name: the request's number, and the message. after: the place of the program's last answer."""
        ask = Ask(self.number(), name, NOWHERE, after)
        return ask.request, self._ask(ask, now_ns)

    def on_message(self, sender: Who, message: AskMessage, now_ns: int) -> None:
        """An answer; everything else is ignored."""
        if not isinstance(message, Answer):
            return
        asked = self._asked.get(message.request)
        if asked is None or asked.to != sender or message.place < asked.ask.after:
            return
        del self._asked[message.request]
        self.answered[message.request] = message
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        if not message.code and message.ttl:
            # By the time of the question: the answer was right at some moment since then.
            self._kept[asked.ask.name] = (message, asked.sent_ns + message.ttl * 1_000_000_000)
        else:
            self._kept.pop(asked.ask.name, None)

    def on_active(self, active: Iterable[Who], now_ns: int) -> list[Sent]:
        """The active holders of the group's view; what was asked of another manager is asked again."""
        self._active = tuple(active)
        manager = self.manager()
        return [s for asked in list(self._asked.values()) if asked.to != manager for s in self._ask(asked.ask, now_ns)]

    def on_time(self, now_ns: int) -> list[Sent]:
        """Ask again what has had no answer for ``RETRY_NS``."""
        late = [asked.ask for asked in self._asked.values() if asked.sent_ns + RETRY_NS <= now_ns]
        return [s for ask in late for s in self._ask(ask, now_ns)]

    def under_way(self) -> list[int]:
        """The look-ups that have no answer."""
        return list(self._asked)

    def drop(self, request: int) -> None:
        """No program waits for this look-up any more."""
        self._asked.pop(request, None)

    def forget(self) -> None:
        """This station was out of the order, or the cluster has opened again: no earlier answer counts."""
        self._kept.clear()

    def _ask(self, ask: Ask, now_ns: int) -> list[Sent]:
        to = self.manager()
        self._asked[ask.request] = _Asked(ask, to, now_ns)
        return [(to, ask)] if to is not None else []
