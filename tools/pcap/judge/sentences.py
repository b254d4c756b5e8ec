"""The sentences of the judge: one function each, so that all texts are in one place."""

from __future__ import annotations

from typing import Final

from ..tables.schema import Finding
from .reader import SEQ_MASK, PduKey, Row, key_of

_DIGEST_MASK: Final = (1 << 64) - 1


def name(key: PduKey) -> str:
    """A PDU for people, as ``zenjun pcap follow`` takes it."""
    return f"{key[0]}.{key[1]}:{key[2]}"


def at_place(clock: int, src: int) -> str:
    """A place for people: instance:clock.source."""
    return f"{clock >> 32}:{clock & SEQ_MASK}.{src}"


def place(row: Row) -> str:
    """A row's place."""
    return at_place(row["clock"], row["src"])


def digest(value: int) -> str:
    """As 16 hexadecimal digits."""
    return f"{value & _DIGEST_MASK:016x}"


# ---- what single captures show


def conflict(row: Row) -> str:
    return f"station {row['station']} received two PDUs called {name(key_of(row))}, with different contents"


def not_beyond(row: Row) -> str:
    """SENDER_ORDER or PROMISE."""
    before = "the one before it" if row["what"] == Finding.SENDER_ORDER else "its source had promised"
    return f"at station {row['station']}, PDU {name(key_of(row))} stands at {place(row)}, which is not beyond what {before} says"


def behind_its_effect(row: Row) -> str:
    cause = f"{row['other_src']}:{row['other_value']}"
    return (
        f"at station {row['station']}, PDU {name(key_of(row))} stands at {place(row)}, before {cause}, which its source had"
        f" accepted"
    )


def own_digest(row: Row) -> str:
    return (
        f"station {row['station']} announced digest {digest(row['other_value'])} for position {row['seq']}; its own frames give"
        f" {digest(row['value'])}"
    )


def cut_end(row: Row) -> str:
    return f"station {row['station']}: its capture lacks its last PDUs, from {name(key_of(row))} on"


def acknowledged_unsent(row: Row) -> str:
    return f"others acknowledge PDU {name(key_of(row))} of station {row['station']}, which it has not sent"


def unknown_view(row: Row) -> str:
    return f"station {row['station']} is in instance {row['value']}: how it came there, its capture does not show"


def begins_within(row: Row) -> str:
    return f"station {row['station']}: the capture begins within instance {row['value']}; earlier places are not judged"


def holes(station: int, total: int, more: bool) -> str:
    count = f"more than {total}" if more else str(total)
    return f"station {station}: its capture lacks {count} PDUs that it had; places there are not judged"


def acknowledged_unseen(row: Row) -> str:
    return f"station {row['station']} acknowledged PDU {name(key_of(row))}, which never arrived there: its capture lost no frame"


# ---- views and digests


def other_view(number: int, what: str, first: Row, odd: Row) -> str:
    """what: view hash, place or members."""
    return (
        f"instance {number} has another {what} at station {odd['station']} than at station {first['station']}:"
        f" {_of_view(odd, what)} and {_of_view(first, what)}"
    )


def _of_view(row: Row, what: str) -> str:
    if what == "place":
        return at_place(row["place_clock"], row["place_src"])
    if what == "members":
        lives = row["incarnations"] or ()
        return ",".join(f"{k + 1}.{life}" for k, life in enumerate(lives) if row["members"] >> k & 1) or "nobody"
    return f"{row['view_hash']:08x}"


def in_instance(view: Row) -> str:
    return f"station {view['station']} says that it is in instance {view['view']}"


def fenced(src: int, instance: int) -> str:
    return f"station {src} has fenced itself in instance {instance}: a digest was not its own"


def two_digests(counted: int, position: int) -> str:
    return f"position {position} behind the view event of instance {counted} was announced with two digests"


def other_digest(row: Row, station: int) -> str:
    """The frames of *station* give another one than was announced."""
    return (
        f"station {row['src']} announced digest {digest(row['digest'])} for position {row['position']} behind the view event of"
        f" instance {row['counted']}; the frames of station {station} give {digest(row['derived'])}"
    )


# ---- what is compared between stations


def misplaced(station: int, clock: int, src: int) -> str:
    return f"at station {station}, {at_place(clock, src)} stands behind a later place"


def unread_blocks(count: int) -> str:
    return f"{count} more blocks differ and were not looked into"


def other_content(key: PduKey, station: int, first: int) -> str:
    return f"PDU {name(key)} is another one at station {station} than at station {first}"


def other_place(key: PduKey, a: Row, b: Row) -> str:
    return f"PDU {name(key)} stands at {place(a)} at station {a['station']} and at {place(b)} at station {b['station']}"


def missing(key: PduKey, station: int, row: Row) -> str:
    return (
        f"PDU {name(key)} stands at {place(row)} at station {row['station']}; station {station}, whose order goes beyond that"
        f" place, does not have it"
    )


def invented(key: PduKey, row: Row) -> str:
    return f"station {row['station']} delivered PDU {name(key)} at {place(row)}, which its source never sent"


def twice(key: PduKey, first: Row, again: Row) -> str:
    return f"station {again['station']} delivered PDU {name(key)} at {place(first)} and at {place(again)}"
