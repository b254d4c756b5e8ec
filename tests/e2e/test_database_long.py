"""Limits at their edge, on real daemons: transactions as long as they may be, as many connections as there may be."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from zenjun.daemon.database.driver.service import Service
from zenjun.daemon.database.errors import NotReachable
from zenjun.daemon.programs import CONNECTIONS_MAX
from zenjun.db import DataError
from zenjun.proto.service.database.messages import BODY_MAX, encode_body

from ..rules import rule
from .cluster import wait_for
from .test_database import Databases, shop

__all__ = ["shop"]

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ROW_BYTES = 1_000_000
CONNECTIONS = 256


@contextlib.contextmanager
def descriptors(number: int) -> Iterator[None]:
    """So many for this process, if it may have them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def commit_on_all(shop: Databases) -> None:
    """As many connections of one station as there may be, each with a transaction that is open; then all commit at once."""
    with descriptors(8 * CONNECTIONS), contextlib.ExitStack() as opened:
        all_ = [opened.enter_context(contextlib.closing(shop.connect(1, timeout=120))) for _ in range(CONNECTIONS)]
        for number, c in enumerate(all_):
            c.execute("INSERT INTO n VALUES(?)", (-1 - number,))
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            for done in [threads.submit(c.commit) for c in all_]:
                done.result()
        for c in all_:
            assert c.execute("SELECT count(*) FROM n WHERE id < 0").fetchone() == (CONNECTIONS,)


@rule("K6")
def test_the_longest_transaction_and_the_most_connections(shop: Databases) -> None:
    """Of exactly 64 MiB; one byte more is refused, and nothing of it is there. Others commit meanwhile."""
    with contextlib.closing(shop.connect(1, timeout=300)) as c, contextlib.closing(shop.connect(2, timeout=60)) as two:
        c.executescript("CREATE TABLE t(id INTEGER PRIMARY KEY, body BLOB); CREATE TABLE n(id INTEGER PRIMARY KEY)")
        c.commit()
        shop.until_equal()
        commit_on_all(shop)
        for more in (1, 0):
            c.executemany("INSERT INTO t VALUES(?, zeroblob(?))", [(i, ROW_BYTES) for i in range(BODY_MAX // ROW_BYTES)])
            assert c._branch is not None
            left = BODY_MAX - len(encode_body(c._branch.segments()))
            head = 2 + 9 + 1 + 3
            """Of a row in a changeset: what happened, the key, and the type and size of the other value."""
            c.execute("INSERT INTO t VALUES(-1, zeroblob(?))", (left - head + more,))
            assert len(encode_body(c._branch.segments())) == BODY_MAX + more
            if more:
                with pytest.raises(DataError, match=str(BODY_MAX)):
                    c.commit()
        committed = threading.Thread(target=c.commit)
        committed.start()
        short = 0
        while committed.is_alive():
            two.execute("INSERT INTO n VALUES(?)", (short,))
            two.commit()
            short += 1
            time.sleep(0.02)
        committed.join()
        assert short >= 3, "short transactions do not wait for a long one"
    shop.until_equal(timeout_s=120)
    for station in (1, 2, 3):
        with contextlib.closing(shop.connect(station)) as c:
            assert c.execute("SELECT count(*), sum(length(body)) / 1000000 FROM t").fetchone() == (BODY_MAX // ROW_BYTES + 1, 67)
            assert c.execute("SELECT count(*) FROM n").fetchone() == (short + CONNECTIONS,)


@rule("K6")
def test_a_station_comes_back_in_the_middle_of_one(shop: Databases) -> None:
    """Its state does not have the parts that came before: it has the transaction in the end, as all have, once."""
    with contextlib.closing(shop.connect(1, timeout=300)) as c:
        c.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, body BLOB)")
        c.commit()
        shop.until_equal()
        version = shop.facts(1)["version"]
        shop.kill(3)
        shop.until_equal((1, 2))
        c.executemany("INSERT INTO t VALUES(?, zeroblob(?))", [(i, ROW_BYTES) for i in range(60)])
        committed = threading.Thread(target=c.commit)
        shop.start(3)
        committed.start()
        committed.join(300)
        wait_for(lambda: not committed.is_alive(), "it is committed", 20)
    assert shop.until_equal(timeout_s=120)["version"] == version + 1
    with contextlib.closing(shop.connect(3)) as c:
        assert c.execute("SELECT count(*), sum(length(body)) FROM t").fetchone() == (60, 60 * ROW_BYTES)


def test_as_many_programs_as_there_may_be(shop: Databases) -> None:
    """One more is refused, those that are there go on, and there is room again when one has gone."""
    with descriptors(2 * CONNECTIONS_MAX), contextlib.ExitStack() as opened, contextlib.closing(shop.connect(1)) as c:
        c.execute("CREATE TABLE n(id INTEGER PRIMARY KEY)")
        c.commit()
        held = [opened.enter_context(contextlib.closing(Service(shop.socket(1)))) for _ in range(CONNECTIONS_MAX - 1)]
        with pytest.raises(NotReachable, match="cannot reach the database process"):
            Service(shop.socket(1))
        c.execute("INSERT INTO n VALUES(1)")
        c.commit()
        assert held[0].ask("status", timeout=30)["programs"] == CONNECTIONS_MAX
        held[-1].close()

        def is_free() -> bool:
            with contextlib.suppress(NotReachable), contextlib.closing(Service(shop.socket(1))):
                return True
            return False

        wait_for(is_free, "there is room again", 20)
    assert "programs are connected" in shop.log(1).read_text()
