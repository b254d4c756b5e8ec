"""Another site's copy: only the pages come that are not here, wherever they are from."""

from __future__ import annotations

import contextlib
import os
import random
from collections import deque
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from zenjun.daemon.database import copy as copying
from zenjun.daemon.database import pages, vfs
from zenjun.daemon.database.copy import FileRows, Frozen, bases, open_copy
from zenjun.daemon.database.files import Files
from zenjun.daemon.database.moving import Kind, Piece, Receiving, Step, steps_of
from zenjun.daemon.database.pages import BLOCK_BYTES, Incoming, Offer, is_wanted, ranges, sums_of, wanted_of
from zenjun.proto.service.database.given import encode_given
from zenjun.proto.service.database.roll import NOTHING
from zenjun.proto.service.database.rows import RowsFailed

from ..rules import rule
from .test_files import UUID, _commit, _given

ROWS = 3000


class Moved:
    """One transfer; it ends after so many pieces."""

    def __init__(self, donor: FileRows, joiner: FileRows, pieces: int = 1 << 30, message_max: int = 1 << 20) -> None:
        frozen = Frozen(donor, NOTHING, encode_given(_given()))
        receiving = Receiving((1, 1, 1))
        self.rows: FileRows | None = None
        self.page_bytes = 0
        under_way: deque[Piece] = deque()
        """What is sent arrives no earlier than the donor waits for it."""
        try:
            for step in steps_of(frozen, (2, 1), (1, 1, 1), message_max):
                if step.piece is not None:
                    under_way.append(step.piece)
                    assert len(step.piece.encode()) <= message_max
                while under_way and (under_way[0].number <= step.until or under_way[-1].kind is Kind.END):
                    piece = under_way.popleft()
                    if piece.number == pieces:
                        return
                    self.page_bytes += len(piece.data) * (piece.kind is Kind.PAGES)
                    if (end := receiving.take(piece, joiner)) is not None:
                        self.rows = end[0]
                    frozen.answers[piece.number] = receiving.answer
        finally:
            self.same_bytes = receiving.same_bytes
            receiving.abort()
            frozen.close()


def pieces_of(steps: Iterator[Step]) -> Iterator[Piece]:
    return (step.piece for step in steps if step.piece is not None)


def rows_of(rows: FileRows) -> list[tuple[int, bytes]]:
    return [(int(key), bytes(data)) for key, data in rows.query("SELECT id, v FROM t ORDER BY id")]


@pytest.fixture
def donor(tmp_path: Path) -> Iterator[FileRows]:
    (tmp_path / "donor").mkdir()
    rows, _ = open_copy(Files(tmp_path / "donor", "shop"), UUID)
    rows.create(UUID)
    _commit(rows, 1, "CREATE TABLE t(id INTEGER PRIMARY KEY, v BLOB)")
    with rows.connection:
        rows.connection.executemany("INSERT INTO t VALUES(?, ?)", ((i, os.urandom(500)) for i in range(ROWS)))
    yield rows
    rows.close()


@pytest.fixture
def joiner(tmp_path: Path, donor: FileRows) -> Iterator[FileRows]:
    """It has what the donor has, and other versions."""
    files = Files(tmp_path / "joiner", "shop")
    (tmp_path / "joiner").mkdir()
    moved = Moved(donor, open_copy(files, UUID)[0])
    assert moved.rows is not None and moved.page_bytes > ROWS * 500 and moved.same_bytes == 0
    _commit(moved.rows, 77, "CREATE TABLE alone(id INTEGER PRIMARY KEY)")
    yield moved.rows
    moved.rows.close()


@rule("W2")
@pytest.mark.parametrize("message_max", [1 << 20, 5000])
def test_pages_that_are_here_do_not_come(donor: FileRows, joiner: FileRows, message_max: int) -> None:
    """One row in a hundred has changed, some of it is in the WAL of the joiner only; the rest is not sent."""
    donor.connection.execute("UPDATE t SET v = zeroblob(500) WHERE id % 100 = 0")
    donor.connection.execute("DELETE FROM t WHERE id > 2950")
    joiner.connection.execute("UPDATE t SET v = x'00' WHERE id % 1000 = 1")
    moved = Moved(donor, joiner, message_max=message_max)
    assert moved.rows is not None and rows_of(moved.rows) == rows_of(donor)
    assert moved.rows.position() == donor.position() and moved.rows.damage() == ""
    assert 20 * 4096 < moved.page_bytes < 80 * 4096
    assert moved.page_bytes + moved.same_bytes == moved.rows.path.stat().st_size
    again = Moved(donor, moved.rows)
    assert again.page_bytes <= 4096, "the first has a counter of the file's own"
    assert again.rows is not None and rows_of(again.rows) == rows_of(donor)
    again.rows.close()
    moved.rows.close()


