"""A station's files: whose they are, which one is in use, what is left behind; and a state as bytes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest
from zenjun.daemon.client import Member, Message, View
from zenjun.daemon.database import rows as storing
from zenjun.daemon.database.copy import Entries, FileRows, Frozen, open_copy, rewritten
from zenjun.daemon.database.doubt import Doubts
from zenjun.daemon.database.files import Files, FilesError, claim, is_name, remove
from zenjun.daemon.database.moving import Kind, Piece, Receiving, steps_of
from zenjun.daemon.database.site import Site
from zenjun.daemon.jsonframes import FrameError, Frames, pack
from zenjun.daemon.observe import Journal
from zenjun.proto.service.base import Effect, Emit
from zenjun.proto.service.database import messages as m
from zenjun.proto.service.database.certify import Shared
from zenjun.proto.service.database.given import decode_given, encode_given
from zenjun.proto.service.database.machine import Answer, Durability, Failed, Given, Reached
from zenjun.proto.service.database.roll import Sites
from zenjun.proto.service.database.rows import Entry, RowsFailed, Verdict
from zenjun.proto.service.database.scrub import Scrubbing
from zenjun.proto.service.database.window import Window

from ..rules import rule

UUID = bytes(range(16))


def _txid(number: int) -> m.Txid:
    return m.Txid(1, 2, 3, number)


def _commit(rows: FileRows, number: int, sql: str = "") -> None:
    last = rows.position()
    body = m.encode_body([(m.Segment.SQL, sql.encode())]) if sql else b""
    digest = m.next_digest(last.digest, last.version + 1, _txid(number), body)
    position = m.Position(last.epoch, last.version + 1, digest)
    assert rows.write(Entry(position, _txid(number), body)) is Verdict.DONE


def _given() -> Given:
    window = Window(3, 10, 100)
    window.add(4, [bytes(8), bytes([1] * 8)])
    window.add(5, [])
    write = m.Write(_txid(9), 7, 4, (bytes(8),), b"body")
    shared = Shared(
        7, {(1, 2), (3, 4)}, window, 4, 3054000, [((1, 2), m.Lock(_txid(8), 7))], [((3, 4), write)], {(1, 2): 5},
        {(1, 2): None, (3, 4): m.Position(7, 5, bytes(16))}, Scrubbing(7, {(1, 2): None, (3, 4): bytes(16)}),
    )  # fmt: skip
    return Given((1 << 33, 2, 0), shared)


def test_a_state_as_bytes() -> None:
    given = _given()
    data = encode_given(given)
    again = decode_given(data)
    assert encode_given(again) == data and again.place == given.place
    assert again.shared.window.writer(bytes(8)) == 4 and again.shared.waiting == given.shared.waiting
    for cut in range(len(data)):
        with pytest.raises(ValueError):
            decode_given(data[:cut])
    with pytest.raises(ValueError):
        decode_given(data + b"\0")


def test_frames() -> None:
    frames = Frames(100)
    data = pack({"a": 1}) + pack({"b": "ü"})
    found = [frame for i in range(len(data)) for frame in frames.feed(data[i : i + 1])]
    assert found == [{"a": 1}, {"b": "ü"}]
    for bad in (pack({"a": "x" * 100}), b"\0\0\0\1[", b"\0\0\0\2[]"):
        with pytest.raises(FrameError):
            list(Frames(100).feed(bad))


def test_the_folder_belongs_to_one_station(tmp_path: Path) -> None:
    root = tmp_path / "db"
    claim(root, "one", 1)
    claim(root, "one", 1)
    for cluster, station in (("two", 1), ("one", 2)):
        with pytest.raises(FilesError, match="belongs to station 1 of cluster 'one'"):
            claim(root, cluster, station)
    (root / "owner.json").write_text("no JSON")
    with pytest.raises(FilesError, match="cannot use"):
        claim(root, "one", 1)


@pytest.mark.parametrize(
    ("name", "good"),
    [("shop", True), ("a-b_9", True), ("", False), ("A", False), ("x" * 48, True), ("x" * 49, False), ("a/b", False)],
)
def test_names(name: str, good: bool) -> None:
    assert is_name(name) is good


def test_what_is_left_behind_is_removed(tmp_path: Path) -> None:
    """The file that the link names is in use; another generation, and what was being built, are not."""
    files = Files(tmp_path, "shop")
    rows, _ = open_copy(files, UUID)
    rows.create(UUID)
    rows.close()
    assert files.link.resolve() == files.path(1)
    files.path(7).write_bytes(b"")
    (files.folder / "7.part").write_bytes(b"")
    again, damaged = open_copy(files, UUID)
    assert (
        not damaged and not again.blank() and sorted(p.name for p in files.folder.glob("*")) == ["1.db", "1.db-shm", "1.db-wal"]
    )
    assert files.path(1).stat().st_mode & 0o777 == 0o640 and (files.folder / "1.db-shm").stat().st_mode & 0o777 == 0o660
    again.close()


def test_a_damaged_file_is_kept_and_a_blank_one_begun(tmp_path: Path) -> None:
    files = Files(tmp_path, "shop")
    files.open().write_bytes(b"no database at all" * 1000)
    rows, damaged = open_copy(files, UUID)
    assert rows.blank() and "bad-1.db" in damaged and (files.folder / "bad-1.db").exists()
    assert "not a database" in files.distrusted
    rows.close()


def test_a_site_whose_copy_was_damaged_is_not_one_without_a_copy(tmp_path: Path) -> None:
    """If all copies are damaged the database must not open with nothing in it."""
    files = Files(tmp_path, "shop")
    rows, _ = open_copy(files, UUID)
    rows.create(UUID)
    rows.close()
    remove(files.present())
    files.present().write_bytes(b"no database at all" * 1000)
    site = Site("shop", files, Sites(frozenset({1, 2, 3})), Journal(logging.getLogger("test_files")), UUID)
    site._open((1, 1))
    assert site.is_blank and site.machine is not None and site.machine.distrusts
    asyncio.run(site.close())
    later = Site("shop", files, Sites(frozenset({1, 2, 3})), Journal(logging.getLogger("test_files")), UUID)
    later._open((1, 2))
    assert later.machine is not None and later.machine.distrusts, "nor after the next start"
    asyncio.run(later.close())


@rule("D2")
@pytest.mark.parametrize("at_the_end", [True, False])
def test_what_a_full_disk_did_not_take_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_the_end: bool
) -> None:
    """Its transactions were decided, one after another; the batch does not get into the file, or is rolled back by the last."""
    site, clock = Site("shop", Files(tmp_path, "shop"), Sites(frozenset({1})), Journal(logging.getLogger("full")), UUID), 1 << 33
    site.message_max = 1 << 20
    site._open((1, 1))
    machine, rows = site.machine, site._rows
    assert machine is not None and rows is not None

    def take(effects: Sequence[Effect]) -> Sequence[Effect]:
        nonlocal clock
        clock += 1
        data = [effect.data for effect in effects if isinstance(effect, Emit)]
        return site._take([Message(each, "g", 1, 1, (clock, 1, k), True) for k, each in enumerate(data)])

    me = (Member(1, 1, ""),)
    effects: Sequence[Effect] = site._take([View("g", me, me, (), "join", (clock, 1, 65535), 1)])
    while not machine.is_active:
        effects = take(effects)
    position, shared = rows.position(), machine.shared
    assert shared is not None
    asked: list[Effect] = []
    for k in range(20):
        shared.locks.append(((1, 1), m.Lock(_txid(k), shared.epoch)))
        body = m.encode_body([(m.Segment.SQL, f"CREATE TABLE t{k}(id INTEGER PRIMARY KEY)".encode())])
        asked += machine.submit(m.Write(_txid(k), shared.epoch, position.version + k, (), body), Durability.MEMORY)
        asked += machine.barrier(k)
    rows.connection.pragma("max_page_count", rows.connection.pragma("page_count") + (100 if at_the_end else 7))

    def full() -> None:
        raise RowsFailed("database or disk is full")

    if at_the_end:
        monkeypatch.setattr(rows, "_commit", full)
    effects = take(asked)
    assert {e.verdict for e in effects if isinstance(e, Answer)} == {Verdict.UNDECIDED}
    assert not any(isinstance(e, Reached) for e in effects) and any(isinstance(e, Failed) for e in effects)
    rows.close()
    again, _ = open_copy(Files(tmp_path, "shop"), UUID)
    assert again.position() == position
    again.close()
    site._rows = None
    asyncio.run(site.close())


def test_a_note_of_a_failed_sync_outlasts_a_database_made_again(tmp_path: Path) -> None:
    """It was dropped and made again while the station was away: the folder is another one."""
    files = Files(tmp_path, "shop")
    rows, _ = open_copy(files, UUID)
    rows.create(UUID)
    rows.close()
    site = Site("shop", files, Sites(frozenset({1, 2, 3})), Journal(logging.getLogger("test_files")), b"another database")
    site.prepare()
    site.doubts.failed()
    asyncio.run(site.close())
    assert Doubts(files.folder).has_failed


@rule("W3")
def test_a_file_that_is_not_to_be_used(tmp_path: Path) -> None:
    """The next process knows it, too."""
    files = Files(tmp_path, "shop")
    rows, _ = open_copy(files, UUID)
    rows.close()
    assert not files.distrusted
    files.distrust("a row differs")
    assert Files(tmp_path, "shop").distrusted == "a row differs"
    (files.folder / "damaged").write_text("")
    assert files.distrusted, "a power cut may leave the name without the text"
    files.trust()
    files.trust()
    assert not files.distrusted


def test_a_file_that_is_no_copy_of_ours_is_refused(tmp_path: Path) -> None:
    files = Files(tmp_path, "shop")
    with apsw.Connection(str(files.open())) as c:
        c.execute("CREATE TABLE zenjun_meta(x)")
    c.close()
    with pytest.raises(RowsFailed):
        open_copy(files, UUID)


def _source(tmp_path: Path) -> FileRows:
    rows, _ = open_copy(Files(tmp_path / "donor", "shop"), UUID)
    rows.create(UUID)
    _commit(rows, 1, "CREATE TABLE t(id INTEGER PRIMARY KEY)")
    for number in range(2, 20):
        _commit(rows, number)
    return rows


def _move(frozen: Frozen, rows: FileRows, spoil: int = -1, message_max: int = 1 << 20) -> FileRows:
    """All pieces from one copy to another; one of them is not as it was sent."""
    receiving = Receiving((1, 1, 1))
    for step in steps_of(frozen, (2, 1), (1, 1, 1), message_max):
        if (piece := step.piece) is None:
            continue
        came = Piece.decode(piece.encode())
        assert came == piece
        if came.number == spoil:
            came = came._replace(data=came.data[:-1] + bytes([came.data[-1] ^ 1]))
        end = receiving.take(came, rows)
        frozen.answers[piece.number] = receiving.answer
        if end is not None:
            assert encode_given(end[1]) == frozen.state
            return end[0]
    raise AssertionError("no end")


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    (tmp_path / "donor").mkdir()
    (tmp_path / "joiner").mkdir()
    return tmp_path


@rule("W2")
def test_a_copy_by_pages(folders: Path) -> None:
    """To a blank site, and to one with another history, while the donor goes on."""
    donor = _source(folders)
    for have in (False, True):
        joiner, _ = open_copy(Files(folders / "joiner", f"shop{have:d}"), UUID)
        if have:
            joiner.create(UUID)
            _commit(joiner, 77)
        frozen = Frozen(donor, joiner.position() if have else m.Position(0, 0, bytes(16)), encode_given(_given()))
        position = donor.position()
        assert not frozen.goes_on
        _commit(donor, 100 + have)
        before = joiner.path
        moved = _move(frozen, joiner)
        frozen.close()
        assert moved.position() == position and moved.path != before
        assert joiner.files.link.resolve() == moved.path and moved.damage() == ""
        _commit(moved, 500)
        moved.close()
        joiner.close()
    assert not list(donor.files.folder.glob("*.part*"))
    donor.close()


@rule("W2")
def test_a_copy_by_the_log(folders: Path) -> None:
    """In messages that hold many entries, and in such that hold a part of one."""
    donor = _source(folders)
    for message_max in (1 << 20, 60):
        joiner, _ = open_copy(Files(folders / "joiner", f"shop{message_max}"), UUID)
        joiner.create(UUID)
        _commit(joiner, 1, "CREATE TABLE t(id INTEGER PRIMARY KEY)")
        frozen = Frozen(donor, joiner.position(), encode_given(_given()))
        assert frozen.goes_on
        assert _move(frozen, joiner, message_max=message_max) is joiner and joiner.position() == donor.position()
        frozen.close()
        joiner.close()
    donor.close()


@rule("W2")
def test_a_log_whose_bodies_are_too_many(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of the oldest transactions are kept, their bodies are not: a site that lacks these gets pages."""
    monkeypatch.setattr(storing, "LOG_BYTES_MAX", 100)
    donor = _source(folders)
    sql = "CREATE TABLE a_table_with_a_name_of_forty_letters_{}(id INTEGER)"
    for number in (30, 31):
        _commit(donor, number, sql.format(number))
    last = donor.position()
    for again in (False, True):
        found = donor.query("SELECT version FROM zenjun_log WHERE body IS NULL ORDER BY version")
        assert found == [(v,) for v in range(1, last.version)], "the last one fits by itself"
        assert donor.version_of(_txid(1)) == 1
        for behind, goes_on in ((2, False), (1, True)):
            version = last.version - behind
            frozen = Frozen(donor, m.Position(0, version, donor.digest_at(version) or b""), b"")
            assert frozen.goes_on == goes_on
            frozen.close()
        if not again:
            donor.close()
            donor, _ = open_copy(Files(folders / "donor", "shop"), UUID)
    _commit(donor, 40, sql.format(40))
    assert donor.query("SELECT count(*) FROM zenjun_log WHERE body IS NOT NULL") == [(1,)]
    donor.close()


