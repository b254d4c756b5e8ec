"""A zone at a station that does not keep it (rules Z2, Z3, L2, L5, W5, M1, M3), without I/O.

The station is a member of the zone's group like the holders, but without a state. It sends updates and ends of leases to the
group itself, so they have a place like any other, and its leases are those of a member. For the outcome of an update, the
standing of its leases and the addresses of a name it asks a holder, at the place that its own messages have reached.

Which holders are active it knows from HOLDING alone, which they repeat when somebody joins. After a START the state knows only
members that have a state, so this one announces itself by HOLDING(no) to each holder that becomes active.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from .asking import RETRY_NS, Terminal
from .entries import NOWHERE, Place, Who, parse_place
from .lookup import Answer, Ask
from .messages import ENDS_MAX, Due, End, Holding, Id, Next, Update, decode, encode
from .operations import Row
from .questions import LEASES_MAX, Query, Question, Reply
from .state import Outcome

GRACE_NS: Final = 2 * RETRY_NS
"""Time for which holders that are here may be without an active one before the zone counts as down."""


def at(station: int) -> Who:
    """The process of a station, as messages between processes name it."""
    return (station, 0)


class _Asked(NamedTuple):
    query: Query
    to: Who | None
    sent_ns: int


class Remote:
    """The zone at this station. The caller passes in what comes, then takes all that is in the lists.

    to_group: messages for the zone's group. to_holder: station, and a message of ``zenjun.dir.ask``. answered: by number; None:
    the zone is down. outcomes: of updates. again: updates that have not happened and are to be sent again. news: of leases,
    whether the name has the lease, and its version. register: leases that the directory does not know any more.
    """

    def __init__(self, zone: str, holders: Iterable[int], me: Who, first: int = 0) -> None:
        self.zone = zone
        self.holders = frozenset(holders)
        self.me = me
        self.terminal = self._terminal(first)
        self.place: Place = NOWHERE
        """Place of the last message or view."""
        self.members: frozenset[Who] = frozenset()
        self.active: frozenset[Who] = frozenset()
        self.to_group: list[bytes] = []
        self.to_holder: list[tuple[int, Question]] = []
        self.answered: dict[int, Answer | Reply | None] = {}
        self.outcomes: list[tuple[Id, Outcome]] = []
        self.again: list[Id] = []
        self.news: list[tuple[int, bool, Place]] = []
        self.register: list[int] = []
        self._queries: dict[int, _Asked] = {}
        self._outcomes_asked: dict[int, Id] = {}
        self._updates: dict[Id, Place] = {}
        """Updates of this station without an outcome, and where they have come; NOWHERE: not yet."""
        self._leases: dict[int, bool | None] = {}
        """Whether the name has the lease, as last heard; None: it is to be said in any case."""
        self._leases_asked: dict[int, tuple[int, ...]] = {}
        self._look = False
        """Leases may stand differently now."""
        self._registering: dict[Id, int] = {}
        self._given_up: set[int] = set()
        """Leases that were refused when they were registered again."""
        self._vacant_ns: int | None = None
        """Since when no holder is active."""

    def _terminal(self, first: int) -> Terminal:
        return Terminal(self.holders, first)

    # ---- standing

    @property
    def joined(self) -> bool:
        return self.me in self.members

    def is_down(self, now_ns: int) -> bool:
        """Rule Z3: no holder is active, nor about to be."""
        if not self.joined or self.active:
            return False
        if not any(station in self.holders for station, _ in self.members):
            return True
        return self._vacant_ns is not None and self._vacant_ns + GRACE_NS <= now_ns

    def up(self) -> list[int]:
        """Stations with a directory process."""
        return sorted({station for station, _ in self.members})

    def __len__(self) -> int:
        return len(self.terminal) + len(self._queries)

    # ---- the zone's group

    def on_view(self, now_ns: int, place: Place, members: Iterable[Who], joined: Iterable[Who]) -> None:
        """A view of the group."""
        new = set(joined)
        self.place = max(self.place, place)
        self.members = frozenset(members)
        if self.me in new:
            self._rejoin()
        self._set_active(now_ns, {who for who in self.active if who in self.members and who not in new})
        self._look = True

    def _rejoin(self) -> None:
        """This station comes into the order, perhaps into another one: nothing that was known counts."""
        self.active = frozenset()
        self._vacant_ns = None
        self.terminal.forget()
        self._given_up.clear()
        self._updates = dict.fromkeys(self._updates, NOWHERE)
        self.to_group.append(encode(Holding(False)))

    def on_message(self, now_ns: int, place: Place, sender: Who, data: bytes) -> None:
        """A message of the group, at its place."""
        self.place = max(self.place, place)
        message = decode(data)
        if isinstance(message, Holding):
            if message.active:
                if sender not in self.active:
                    self._on_new_holder(now_ns, sender)
            else:
                self._set_active(now_ns, self.active - {sender})
        elif isinstance(message, Update):
            self._look = True
            if message.id in self._updates:
                self._updates[message.id] = place
                self._ask_outcome(now_ns, message.id)
        elif isinstance(message, End | Due | Next):
            self._look = True

    def _on_new_holder(self, now_ns: int, who: Who) -> None:
        self._announce()
        self._given_up.clear()
        self._look = True
        self._set_active(now_ns, self.active | {who})
        for update, place in self._updates.items():
            if place != NOWHERE and update not in self._outcomes_asked.values():
                self._ask_outcome(now_ns, update)

    def _announce(self) -> None:
        """The holder may have begun by a START, whose state knows no members without a state."""
        self.to_group.append(encode(Holding(False)))

    def _set_active(self, now_ns: int, active: Iterable[Who]) -> None:
        self.active = frozenset(active)
        if self.active:
            self._vacant_ns = None
        elif self._vacant_ns is None:
            self._vacant_ns = now_ns
        self._emit(self.terminal.on_active([at(station) for station, _ in self.active], now_ns))
        manager = self.terminal.manager()
        for number, asked in list(self._queries.items()):
            if asked.to != manager:
                self._send(number, asked.query, now_ns)
        self._look_down(now_ns)

    def _look_down(self, now_ns: int) -> None:
        """Programs do not wait for a zone that is down. What an update came to is asked when it is back."""
        if not self.is_down(now_ns):
            return
        for number in self.terminal.under_way():
            self.terminal.drop(number)
            self.answered[number] = None
        for number in list(self._queries):
            if number not in self._outcomes_asked and number not in self._leases_asked:
                del self._queries[number]
                self.answered[number] = None

    # ---- questions

    def kept(self, name: str, after: Place, now_ns: int) -> Answer | None:
        """An answer that may still be given (``Terminal.kept``)."""
        return self.terminal.kept(name, after, now_ns)

    def look_up(self, name: str, after: Place, now_ns: int) -> int:
        """Ask for a name; returns the number of the answer. after: place of the program's last answer of this zone."""
        number, sent = self.terminal.look_up(name, after, now_ns)
        self._emit(sent)
        self._look_down(now_ns)
        return number

    def ask(self, kind: str, body: Row, after: Place, now_ns: int) -> int:
        """Another question, by its kind (``questions.KINDS``); returns the number of the answer."""
        number = self._ask(kind, body, after, now_ns)
        self._look_down(now_ns)
        return number

    def drop(self, number: int) -> None:
        """No program waits for this answer any more."""
        self.terminal.drop(number)
        self._queries.pop(number, None)
        self.answered.pop(number, None)

    def on_answer(self, now_ns: int, station: int, message: object) -> None:
        """A message of ``zenjun.dir.ask`` for this station."""
        if isinstance(message, Answer):
            self.terminal.on_message(at(station), message, now_ns)
            self.answered.update(self.terminal.answered)
            self.terminal.answered.clear()
        elif isinstance(message, Reply):
            asked = self._queries.get(message.request)
            if asked is None or asked.to != at(station) or message.place < asked.query.after:
                return
            del self._queries[message.request]
            with contextlib.suppress(ValueError, TypeError, KeyError):  # what a station of another release may say
                self._take_reply(message)

    def _take_reply(self, message: Reply) -> None:
        if (update := self._outcomes_asked.pop(message.request, None)) is not None:
            self._on_outcome(update, message.body)
        elif (leases := self._leases_asked.pop(message.request, None)) is not None:
            self._on_leases(leases, message.body)
        else:
            self.answered[message.request] = message

    def on_time(self, now_ns: int) -> None:
        """Ask again what has had no answer; look at leases if they may stand differently."""
        self._emit(self.terminal.on_time(now_ns))
        for number, asked in list(self._queries.items()):
            if asked.sent_ns + RETRY_NS <= now_ns:
                self._send(number, asked.query, now_ns)
        self._look_down(now_ns)
        if self._look and self._leases and self.active and not self._leases_asked:
            self._look = False
            self._ask_leases(now_ns)

    def _ask(self, kind: str, body: Row, after: Place, now_ns: int) -> int:
        number = self.terminal.number()
        self._send(number, Query(number, self.zone, kind, body, after), now_ns)
        return number

    def _send(self, number: int, query: Query, now_ns: int) -> None:
        to = self.terminal.manager()
        self._queries[number] = _Asked(query, to, now_ns)
        if to is not None:
            self.to_holder.append((to[0], query))

    def _emit(self, sent: Iterable[tuple[Who, object]]) -> None:
        for to, message in sent:
            if isinstance(message, Ask):
                self.to_holder.append((to[0], message))

    # ---- updates

    def track(self, update: Id) -> None:
        """An update that this station sends to the group: its outcome is wanted."""
        self._updates.setdefault(update, NOWHERE)

    def ask_again(self, now_ns: int, update: Id, place: Place) -> None:
        """Ask again for an outcome that was known: the holders may have another past since."""
        self._updates[update] = place
        self._ask_outcome(now_ns, update)

    def untrack(self, update: Id) -> None:
        """No program waits for its outcome any more."""
        self._updates.pop(update, None)
        if self._registering.pop(update, None) is not None:
            self._look = True

    def _ask_outcome(self, now_ns: int, update: Id) -> None:
        number = self._ask("outcome", {"c": update.client, "n": update.counter}, self._updates[update], now_ns)
        self._outcomes_asked[number] = update

    def _on_outcome(self, update: Id, body: Row) -> None:
        if update not in self._updates:
            return
        outcome = read_outcome(body)
        if outcome is None:
            # The copy has reached its place and does not know it: that place was in a past which a START has ended (rule W5).
            self._updates[update] = NOWHERE
            self.again.append(update)
            return
        del self._updates[update]
        number = self._registering.pop(update, None)
        if number is not None:
            self._look = True
            if outcome.code:
                self._given_up.add(number)
        self.outcomes.append((update, outcome))

    # ---- leases

    def hold(self, number: int, held: bool) -> None:
        """A lease of a program here is registered."""
        self._leases[number] = held
        self._look = True

    def holds(self, number: int) -> bool:
        return bool(self._leases.get(number))

    def doubt(self) -> None:
        """This station was without quorum: its programs are told how their leases stand."""
        self._leases = dict.fromkeys(self._leases)
        self._look = True

    def end(self, numbers: Iterable[int]) -> list[Id]:
        """Leases have ended: their programs are gone, or have given them back. Returns updates that need not be sent again: else
        they would register a lease behind its end. The end itself is lost only with this membership or the state, and the lease
        with it."""
        ended = set(numbers)
        for number in ended:
            self._leases.pop(number, None)
        if self.joined:
            wanted = sorted(ended)
            self.to_group += [encode(End(tuple(wanted[i : i + ENDS_MAX]))) for i in range(0, len(wanted), ENDS_MAX)]
        over = [update for update, number in self._registering.items() if number in ended]
        for update in over:
            self.untrack(update)
        return over

    def registers(self, update: Id, number: int) -> None:
        """This update registers a lease again."""
        self.track(update)
        self._registering[update] = number

    def _ask_leases(self, now_ns: int) -> None:
        numbers = sorted(self._leases)
        for i in range(0, len(numbers), LEASES_MAX):
            some = tuple(numbers[i : i + LEASES_MAX])
            number = self._ask("leases", {"w": list(self.me), "l": list(some)}, self.place, now_ns)
            self._leases_asked[number] = some

    def _on_leases(self, asked: tuple[int, ...], body: Row) -> None:
        standing = {number: (known, held, version) for number, known, held, version in read_leases(body)}
        under_way = set(self._registering.values())
        for number in asked:
            known, held, version = standing.get(number, (False, False, NOWHERE))
            if number not in self._leases or number in under_way:
                continue
            if self._leases[number] != held:
                self._leases[number] = held
                self.news.append((number, held, version))
            if not known and number not in self._given_up:
                self.register.append(number)


def read_outcome(body: Row) -> Outcome | None:
    """The outcome in an answer; None: the copy knows no such update."""
    if "p" not in body:
        return None
    return Outcome(parse_place(str(body["p"])), str(body.get("c", "")), int(body.get("i", 0)), str(body.get("t", "")))


def read_leases(body: Row) -> list[tuple[int, bool, bool, Place]]:
    """Number, whether the directory knows it, whether its name has it, and the name's version."""
    return [(int(number), bool(known), bool(held), parse_place(version)) for number, known, held, version in body.get("l", [])]
