"""A holder's answers to stations that do not keep its zone (rules Z2, L2, L5, W5), without I/O: ``remote.py`` asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from .asking import KEPT_MAX
from .draft import lease_key
from .entries import NOWHERE, Entry, Lease, Place, entry_row, lease_text, place_text, zone_row
from .lookup import Answer, Ask, follow
from .messages import Id
from .operations import Row
from .questions import Query, Question, Reply
from .selection import effective
from .state import Outcome, State
from .store import Table

LIST_BYTES: Final = 48 * 1024
"""Rows in one answer; at least one, and a row has no more."""
Asker: TypeAlias = tuple[int, int]
"""Station and request."""


class Keeper:
    """Who has to be answered, and when.

    place: of the own copy. active: whether it is the group's. answer: answers a station from the copy, at that place or a later.
    """

    def __init__(self, place: Callable[[], Place], active: Callable[[], bool], answer: Callable[[int, Question], None]) -> None:
        self._place = place
        self._active = active
        self._answer = answer
        self._waiting: dict[Asker, Question] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def on_question(self, station: int, question: Question) -> None:
        """Answer, or wait until the copy has reached the place that the question names. A copy that is not the group's says
        nothing: the asker learns that from HOLDING, and asks another holder."""
        if not self._active() or (isinstance(question, Query) and question.kind not in _BODIES):
            return
        if question.after <= self._place():
            self._answer(station, question)
        elif len(self._waiting) < KEPT_MAX:
            self._waiting[station, question.request] = question

    def on_place(self) -> None:
        """The copy has advanced, or is no longer the group's."""
        if self._waiting and not self._active():
            self._waiting.clear()
        if not self._waiting:
            return
        place = self._place()
        for asker in [asker for asker, question in self._waiting.items() if question.after <= place]:
            self._answer(asker[0], self._waiting.pop(asker))

    def forget(self, station: int) -> None:
        """This station's process has gone."""
        for asker in [asker for asker in self._waiting if asker[0] == station]:
            del self._waiting[asker]


def answer_of(state: State, question: Question) -> Answer | Reply:
    """The answer of a copy."""
    if isinstance(question, Ask):
        return _look_up(state, question)
    return Reply(question.request, state.place, _BODIES[question.kind](state, question))


def _look_up(state: State, ask: Ask) -> Answer:
    found = follow(state.entry, ask.name)
    e = found.entry
    if e is None:
        return Answer(ask.request, state.place, found.code, found.path)
    targets = tuple(effective(e, state.stations_up(), state.is_out))
    code = "" if targets else "no-address"
    return Answer(ask.request, state.place, code, found.path, e.version, e.ttl, e.selection, targets, e.zone, e.owner, e.meta)


def _outcome(state: State, query: Query) -> Row:
    return outcome_body(state.outcome(Id(str(query.body.get("c", "")), int(query.body.get("n", 0)))))


def _leases(state: State, query: Query) -> Row:
    station, client = query.body["w"]
    return {"l": [_lease(state, Lease(station, client, number)) for number in query.body["l"]]}


def _lease(state: State, lease: Lease) -> list[int | str]:
    """Number, whether the directory knows it, whether its name has it, and the name's version."""
    known, names = lease_names(state, lease)
    text = lease_text(lease)
    versions = [entry.version for entry in names if any(t.until == text for t in entry.targets)]
    return [lease.number, int(known), int(bool(versions)), place_text(max(versions, default=NOWHERE))]


def lease_names(state: State, lease: Lease) -> tuple[bool, list[Entry]]:
    """Whether the directory knows a lease, and the entries that it is about."""
    key = lease_key(lease)
    names = [found.split(" ")[1] for found, _ in state.store.scan(Table.LEASE, f"{key} ", f"{key}!")]
    return bool(names), [entry for entry in map(state.entry, names) if entry is not None]


def _list(state: State, query: Query) -> Row:
    rows: list[str] = []
    size = 0
    for name, _ in state.store.scan(Table.ENTRY, str(query.body["f"]), str(query.body["l"])):
        entry = state.entry(name)
        row = entry_row(entry).decode("ascii") if entry is not None else ""
        # Within a message the quotes of a row are written with a backslash.
        size += len(row) + row.count('"')
        if rows and size > LIST_BYTES:
            return {"e": rows, "n": name}
        if row:
            rows.append(row)
    return {"e": rows, "n": ""}


def _zones(state: State, query: Query) -> Row:
    return {"z": [zone_row(zone).decode("ascii") for _, zone in sorted(state.zones.items())]}


def _outs(state: State, query: Query) -> Row:
    return {"o": [[key, int(row)] for key, row in state.store.scan(Table.OUT, "", "~")]}


_BODIES: Final[dict[str, Callable[[State, Query], Row]]] = {
    "outcome": _outcome,
    "leases": _leases,
    "list": _list,
    "zones": _zones,
    "outs": _outs,
}


def outcome_body(outcome: Outcome | None) -> Row:
    """What ``outcome`` is answered with; empty: the copy knows no such update."""
    if outcome is None:
        return {}
    return {"p": place_text(outcome.place), "c": outcome.code, "i": outcome.operation, "t": outcome.text}