def test_pieces_that_are_not_those_that_were_sent(folders: Path) -> None:
    """A changed page, a changed entry, a piece left out: the copy that was there stays."""
    donor = _source(folders)
    joiner, _ = open_copy(Files(folders / "joiner", "shop"), UUID)
    frozen = Frozen(donor, m.Position(0, 0, bytes(16)), encode_given(_given()))
    with pytest.raises(RowsFailed):
        _move(frozen, joiner, spoil=2)
    frozen.close()
    assert joiner.files.link.resolve() == joiner.path
    joiner.create(UUID)
    _commit(joiner, 1, "CREATE TABLE t(id INTEGER PRIMARY KEY)")
    frozen = Frozen(donor, joiner.position(), encode_given(_given()))
    assert frozen.goes_on
    with pytest.raises(RowsFailed):
        _move(frozen, joiner, spoil=1)
    receiving = Receiving((1, 1, 1))
    with pytest.raises(RowsFailed, match="in place of 0"):
        receiving.take(Piece(Kind.PAGES, (2, 1), (1, 1, 1), 1, b""), joiner)
    frozen.close()
    with pytest.raises(ValueError):
        list(Entries().feed(b"\xff" * 100))
    joiner.close()
    donor.close()


def test_after_a_failed_sync_all_is_written_anew(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To another file, which is synced before it is the database's; and if that fails as well, the former one stays."""
    rows = _source(folders)
    position, before = rows.position(), rows.path
    synced: list[str] = []
    real = os.fsync

    def fails(fd: int) -> None:
        raise OSError(5, "Input/output error")

    def counts(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        real(fd)

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(RowsFailed, match=r"cannot write .* anew"):
        rewritten(rows, UUID)
    assert rows.files.link.resolve() == before and not list(rows.files.folder.glob("*.part*"))
    monkeypatch.setattr(os, "fsync", counts)
    new = rewritten(rows, UUID)
    rows.close()
    assert new.position() == position and new.path != before and new.files.link.resolve() == new.path
    assert synced[0].endswith(".part"), "the file first, then what its name is in"
    _commit(new, 500)
    new.close()


def test_the_last_damaged_files_are_kept(tmp_path: Path) -> None:
    files = Files(tmp_path, "shop")
    for number in range(1, 13):
        path = files.open()
        path.write_text(str(number))
        path.with_name(path.name + "-wal").touch()
        assert files.set_aside(path).read_text() == str(number)
    assert [path.read_text() for path in files.damaged()] == ["12", "11", "10"] and files.damaged()[0].name == "bad-12.db"
    assert sorted(path.name for path in files.folder.iterdir()) == ["bad-10.db", "bad-11.db", "bad-12.db"]
