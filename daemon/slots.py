"""When the slots of a schedule begin (rules T3, T4), by this machine's time zone data.

For senders: a machine's zone data may be older than another's, so an instant is computed once, by the sender of SCHEDULE or NEXT,
and is a number for all others.

A slot begins at ``[mon[-fri]] HH:MM [Area/City]`` (without a zone: UTC), or once at ``YYYY-MM-DDTHH:MM[:SS]Z``. A time that is
skipped when summer time begins is the first instant after the gap; of a time that occurs twice the first counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..proto.errors import UsageError
from ..proto.service.directory.operations import is_when

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEK: Final = 8
"""Days from a local date within which each daily slot comes once at least."""


def _zone(name: str) -> tzinfo:
    if not name:
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(f"no time zone {name!r} on this machine") from None


def _on_day(day: date, hour: int, minute: int, zone: tzinfo) -> int:
    """The instant of a local time, seconds since 1970."""
    local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)  # fold 0: the first of two
    instant = local.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None):
        return int(instant.timestamp())
    # In a gap the offset before it gives an instant after it, and the offset after it one before: the change is between them.
    early, late = (int(local.replace(fold=f).astimezone(UTC).timestamp()) for f in (1, 0))
    offset = datetime.fromtimestamp(early, zone).utcoffset()
    while late - early > 1:
        middle = (early + late) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            early = middle
        else:
            late = middle
    return late


def _parse(when: str) -> tuple[frozenset[int], int, int, tzinfo]:
    parts = when.split(" ")
    days = frozenset(range(7))
    if parts[0][0].isalpha():
        first, _, last = parts.pop(0).partition("-")
        start, end = DAYS.index(first), DAYS.index(last or first)
        days = frozenset((start + i) % 7 for i in range((end - start) % 7 + 1))
    hour, minute = parts[0].split(":")
    return days, int(hour), int(minute), _zone(parts[1] if len(parts) > 1 else "")


def instants(when: str, low: int, high: int) -> list[int]:
    """The instants of a slot in low < t <= high, seconds since 1970. Raises UsageError for what is no slot."""
    if not is_when(when):
        raise UsageError(f"{when!r} is no slot: [mon-fri] HH:MM [Area/City], or YYYY-MM-DDTHH:MMZ")
    if when.endswith("Z") and when[4] == "-":
        once = int(datetime.fromisoformat(when[:-1]).replace(tzinfo=UTC).timestamp())
        return [once] if low < once <= high else []
    days, hour, minute, zone = _parse(when)
    day = datetime.fromtimestamp(max(low, 0), zone).date() - timedelta(days=1)
    last = datetime.fromtimestamp(high, zone).date() + timedelta(days=1)
    found = []
    while day <= last:
        if day.weekday() in days:
            at = _on_day(day, hour, minute, zone)
            if low < at <= high:
                found.append(at)
        day += timedelta(days=1)
    return found


def _last_before(slots: Sequence[str], after: int, now: int) -> tuple[int, int]:
    """(instant, slot) of the last one in after < t <= now; (0, 0): there is none. Of slots at one instant the later one
    counts."""
    best = (0, 0)
    low = max(after, now - _WEEK * 86400)
    for number, when in enumerate(slots):
        once = when.endswith("Z") and when[4] == "-"
        for at in instants(when, after if once else low, now):
            best = max(best, (at, number))
    return best


def _first_after(slots: Sequence[str], now: int) -> tuple[int, int]:
    """(instant, slot) of the first one after now; (0, 0): there is none."""
    found = []
    for number, when in enumerate(slots):
        once = when.endswith("Z") and when[4] == "-"
        at = instants(when, now, (1 << 37) if once else now + _WEEK * 86400)
        if at:
            found.append((at[0], number))
    if not found:
        return (0, 0)
    first = min(found)[0]
    return first, max(number for at, number in found if at == first)


def first_instant(slots: Sequence[str], now: int) -> tuple[int, int]:
    """(due, slot) of a new schedule: the slot in effect at ``now``, with the instant at which it began, else the next one;
    (0, 0): nothing is to come. ``now`` is one clock's: the slot begins when most clocks have reached its instant (rule T2)."""
    last = _last_before(slots, 0, now)
    return last if last[0] else _first_after(slots, now)


def next_instant(slots: Sequence[str], last: int, time: int) -> tuple[int, int]:
    """(due, slot) for NEXT; (0, 0): nothing is to come. last: the instant of the slot in effect. time: directory time. Of
    instants that have passed it is the last one: one switch, not a hundred."""
    missed = _last_before(slots, last, time)
    return missed if missed[0] else _first_after(slots, max(last, time))
