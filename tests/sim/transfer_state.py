"""A program's state for the simulation of state transfer: a table that messages change, with snapshots, deltas and restores."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from zenjun.proto.service.stateapi import Have, Offer, Place, Snapshot
from zenjun.proto.service.transferwire import NOWHERE, digest_of

META = b"meta"


@dataclass(slots=True)
class Features:
    """What the programs of one run can do."""

    digests: bool
    readable: bool
    deltas: bool
    remembers: bool
    """A restart finds the state as it was last stored."""
    keeps_chunks: bool
    """A restart finds the chunks of a restore that it cut short."""
    buckets: int
    padding: int
    """Bytes that each value takes at least."""
    late_digests: bool = False
    """A snapshot gives its digest as a function."""


@dataclass(slots=True)
class Table:
    """What messages make: key to (place, value), and a hash over the whole history."""

    rows: dict[str, tuple[Place, int]] = field(default_factory=dict)
    history: str = ""
    place: Place = NOWHERE

    def apply(self, place: Place, key: str, value: int) -> None:
        """value 0 deletes."""
        self.rows[key] = (place, value)
        self.history = blake2b(f"{self.history}{place}{key}{value}".encode(), digest_size=8).hexdigest()
        self.place = place

    def digest(self) -> bytes:
        live = sorted((k, v) for k, (_, v) in self.rows.items() if v)
        return blake2b(repr((self.history, live)).encode(), digest_size=8).digest()


class Open:
    """Snapshots of one program that have not been closed, and calls of close."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.count = 0

    def make(self) -> int:
        self.count += 1
        self.open.add(self.count)
        return self.count

    def close(self, number: int) -> None:
        if number not in self.open:
            raise AssertionError("a snapshot was closed twice")
        self.open.remove(number)


class Program:
    """The state of one program."""

    def __init__(self, features: Features, table: Table, kept: dict[bytes, bytes] | None = None) -> None:
        self.features = features
        self.table = table
        self.snapshots = Open()
        self.kept_chunks: dict[bytes, bytes] = dict(kept or {})
        self.building: Building | None = None
        self.commits: list[tuple[Offer, bytes]] = []
        """(offer, digest) of each restored state that a check has not looked at."""
        self.snapshot_error = ""

    def bucket(self, key: str) -> bytes:
        return b"b%d" % (sum(key.encode()) % self.features.buckets)

    def have(self) -> Have | None:
        if self.table.place == NOWHERE:
            return None
        return Have(self.table.place, self.table.digest() if self.features.digests else b"", b"")

    def snapshot(self, place: Place, have: Have | None) -> Snapshot:
        if self.snapshot_error:
            error, self.snapshot_error = self.snapshot_error, ""
            raise OSError(error)
        frozen = copy.deepcopy(self.table)
        since = have.place if have and self.features.deltas else None
        chunks: dict[bytes, dict[str, tuple[Place, int]]] = {}
        for key, (changed, value) in sorted(frozen.rows.items()):
            if value if since is None else changed > since:
                chunks.setdefault(self.bucket(key), {})[key] = (changed, value)
        pad = "x" * self.features.padding
        data = {k: json.dumps([[key, *row, pad] for key, row in sorted(c.items())]).encode() for k, c in chunks.items()}
        data[META] = json.dumps([frozen.history, frozen.place]).encode()
        number = self.snapshots.make()

        def chunk_iterator() -> Iterator[tuple[bytes, bytes]]:
            for key, content in sorted(data.items()):
                assert number in self.snapshots.open, "read after close"
                yield key, content

        return Snapshot(
            chunk_iterator(),
            read=data.__getitem__ if self.features.readable else None,
            delta=since is not None,
            digest=frozen.digest if self.features.late_digests else frozen.digest() if self.features.digests else None,
            count=len(data),
            size=sum(map(len, data.values())),
            close=lambda: self.snapshots.close(number),
        )

    def restore(self, offer: Offer) -> Building:
        self.building = Building(self, offer.delta)
        return self.building


class Building:
    """A state being restored beside the old one."""

    def __init__(self, program: Program, delta: bool) -> None:
        self.program = program
        self.delta = delta
        self.chunks: dict[bytes, bytes] = {} if delta else program.kept_chunks
        self.committed = False
        self.fetched = 0

    def kept(self) -> list[tuple[bytes, bytes]]:
        return [(key, digest_of(data)) for key, data in sorted(self.chunks.items())]

    def chunk(self, key: bytes, data: bytes) -> None:
        self.chunks[key] = data
        self.fetched += 1

    def drop(self, key: bytes) -> None:
        del self.chunks[key]

    def _table(self) -> Table:
        table = copy.deepcopy(self.program.table) if self.delta else Table()
        for key, data in self.chunks.items():
            if key == META:
                table.history, place = json.loads(data)
                table.place = (place[0], place[1], place[2])
            else:
                for name, place, value, _ in json.loads(data):
                    table.rows[name] = ((place[0], place[1], place[2]), value)
        return table

    def end(self) -> bytes | None:
        return self._table().digest() if self.program.features.digests else None

    def commit(self, offer: Offer) -> None:
        assert not self.committed, "committed twice"
        self.committed = True
        self.program.table = self._table()
        self.program.commits.append((offer, self.program.table.digest()))
        self.program.kept_chunks.clear()
        self.program.building = None

    def abort(self) -> None:
        self.chunks.clear()
        self.program.building = None
