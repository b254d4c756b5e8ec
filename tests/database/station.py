"""One station without an order: what its programs commit is certified and applied at once, in their own process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from zenjun.daemon.database.copy import FileRows, open_copy
from zenjun.daemon.database.errors import error_of
from zenjun.daemon.database.files import Files
from zenjun.daemon.database.leases import encode_lease
from zenjun.daemon.database.wire import to_bytes
from zenjun.proto.service.database.certify import Certifier, Shared
from zenjun.proto.service.database.messages import Lock, Segment, Txid, Write, encode_body
from zenjun.proto.service.database.rows import Verdict
from zenjun.proto.service.database.window import Window

HERE = (1, 1)


class Station:
    """The database process, as ``Connection._ask`` has it."""

    def __init__(self, files: Files, rows: FileRows) -> None:
        self.files, self.rows = files, rows
        version = rows.position().version
        self.shared = Shared(0, {HERE}, Window(version), version, release=0)
        self.has_leases = True
        """Programs get blocks of ids."""
        self.last = b""
        """The body that was committed last."""
        self._numbers = 0
        self._pieces: dict[str, bytes] = {}
        self._mutex = threading.RLock()

    @classmethod
    def new(cls, folder: Path, name: str) -> Station:
        files = Files(folder, name)
        rows, _ = open_copy(files, bytes(range(16)))
        rows.create(bytes(range(16)))
        return cls(files, rows)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        with self._mutex:
            return self._answer(do, arguments)

    def _answer(self, do: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if do == "open":
            return {"path": str(self.files.link)}
        if do == "lock":
            self.shared.locks = [(HERE, Lock(Txid.decode(to_bytes(arguments["txid"])), 0))]
            return {"version": self.rows.position().version}
        if do == "unlock":
            self.shared.locks = []
        if do == "piece":
            before = self._pieces.get(arguments["txid"], b"") if arguments["number"] else b""
            self._pieces[arguments["txid"]] = before + to_bytes(arguments["body"])
        if do == "lease":
            return self._lease(arguments["table"], arguments["count"])
        if do == "commit":
            self.rows.tend()
            body = self._pieces.pop(arguments["txid"], b"") + to_bytes(arguments["body"])
            reads = to_bytes(arguments["reads"])
            hashes = tuple(reads[i : i + 8] for i in range(0, len(reads), 8))
            return {"version": self._decide(Txid.decode(to_bytes(arguments["txid"])), arguments["snapshot"], hashes, body)}
        return {}

    def _lease(self, table: str, count: int) -> dict[str, Any]:
        if not self.has_leases:
            raise error_of("no-quorum", "")
        self._numbers += 1
        segment = (Segment.LEASE, encode_lease(table, count))
        version = self._decide(Txid(9, 9, 9, self._numbers), self.rows.position().version, (), encode_body([segment]))
        ((first,),) = self.rows.query(f"SELECT first FROM zenjun_lease WHERE version = {version}")
        return {"first": first, "count": count}

    def _decide(self, txid: Txid, snapshot: int, reads: tuple[bytes, ...], body: bytes) -> int:
        self.last = body
        verdict, version = Certifier().decide(self.shared, self.rows, Write(txid, 0, snapshot, reads, body), True)
        if self.shared.locks and self.shared.locks[0][1].txid == txid:
            self.shared.locks = []
        if verdict is not Verdict.DONE:
            raise error_of(verdict.value, f"not committed: {verdict.value}")
        return version
