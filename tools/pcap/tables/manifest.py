"""What a folder of tables has been made from, so that it can be added to: a directory that captures rotate into is read on from
where the last run ended.

``DIR/manifest.json`` is written, in one step, after the parts that it lists. Parts that it does not list are left over from a run
that was interrupted, and removed by the next one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ....proto import wire
from ..frames import files
from ..frames.files import Capture, FilesError

NAME: Final = "manifest.json"
_VERSION: Final = 1
_HEAD_BYTES: Final = 4096
_PART: Final = re.compile(r"^part-(\d+)-(\d+)\.parquet$")
_SAVED: Final = (
    *("path", "file", "station", "own_mac", "format", "link_types", "frames", "bytes", "first_ns", "last_ns", "ours", "cut"),
    *("truncated", "tail_bytes", "problem", "splits_before", "end", "told", "remark", "several", "pairs"),
)
_LATER: Final = frozenset({"cut", "told", "remark", "several", "pairs"})
"""Those that older manifests lack."""


@dataclass
class _Done:
    """One file as it was when it was read."""

    capture: Capture
    mtime_ns: int
    head: str
    head_bytes: int


@dataclass
class Manifest:
    """The files that have gone into the tables of one folder."""

    folder: Path
    ethertype: int = wire.ETHERTYPE
    done: list[_Done] = field(default_factory=list)

    @classmethod
    def load(cls, folder: Path, ethertype: int) -> Manifest:
        """Of a folder that is not there or empty: a new one. Raises FilesError for a folder that is something else."""
        try:
            text = (folder / NAME).read_text()
        except FileNotFoundError:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise FilesError(f"{folder}: exists and holds no tables of captures; choose another folder") from None
            return cls(folder, ethertype)
        except (OSError, UnicodeDecodeError) as error:
            raise FilesError(f"{folder / NAME}: {getattr(error, 'strerror', None) or error}") from None
        try:
            data = json.loads(text)
            if data["version"] != _VERSION:
                raise FilesError(f"{folder}: made by another version (manifest {data['version']}); make it anew")
            done = [_Done(_capture(row), row["mtime_ns"], row["head"], row["head_bytes"]) for row in data["files"]]
            saved = int(data["ethertype"])
        except (ValueError, KeyError, TypeError) as error:
            raise FilesError(f"{folder / NAME}: damaged ({error}); remove the folder") from None
        if saved != ethertype:
            raise FilesError(f"{folder}: made with --ethertype {saved:#06x}, not {ethertype:#06x}")
        return cls(folder, ethertype, done)

    def pending(
        self,
        names: Iterable[str | os.PathLike[str]],
        *,
        stations_given: Mapping[str, int] | None = None,
        split_bytes: int = files.SPLIT_BYTES,
        on_bytes: Callable[[int, int], None] | None = None,
    ) -> list[Capture]:
        """The files among *names* that are new, and those that have grown with the splits of what was added; scanned and
        numbered. Raises FilesError."""
        known = {os.path.realpath(done.capture.path): done for done in self.done}
        wanted: list[tuple[Capture, Capture | None]] = []
        for capture in files.named(names, stations_given or {}):
            before = known.get(os.path.realpath(capture.path))
            if before is None or not _same_head(before):
                wanted.append((capture, None))
            elif _changed(before) and before.capture.problem is None and before.capture.splits_before:
                wanted.append((capture, before.capture))
            elif before.capture.problem is not None and _changed(before):
                wanted.append((capture, None))
        scanned = files.scan_all(wanted, ethertype=self.ethertype, split_bytes=split_bytes, on_bytes=on_bytes)
        grown = [c for c, (_, start) in zip(scanned, wanted, strict=True) if start is not None]
        new = [c for c, (_, start) in zip(scanned, wanted, strict=True) if start is None]
        first = 1 + max((done.capture.file for done in self.done), default=-1)
        return sorted(grown + files.number(new, first), key=lambda c: c.file)

    def add(self, captures: Sequence[Capture]) -> None:
        """Their splits have been written."""
        by_file = {done.capture.file: done for done in self.done}
        for capture in captures:
            try:
                with Path(capture.path).open("rb") as file:
                    status = os.fstat(file.fileno())
                    head = file.read(min(_HEAD_BYTES, capture.bytes))
            except OSError:
                status, head = None, b""
            saved = Capture(**{name: getattr(capture, name) for name in _SAVED}, end_state=capture.end_state)
            saved.splits_before += len(capture.splits)
            mtime = status.st_mtime_ns if status is not None and status.st_size == capture.bytes else 0
            by_file[capture.file] = _Done(saved, mtime, hashlib.sha256(head).hexdigest(), len(head))
        self.done = [by_file[number] for number in sorted(by_file)]

    def save(self) -> None:
        """Raises OSError."""
        rows = []
        for done in self.done:
            row: dict[str, Any] = {name: getattr(done.capture, name) for name in _SAVED}
            rows.append(
                row
                | {"end_state": done.capture.end_state.hex()}
                | {"mtime_ns": done.mtime_ns, "head": done.head, "head_bytes": done.head_bytes}
            )
        temporary = self.folder / f".{NAME}.tmp"
        temporary.write_text(json.dumps({"version": _VERSION, "ethertype": self.ethertype, "files": rows}, indent=1) + "\n")
        temporary.replace(self.folder / NAME)

    @property
    def captures(self) -> list[Capture]:
        """All files, in the order of their numbers; without splits."""
        return [done.capture for done in self.done]

    def tidy(self, tables: Iterable[str]) -> None:
        """Remove the parts that no run has finished."""
        splits = {done.capture.file: done.capture.splits_before for done in self.done}
        for table in tables:
            for path in (self.folder / table).glob("station=*/*"):
                part = _PART.match(path.name)
                if part is None or int(part[2]) >= splits.get(int(part[1]), 0):
                    path.unlink(missing_ok=True)


def part_name(file: int, number: int) -> str:
    """Of the part that one split gives."""
    return f"part-{file:05d}-{number:05d}.parquet"


def _capture(row: Mapping[str, Any]) -> Capture:
    return Capture(
        **{name: row[name] for name in _SAVED if name not in _LATER or name in row}, end_state=bytes.fromhex(row["end_state"])
    )


def _same_head(done: _Done) -> bool:
    """Whether the file still begins as it did: a ring of files reuses its names."""
    try:
        with Path(done.capture.path).open("rb") as file:
            head = file.read(done.head_bytes)
    except OSError:
        return False
    return len(head) == done.head_bytes and hashlib.sha256(head).hexdigest() == done.head


def _changed(done: _Done) -> bool:
    try:
        status = Path(done.capture.path).stat()
    except OSError:
        return False
    return status.st_size != done.capture.bytes or status.st_mtime_ns != done.mtime_ns
