"""The list of databases says which ones a station has: what becomes of these when its copy is damaged, away, or an old one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from zenjun.daemon.client import Message
from zenjun.daemon.config.reader import parse
from zenjun.daemon.database.copy import CatalogueRows, open_copy
from zenjun.daemon.database.files import Files
from zenjun.daemon.database.process import Process
from zenjun.daemon.database.site import Site
from zenjun.daemon.observe import Journal
from zenjun.daemon.programs import Refused
from zenjun.proto.service.database.certify import table_hash

from ..rules import rule
from .test_process import CONFIG

SHOP, OTHER = b"s" * 16, b"o" * 16
ME = (1, 1)


def _process(root: Path, listed: bytes = SHOP, stations: int = 3) -> Process:
    """A station whose list has the database shop with this identity, and whose file of it is SHOP's."""
    shop, _ = open_copy(Files(root, "shop"), SHOP)
    shop.create(SHOP)
    shop.connection.execute("CREATE TABLE t(x); INSERT INTO t VALUES('acknowledged')")
    shop.close()
    catalogue, _ = open_copy(Files(root, "zenjun"), bytes(16), CatalogueRows)
    catalogue.create(bytes(16))
    catalogue.connection.execute("INSERT INTO databases VALUES('shop', ?, '{}')", (listed,))
    catalogue.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    catalogue.close()
    config = parse(CONFIG.format(root).replace("stations = 3", f"stations = {stations}"))
    return Process(config, root, Journal(logging.getLogger("catalogue")))


def _run(process: Process, what: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        try:
            await process.open()
            await what(process)
        finally:
            for site in process.sites.values():
                await site.close()

    asyncio.run(asyncio.wait_for(run(), 120))


async def _settled(process: Process) -> None:
    """What the catalogue has asked for is done: each change of it has had its turn, and one more."""
    await asyncio.sleep(0)
    await process._look()


async def _session(site: Site) -> None:
    """The service of a database is in an order, where nobody has spoken yet."""
    site.message_max = 60_000
    await site.work(site._open, ME)
    site.carry_out([])


@contextlib.asynccontextmanager
async def _order(site: Site) -> AsyncIterator[None]:
    """What the only member sends comes back, each message at its place."""
    site.quorum = lambda: True
    await _session(site)
    assert site.machine is not None

    async def turn() -> None:
        for clock in range(1 << 33, 1 << 34):
            _, data = await site._out.queue.get()
            item = Message(data, site.name, *ME, (clock, 1, 0), own=True)
            site.carry_out(await site.work(site._take, [item]))

    parts = [asyncio.create_task(turn()), asyncio.create_task(site.syncing.run())]
    try:
        site.carry_out(await site.work(site.machine.on_view, (1 << 32, 1, 0), frozenset({ME})))
        assert await site.until(lambda: site.follows, 60.0), "not within 60 s"
        yield
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


def _kept(root: Path) -> bool:
    rows, damaged = open_copy(Files(root, "shop"), SHOP)
    try:
        return not damaged and not rows.blank() and rows.query("SELECT x FROM t") == [("acknowledged",)]
    finally:
        rows.close()


@rule("Z2")
def test_a_list_that_is_damaged_removes_nothing(tmp_path: Path) -> None:
    """SQLite finds it while the process runs; the next session begins with a blank one."""

    async def what(process: Process) -> None:
        site = process.catalogue
        await _session(site)
        await _settled(process)
        assert site.machine is not None
        site.carry_out(await site.work(lambda: site.machine and site.machine.fail("malformed", is_damaged=True)))
        await site._leave([])
        path = site.files.present()
        path.write_bytes(path.read_bytes()[:100] + b"\xff" * 7900)
        await _session(site)
        await _settled(process)
        assert site.is_blank and site.files.damaged() and sorted(process.sites) == ["shop", "zenjun"]

    _run(_process(tmp_path), what)
    assert _kept(tmp_path)


@rule("Z2")
def test_a_list_that_is_closed_removes_nothing(tmp_path: Path) -> None:
    """Its disk was full, and it is tried again; somebody has waited to look at it meanwhile."""

    async def what(process: Process) -> None:
        site = process.catalogue
        await _session(site)
        assert site.machine is not None
        site.carry_out(await site.work(site.machine.fail, "disk full"))
        await site._leave([])
        await _settled(process)
        assert sorted(process.sites) == ["shop", "zenjun"]

    _run(_process(tmp_path), what)
    assert _kept(tmp_path)


@rule("Z2")
def test_a_list_removes_when_it_follows(tmp_path: Path) -> None:
    """A list that lacks a database may be an old one, until the order says that it is not."""

    async def what(process: Process) -> None:
        rows = process.catalogue._rows
        assert rows is not None
        await process.catalogue.work(rows.connection.execute, "DELETE FROM databases")
        await process._look()
        assert "shop" in process.sites and (tmp_path / "shop").exists()
        async with _order(process.catalogue):
            await _settled(process)
            assert sorted(process.sites) == ["zenjun"] and not (tmp_path / "shop").exists()

    _run(_process(tmp_path, stations=1), what)


@rule("Z2")
def test_a_database_is_dropped(tmp_path: Path) -> None:
    async def what(process: Process) -> None:
        async with _order(process.catalogue):
            await _settled(process)
            assert "shop" in process.sites and (tmp_path / "shop").exists()
            await process.drop("shop", 60.0)
            await _settled(process)
            assert sorted(process.sites) == ["zenjun"] and not (tmp_path / "shop").exists()

    _run(_process(tmp_path, stations=1), what)


@rule("Z2")
def test_a_file_of_a_newer_database_is_not_replaced_for_an_old_list(tmp_path: Path) -> None:
    """The file was restored, and the list that says so was not on the disk yet when the power failed."""

    async def what(process: Process) -> None:
        site = process.sites["shop"]
        assert site.step.startswith("failed: the list of databases may be an old one") and site.is_blank
        async with _order(process.catalogue):
            await site.work(site.prepare)
        assert site.step.startswith("failed") and site._rows is not None and site._rows.blank(), "it is no old one"

    process = _process(tmp_path, OTHER, stations=1)
    _run(process, lambda process: asyncio.sleep(0))
    assert _kept(tmp_path)
    _run(Process(process.config, tmp_path, process.journal), what)
    assert not _kept(tmp_path)


def test_there_are_64_databases_at_most(tmp_path: Path) -> None:
    """Counted where the last one is made: of two at the same time one is rejected, and counts again."""
    process = _process(tmp_path)
    sql = "INSERT INTO databases(uuid, options, name) VALUES(?, '{}', ?)"
    catalogue, _ = open_copy(Files(tmp_path, "zenjun"), bytes(16), CatalogueRows)
    catalogue.connection.executemany(sql, [(SHOP, f"name{k}") for k in range(62)])
    write = process._written(sql, (OTHER, "last"))
    assert write.body and write.reads == (table_hash("databases"),)
    catalogue.connection.execute(sql, (SHOP, "another"))
    with pytest.raises(Refused, match="there are 64 databases"):
        process._written(sql, (OTHER, "last"))
    assert process._written("DELETE FROM databases WHERE name = ?", ("another",)).body
    catalogue.close()
