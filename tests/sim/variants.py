"""Broken drivers, for defects that no fault of the C core stands for; ``test_variants.py`` says which checker catches each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .facts import Delivery


class Variant:
    """The honest driver: what a station's engine says and does passes through unchanged."""

    def deliveries(self, records: list[Delivery]) -> list[Delivery]:
        return records

    def positions(self, now: tuple[int, int, int]) -> tuple[int, int, int]:
        return now

    def durable(self) -> bool:
        """Does a Persist reach the disk before anything else happens?"""
        return True

    def survives(self, disk: tuple[int, int]) -> tuple[int, int]:
        """What the next start finds of (incarnation, highest instance number)."""
        return disk

    def incarnations(self, told: tuple[int, ...]) -> tuple[int, ...]:
        """What the station believes to be the members of its new instance."""
        return told

    def memory_bytes(self, reserved: int) -> int:
        return reserved


class Reordering(Variant):
    """Hands out two messages of one batch the wrong way round, once."""

    def __init__(self) -> None:
        self._done = False

    def deliveries(self, records: list[Delivery]) -> list[Delivery]:
        if not self._done and len(records) > 1:
            self._done = True
            records[0], records[1] = records[1], records[0]
        return records


class Repeating(Variant):
    """Hands out the last message of its third batch again with the next."""

    def __init__(self) -> None:
        self._batches = 0
        self._last: list[Delivery] = []

    def deliveries(self, records: list[Delivery]) -> list[Delivery]:
        if records:
            self._batches += 1
            records = self._last + records
            self._last = records[-1:] if self._batches == 3 else []
        return records


class Forgetting(Variant):
    """Loses every tenth message."""

    def __init__(self) -> None:
        self._count = 0

    def deliveries(self, records: list[Delivery]) -> list[Delivery]:
        out = []
        for r in records:
            self._count += 1
            if self._count % 10:
                out.append(r)
        return out


class Inventing(Variant):
    """Changes one byte of the fifth message that has one."""

    def __init__(self) -> None:
        self._count = 0

    def deliveries(self, records: list[Delivery]) -> list[Delivery]:
        out = []
        for r in records:
            self._count += bool(r.data)
            out.append(replace(r, data=bytes([r.data[0] ^ 1]) + r.data[1:]) if self._count == 5 and r.data else r)
        return out


class Impatient(Variant):
    """Goes on before its state is on disk."""

    def durable(self) -> bool:
        return False


class Amnesiac(Variant):
    """Its disk says yes and has lost everything at the next start: numbers of instances and incarnations come again."""

    def survives(self, disk: tuple[int, int]) -> tuple[int, int]:
        return (0, 0)


class Numberless(Variant):
    """Its disk keeps the incarnation and loses the instance number."""

    def survives(self, disk: tuple[int, int]) -> tuple[int, int]:
        return (disk[0], 0)


class Misinformed(Variant):
    """Believes in another incarnation of a member than the others do."""

    def incarnations(self, told: tuple[int, ...]) -> tuple[int, ...]:
        return (told[0] + 1, *told[1:])


class Wavering(Variant):
    """Takes its preack position back now and then."""

    def __init__(self) -> None:
        self._count = 0

    def positions(self, now: tuple[int, int, int]) -> tuple[int, int, int]:
        self._count += 1
        return (now[0], max(0, now[1] - 1), min(now[2], max(0, now[1] - 1))) if self._count % 7 == 0 else now


class Growing(Variant):
    """Takes more memory with every turn."""

    def __init__(self) -> None:
        self._more = 0

    def memory_bytes(self, reserved: int) -> int:
        self._more += 4096
        return reserved + self._more


VARIANTS: dict[str, type[Variant]] = {
    c.__name__.lower(): c
    for c in (Reordering, Repeating, Forgetting, Inventing, Impatient, Amnesiac, Numberless, Misinformed, Wavering, Growing)
}


def make(name: str) -> Variant:
    """The variant of this name; the honest one for the empty string."""
    return VARIANTS[name]() if name else Variant()


def names() -> Sequence[str]:
    return sorted(VARIANTS)
