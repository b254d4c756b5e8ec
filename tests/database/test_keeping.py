"""What a site keeps while a copy comes: in memory, and in a file."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from zenjun.daemon.database import keeping
from zenjun.daemon.database.keeping import FileKept
from zenjun.proto.service.database import messages as m
from zenjun.proto.service.database.keeping import Item, Kept

from ..rules import rule

MEMBERS = [frozenset({(1, 1)}), frozenset({(1, 1), (2, 7)})]


def item(r: random.Random, clock: int) -> tuple[Item, int]:
    """A view now and then, else a message of any size."""
    place, members = (clock, 1, 3), r.choice(MEMBERS)
    if r.random() < 0.1:
        return (place, (2, 7), None, members), 0
    write = m.Write(m.Txid(1, 2, 3, clock), 5, clock, (bytes(8),), r.randbytes(r.choice([0, 30, 900])))
    return (place, (2, 7), write, members), len(m.encode(write))


@rule("W4")
@pytest.mark.parametrize("chunk", [100, 1 << 20])
def test_what_is_kept_in_a_file_comes_back_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Whatever comes between two that are taken."""
    monkeypatch.setattr(keeping, "CHUNK_BYTES", chunk)
    r = random.Random(chunk)
    filed, plain = FileKept(tmp_path, 0, memory_max=2000), Kept()
    was_filed = emptied = 0
    for clock in range(3000):
        for _ in range(r.choice([0, 1, 4]) if clock % 600 < 300 else 0):
            made = item(r, clock)
            filed.add(*made)
            plain.add(*made)
        assert filed.take() == plain.take()
        assert (filed.bytes, filed.is_empty) == (plain.bytes, plain.is_empty) and filed.is_whole
        was_filed += filed._end > 0
        emptied += filed.is_empty
    assert emptied > 100 and (was_filed or chunk > 100)
    assert list(tmp_path.iterdir()) == [], "nothing is left when the process ends"


@rule("W4")
def test_a_full_disk_keeps_nothing_that_has_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before is there, in order; then it says that something is missing."""
    monkeypatch.setattr(keeping, "CHUNK_BYTES", 100)
    kept = FileKept(tmp_path, 0, memory_max=2000)
    r = random.Random(1)
    made = [item(r, clock) for clock in range(100)]
    for each in made[:50]:
        kept.add(*each)
    assert kept._end > 0

    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for each in made[50:]:
        kept.add(*each)
    assert not kept.is_whole
    there = list(iter(kept.take, None))
    assert 40 < len(there) < 100 and there == [each for each, _ in made[: len(there)]]