@rule("W2")
def test_a_transfer_that_breaks_off_is_continued(tmp_path: Path, donor: FileRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same process, or the next one; with what another donor's file has at the same places."""
    monkeypatch.setattr(pages, "RANGE_BLOCKS", 16)
    (tmp_path / "joiner").mkdir()
    files = Files(tmp_path / "joiner", "shop")
    joiner, _ = open_copy(files, UUID)
    first = Moved(donor, joiner, pieces=12)
    assert first.rows is None and first.page_bytes > 10 * 16 * 4096 / 3
    joiner.close()
    joiner, _ = open_copy(Files(tmp_path / "joiner", "shop"), UUID)
    donor.connection.execute("UPDATE t SET v = zeroblob(500) WHERE id = 1")
    second = Moved(donor, joiner, pieces=16)
    assert second.same_bytes >= first.page_bytes - 3 * 4096
    third = Moved(donor, joiner)
    assert third.same_bytes >= second.same_bytes + second.page_bytes - 4096
    assert third.rows is not None and rows_of(third.rows) == rows_of(donor)
    assert sorted(path.name for path in files.folder.glob("came*")) == []
    third.rows.close()
    joiner.close()


def test_a_large_file_takes_long_to_copy(donor: FileRows, joiner: FileRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other site does not take the donor for gone meanwhile."""
    monkeypatch.setattr(copying, "PATIENCE_S", 0.0)
    monkeypatch.setattr(copying, "STEP_PAGES", 50)
    frozen = Frozen(donor, NOTHING, b"state")
    kinds = [piece.kind for piece in pieces_of(steps_of(frozen, (2, 1), (1, 1, 1), 1 << 20))]
    frozen.close()
    assert kinds[:3] == [Kind.STATE] * 3 and kinds.count(Kind.STATE) > 5 and kinds[-1] is Kind.END
    moved = Moved(donor, joiner)
    assert moved.rows is not None and rows_of(moved.rows) == rows_of(donor)
    moved.rows.close()


def test_a_donor_keeps_room_for_itself(donor: FileRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy for another site must not fill the disk: before it begins, and while the donor's own commits go on."""
    monkeypatch.setattr(copying, "STEP_PAGES", 50)
    size = donor.connection.pragma("page_count") * donor.connection.pragma("page_size")
    disks: list[tuple[int, int]] = []
    """Bytes that are free, and all of them."""

    def disk(folder: Path) -> SimpleNamespace:
        free, total = disks.pop(0)
        return SimpleNamespace(f_bavail=free // 512, f_frsize=512, f_blocks=total // 512)

    monkeypatch.setattr("os.statvfs", disk)
    for total, spare in ((1 << 40, copying.SPARE_BYTES), (80 << 20, 10 << 20)):
        for free in ([size + spare - 4096], [size + spare, 1 << 40, spare - 4096]):
            disks += [(each, total) for each in free]
            frozen = Frozen(donor, NOTHING, b"state")
            with pytest.raises(OSError, match="no room for a copy"):
                list(steps_of(frozen, (2, 1), (1, 1, 1), 1 << 20))
            frozen.close()
            assert not disks and not frozen.copied.exists()


def test_a_donor_holds_its_snapshot_no_longer_than_it_copies(donor: FileRows) -> None:
    frozen = Frozen(donor, NOTHING, b"state")
    pieces = pieces_of(steps_of(frozen, (2, 1), (1, 1, 1), 1 << 20))
    while next(pieces).kind is not Kind.SUMS:
        assert not donor.applier.restart_wal(0.0)
    donor.connection.execute("UPDATE t SET v = zeroblob(500) WHERE id = 1")
    assert donor.applier.restart_wal(0.0), "what is sent comes from the copy"
    frozen.close()


def test_a_full_disk_keeps_nothing(tmp_path: Path, donor: FileRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """What had come would take the room of the next try."""
    (tmp_path / "joiner").mkdir()
    files = Files(tmp_path / "joiner", "shop")
    joiner, _ = open_copy(files, UUID)
    Moved(donor, joiner, pieces=4)
    assert files.part.exists()
    written = 0

    def full(fd: int, data: bytes, at: int) -> int:
        nonlocal written
        if (written := written + len(data)) > 100_000:
            raise OSError(28, "No space left on device")
        return real(fd, data, at)

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RowsFailed, match="No space left"):
        Moved(donor, joiner)
    assert not list(files.folder.glob("came*"))
    joiner.close()


@rule("W3")
def test_a_damaged_copy_has_most_of_the_pages(tmp_path: Path, donor: FileRows, joiner: FileRows) -> None:
    """Set aside, it is looked at for what is right in it."""
    joiner.finish(contextlib.nullcontext)
    path = joiner.path
    data = bytearray(path.read_bytes())
    data[:100] = bytes(100)
    data[40 * 4096 : 42 * 4096] = os.urandom(8192)
    path.write_bytes(data)
    blank, damaged = open_copy(Files(tmp_path / "joiner", "shop"), UUID)
    assert "is damaged" in damaged
    moved = Moved(donor, blank)
    assert moved.rows is not None and rows_of(moved.rows) == rows_of(donor)
    assert moved.page_bytes < 12 * 4096 and moved.same_bytes > ROWS * 500
    moved.rows.close()
    blank.close()


def test_sums_that_are_equal_by_chance(
    tmp_path: Path, donor: FileRows, joiner: FileRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of the whole file tells, and the next transfer has nothing of it."""
    donor.connection.execute("UPDATE t SET v = zeroblob(500) WHERE id = 1")
    monkeypatch.setattr(pages, "sums_of", lambda data, seed: bytes(8 * -(-len(data) // BLOCK_BYTES)))
    with pytest.raises(Exception, match="not those that were sent"):
        Moved(donor, joiner)
    monkeypatch.undo()
    assert not list(joiner.files.folder.glob("came*"))
    moved = Moved(donor, joiner)
    assert moved.rows is not None and rows_of(moved.rows) == rows_of(donor)
    moved.rows.close()


def test_what_is_here_is_read_through_sqlite(joiner: FileRows) -> None:
    """A descriptor of our own would drop its locks when it is closed."""
    joiner.connection.execute("UPDATE t SET v = x'11' WHERE id = 1")
    (read,) = bases(joiner)
    before = {path.name: path for path in Path("/proc/self/fd").iterdir()}
    data = joiner.path.read_bytes()
    assert read(0, len(data) + 9999) == data and read(4096, 8192) == data[4096:12288] and read(len(data), 4096) == b""
    assert {path.name: path for path in Path("/proc/self/fd").iterdir()}.keys() <= before.keys()
    assert vfs.read(joiner.connection, len(data) - 1, 3) == data[-1:] + b"\0\0"


def test_bad_input(tmp_path: Path) -> None:
    for data in (b"", bytes(23), bytes(25), bytes(24 + 8 * pages.RANGE_BLOCKS + 8), Offer(4096, 1, 7, bytes(8)).encode()):
        with pytest.raises(ValueError):
            Offer.decode(data)
    files = Files(tmp_path, "shop")
    files.open()
    content = os.urandom(3 * BLOCK_BYTES + 100)
    (tmp_path / "x").write_bytes(content)
    hashed = sha256()
    ((offer, data),) = ranges(tmp_path / "x", 1 << 20, hashed)
    assert Offer.decode(offer.encode()) == offer and offer.blocks == 4 and data == content
    assert wanted_of(b"\x0a", data) == content[4096:8192] + content[12288:]
    incoming = Incoming(files, [lambda at, size: b"x" * 10, lambda at, size: content[:4096]])
    answer = incoming.offer(offer)
    assert [is_wanted(answer, i) for i in range(4)] == [False, True, True, True] and is_wanted(b"", 0)
    with pytest.raises(ValueError, match="do not go on"):
        incoming.offer(offer)
    incoming.add(content[4096:9000])
    with pytest.raises(ValueError, match="pages are missing"):
        incoming.finish(hashed.digest())
    incoming.add(content[9000:])
    with pytest.raises(ValueError, match="nobody wants"):
        incoming.add(b"x")
    incoming.close()
    again = Incoming(files, [])
    assert not any(again.offer(offer)) and again.finish(hashed.digest()).read_bytes() == content
    piece = Piece(Kind.PAGES, (2, 1), (1, 1, 1), 0, b"x")
    assert Piece.decode(piece.encode()) == piece


def test_no_more_ranges_are_offered_than_there_is_room_for(tmp_path: Path) -> None:
    files = Files(tmp_path, "shop")
    files.open()
    incoming = Incoming(files, [])
    for first in range(pages.RANGES_MAX):
        incoming.offer(Offer(1 << 20, first, 1, bytes(8)))
    with pytest.raises(ValueError, match="pages are missing"):
        incoming.offer(Offer(1 << 20, pages.RANGES_MAX, 1, bytes(8)))
    incoming.close()


def test_sums_of_blocks() -> None:
    """Of what a block has and of how much that is; with another seed they are others."""
    r = random.Random(5)
    block = r.randbytes(BLOCK_BYTES)
    others = {sums_of(block, 1), sums_of(block, 2), sums_of(block[:-1], 1), sums_of(block[1:], 1), sums_of(b"", 1)}
    for bit in r.sample(range(8 * BLOCK_BYTES), 500):
        changed = bytearray(block)
        changed[bit // 8] ^= 1 << bit % 8
        others.add(sums_of(bytes(changed), 1))
    others |= {sums_of(bytes(size), 1) for size in range(1, 100)}
    assert len(others) == 5 + 500 + 99
    assert sums_of(block + block[:9], 3) == sums_of(block, 3) + sums_of(block[:9], 3)
    assert sums_of(bytes(range(100)), 0x0123456789ABCDEF).hex() == "f2f4eebee8b65b30"
