"""Directory time, and what happens when it moves (rules T1 to T3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .draft import Draft
from .entries import Entry, Who
from .messages import Next
from .store import Table

FIRST_DUE = f"{1:013d}"
"""Keys in TIMER below this one are schedules that wait for their NEXT."""


class Member(NamedTuple):
    """A directory process in the group's view. active: it is an active holder. due: the largest time of its DUEs."""

    active: bool
    due: int


def majority_time(members: Mapping[Who, Member]) -> int:
    """The largest time that the DUEs of a majority of the active holders have reached; 0 if there is none.

    It goes back when a holder with a fast clock was alone, or in the majority, for a while. What has taken effect stays so;
    what is set now waits for the clocks of those who are here now."""
    times = sorted([m.due for m in members.values() if m.active], reverse=True)
    return times[len(times) // 2] if times else 0


def timer_keys(entry: Entry | None) -> list[str]:
    """Keys in TIMER of an entry's timers: ``due name kind``, which is their order."""
    keys = []
    if entry is not None and entry.override_end:
        keys.append(f"{entry.override_end:013d} {entry.name} override")
    if entry is not None and entry.schedule is not None:
        keys.append(f"{entry.schedule.due:013d} {entry.name} slot")
    return keys


def out_key(address: str, end: int) -> str:
    return f"{end:013d} {address} out"


def fire(draft: Draft, due: Iterable[str]) -> None:
    """Let these timers take effect, in their order."""
    for key in due:
        _, subject, kind = key.split(" ")
        if kind == "out":
            draft.rows[(Table.OUT, subject)] = None
            continue
        entry = draft.entry(subject)
        if entry is None:
            continue
        if kind == "override":
            draft.put(entry._replace(version=draft.place, override=(), override_end=0))
        elif entry.schedule is not None:
            s = entry.schedule
            draft.put(entry._replace(version=draft.place, schedule=s._replace(current=s.slot, last=s.due, due=0, slot=0)))


def take_next(draft: Draft, m: Next) -> bool:
    """A NEXT. It counts if the name still has that version and waits for a NEXT, and the instant is after the last one: by its
    sender's clock or time zone data the slot that has begun may not have begun yet."""
    entry = draft.entry(m.name)
    if entry is None or entry.version != m.version or entry.schedule is None:
        return False
    s = entry.schedule
    if s.due or m.due <= s.last or m.slot >= len(s.slots):
        return False
    draft.put(entry._replace(version=draft.place, schedule=s._replace(due=m.due, slot=m.slot)))
    return True
