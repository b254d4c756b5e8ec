"""The end of leases (rules M1, M3, M4): what goes with them, and who gets an exclusive name next."""

from __future__ import annotations

from collections.abc import Iterable

from .draft import Draft
from .entries import Entry, Target, Who, lease_text, parse_place
from .store import Table


def leases_of(draft: Draft, who: Who) -> dict[str, set[str]]:
    """All leases of a directory process, as in a target's *while*, with the names that they are in."""
    start = f"{who[0]:02d}.{who[1]:020d}."
    found: dict[str, set[str]] = {}
    for key, _ in draft.facts.store.scan(Table.LEASE, start, start + "~"):
        lease, name = key.split(" ")
        found.setdefault(_plain(lease), set()).add(name)
    return found


def leases_numbered(draft: Draft, who: Who, numbers: Iterable[int]) -> dict[str, set[str]]:
    """The leases of a process that have these numbers."""
    found: dict[str, set[str]] = {}
    for number in numbers:
        start = f"{who[0]:02d}.{who[1]:020d}.{number:020d} "
        names = {key.split(" ")[1] for key, _ in draft.facts.store.scan(Table.LEASE, start, start + "~")}
        if names:
            found[f"{who[0]}.{who[1]}.{number}"] = names
    return found


def _plain(key: str) -> str:
    station, client, number = parse_place(".".join(part.lstrip("0") or "0" for part in key.split(".")))
    return f"{station}.{client}.{number}"


def end(draft: Draft, leases: dict[str, set[str]]) -> None:
    """End leases. All of them leave the queues before any name is given to the next in its queue: that one may have ended too."""
    names = sorted({name for found in leases.values() for name in found})
    for name in names:
        entry = draft.entry(name)
        if entry is not None and entry.exclusive:
            for key, waiting in list(draft.waiting_for(name)):
                if lease_text(waiting.lease) in leases:
                    draft.stop_waiting(key)
    for name in names:
        entry = draft.entry(name)
        if entry is None:
            continue
        targets = tuple([t for t in entry.targets if t.until not in leases])
        if len(targets) < len(entry.targets):
            _without(draft, entry, targets)


def _without(draft: Draft, entry: Entry, targets: tuple[Target, ...]) -> None:
    exclusive = entry.exclusive
    if exclusive and not targets:
        for key, w in draft.waiting_for(entry.name):
            draft.stop_waiting(key)
            targets = (Target(w.address, w.priority, w.weight, lease_text(w.lease)),)
            break
        else:
            exclusive = False
    if targets or entry.kept:
        draft.put(entry._replace(version=draft.place, targets=targets, exclusive=exclusive))
    else:
        draft.remove(entry.name)
