"""When slots begin: summer time, week days, what has been missed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from zenjun.daemon.slots import first_instant, instants, next_instant
from zenjun.proto.errors import UsageError

DAY = 86400


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def test_week_days_in_a_zone() -> None:
    """2026-11-29 is a Sunday. 08:00 in Tokyo is 23:00 UTC of the day before."""
    found = instants("mon-fri 08:00 Asia/Tokyo", at("2026-11-28T00:00"), at("2026-12-06T00:00"))
    assert found == [at(f"2026-11-{d}T23:00") for d in (29, 30)] + [at(f"2026-12-0{d}T23:00") for d in (1, 2, 3)]
    assert instants("sat-mon 00:00", at("2026-11-26T12:00"), at("2026-12-01T12:00")) == [
        at("2026-11-28T00:00"),
        at("2026-11-29T00:00"),
        at("2026-11-30T00:00"),
    ]


def test_a_time_in_a_gap_is_the_first_instant_behind_it_and_of_two_the_first_counts() -> None:
    """Berlin: 2026-03-29 02:00 to 03:00 does not exist, 2026-10-25 02:00 to 03:00 comes twice."""
    assert instants("02:30 Europe/Berlin", at("2026-03-28T12:00"), at("2026-03-29T12:00")) == [at("2026-03-29T01:00")]
    assert instants("02:30 Europe/Berlin", at("2026-10-24T12:00"), at("2026-10-25T12:00")) == [at("2026-10-25T00:30")]


def test_a_day_that_a_zone_has_not_had() -> None:
    """Samoa went from 2011-12-29 to 2011-12-31."""
    assert instants("12:00 Pacific/Apia", at("2011-12-29T12:00"), at("2011-12-31T00:00")) == [
        at("2011-12-29T22:00"),
        at("2011-12-30T10:00"),
        at("2011-12-30T22:00"),
    ]


def test_an_instant_and_what_is_none() -> None:
    assert instants("2026-12-01T08:00Z", 0, 1 << 37) == [at("2026-12-01T08:00")]
    assert instants("2026-12-01T08:00:30Z", at("2026-12-01T08:00:30"), 1 << 37) == []
    for wrong in ("8:00", "25:00", "08:00 No/Where", "2026-02-30T08:00Z", "mon-foo 08:00", "08:00  UTC", ""):
        with pytest.raises(UsageError):
            instants(wrong, 0, DAY)


def test_a_new_schedule_begins_with_the_slot_of_now() -> None:
    """By its instant, which takes effect when most clocks have reached it: not by the sender's clock alone."""
    now = at("2026-11-29T12:00")
    assert first_instant(["08:00", "18:00"], now) == (at("2026-11-29T08:00"), 0)
    assert first_instant(["mon 08:00"], now) == (at("2026-11-23T08:00"), 0)
    assert first_instant(["2026-11-30T08:00Z"], now) == (at("2026-11-30T08:00"), 0)
    assert first_instant(["2026-01-30T08:00Z", "2026-11-30T08:00Z"], now) == (at("2026-01-30T08:00"), 0)
    assert first_instant(["08:00", "08:00 UTC"], now) == (at("2026-11-29T08:00"), 1)


def test_next_is_behind_the_last_one_and_of_missed_ones_the_last() -> None:
    slots = ["08:00", "18:00"]
    last = at("2026-11-27T18:00")
    assert next_instant(slots, last, at("2026-11-29T12:00")) == (at("2026-11-29T08:00"), 0)
    assert next_instant(slots, at("2026-11-29T08:00"), at("2026-11-29T12:00")) == (at("2026-11-29T18:00"), 1)
    # The clock of who sends NEXT may be behind directory time, which has reached the instant: it must not come again.
    assert next_instant(slots, at("2026-11-29T08:00"), at("2026-11-29T07:59")) == (at("2026-11-29T18:00"), 1)
    assert next_instant(["2026-11-29T08:00Z"], at("2026-11-29T08:00"), at("2026-11-29T12:00")) == (0, 0)
