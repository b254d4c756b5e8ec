"""The power fails between any two steps of a copy: apply and commit, sync, carrying the log over, another file in its place.
What was said to be on disk is there, and what is there is the whole state at some place.

The disk is a folder beside, with what a sync has brought there. SQLite syncs the log before it carries it over, and the file
after that.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from zenjun.daemon.directory.copy import Copy, Heard, Seen
from zenjun.daemon.directory.store import FILE, File
from zenjun.proto.service.directory import copying
from zenjun.proto.service.directory.entries import Place, Target
from zenjun.proto.service.directory.messages import ONDISK, Id, Update, encode
from zenjun.proto.service.directory.operations import Remove, Set
from zenjun.proto.service.stateapi import Offer

WHO = (1, 7)
NAMES = 12
SEEDS = 12
STEPS = 60


class Power:
    """A copy in a folder, and what of it is on disk."""

    def __init__(self, folder: Path, seed: int, sync: Callable[[int], None]) -> None:
        self.r = random.Random(seed)
        self.folder, self.disk, self.real = folder / "memory", folder / "disk", sync
        self.folder.mkdir()
        self.disk.mkdir()
        self.copy = Copy(File(self.folder, "c", 1))
        self.clock = 1
        self.digests: dict[Place, bytes] = {self.copy.state.place: copying.digest(self.copy.state)}
        """What the state was at each place."""
        self.said = self.copy.state.place
        """What was said to be on disk."""
        self.copy.apply([Seen((1, 1, 0), (WHO,), (WHO,))])
        self._note()
        self._bring(FILE, f"{FILE}-wal")

    def _note(self) -> None:
        self.digests[self.copy.state.place] = copying.digest(self.copy.state)

    def _bring(self, *names: str) -> None:
        for name in names:
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, self.disk / name)

    def synced(self, descriptor: int) -> None:
        """In place of ``os.fdatasync``: the log alone."""
        self.real(descriptor)
        assert Path(f"/proc/self/fd/{descriptor}").readlink() == self.folder / f"{FILE}-wal"
        self._bring(f"{FILE}-wal")

    def apply(self) -> None:
        inputs = []
        for _ in range(self.r.randint(1, 5)):
            self.clock += 1
            name = f"n{self.r.randrange(NAMES)}"
            target = Target(f"tcp://10.0.0.1:{self.clock}")
            operation = Remove(name) if self.r.random() < 0.2 else Set(name, (target,))
            update = Update(Id("0" * 16, self.clock), ("user:root",), (operation,), ONDISK)
            inputs.append(Heard((self.clock, 1, 0), WHO, encode(update)))
        self.copy.apply(inputs, later=self.r.random() < 0.7)
        self._note()

    def write(self, durable: bool = False) -> None:
        """What has been applied is given to SQLite, while more is applied."""
        place, rows = self.copy.state.place, self.copy.rows
        rows.take()
        if self.r.random() < 0.5:
            self.apply()
        self.copy.write(rows, durable)
        if self.r.random() < 0.5:
            self.apply()
        rows.written_out()
        if durable:
            self.said = place

    def sync(self) -> None:
        self.write(durable=True)

    def carry_over(self) -> None:
        self._bring(f"{FILE}-wal")
        self.copy.file.carry_over()
        self._bring(FILE)

    def replace(self) -> None:
        """All of another copy's state."""
        snapshot = self.copy.snapshot(self.copy.state.place, None)
        digest = copying.digest(self.copy.state)
        assert snapshot.digest == digest and snapshot.close is not None
        offer = Offer(self.copy.state.place, WHO, False, digest, -1, -1)
        building = self.copy.restore(offer)
        for key, data in snapshot.chunks:
            building.chunk(key, data)
        assert building.end() == digest
        snapshot.close()
        building.commit(offer)
        self._take_disk()

    def rewrite(self) -> None:
        self.copy.rewrite()
        self._take_disk()

    def _take_disk(self) -> None:
        """Another file is there: the whole folder was synced."""
        shutil.rmtree(self.disk)
        self.disk.mkdir()
        self._bring(FILE)

    def fail(self) -> None:
        """The power fails: what is on disk is what there is, and it is right."""
        self.copy.rows.close()
        after = Copy(File(self.disk, "c", 1))
        assert not after.file.moved, after.file.why
        place = after.state.place
        assert place >= self.said, f"{self.said} was said to be on disk, {place} is there"
        assert copying.digest(after.state) == self.digests[place]
        after.rows.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_power_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    power = Power(tmp_path, seed, os.fdatasync)
    monkeypatch.setattr(os, "fdatasync", power.synced)
    steps = [power.apply, power.write, power.sync, power.carry_over, power.replace, power.rewrite]
    weights = [18, 3, 6, 3, 1, 1]
    for step in power.r.choices(steps, weights, k=power.r.randint(1, STEPS)):
        step()
    power.fail()


def test_without_the_sync_it_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test sees a word that comes too early."""
    power = Power(tmp_path, 0, os.fdatasync)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
    power.apply()
    power.sync()
    with pytest.raises(AssertionError, match="was said to be on disk"):
        power.fail()
