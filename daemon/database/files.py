"""The files of a station's databases.

``ROOT/NAME/GENERATION.db`` with its ``-wal`` and ``-shm``, and the symbolic link ``ROOT/NAME.db``, which programs open. A copy
that comes by pages is another generation: a file in use is never replaced, because its ``-wal`` belongs to it by name.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Final

from ..durable import sync
from .wire import NAME_PATTERN

CATALOGUE: Final = "zenjun"
"""The database that has the names of all."""
_FILE: Final = re.compile(r"(\d+)\.db")
_BAD: Final = re.compile(r"bad-(\d+)\.db")
BAD_MAX: Final = 3
"""Damaged files of a database that are kept, the last ones: a disk that fails again and again must not be filled by them."""
_DAMAGED: Final = "damaged"
_OWNER: Final = "owner.json"


class FilesError(Exception):
    """The folder cannot be used; the text is one line for the operator."""


def is_name(name: str) -> bool:
    """Whether a database may have this name."""
    return re.fullmatch(NAME_PATTERN, name) is not None


def claim(root: Path, cluster: str, station: int) -> None:
    """Make the folder of all databases, for this station of this cluster only. FilesError: it cannot be made, or is another's."""
    own = {"cluster": cluster, "station": station}
    try:
        root.mkdir(mode=0o750, parents=True, exist_ok=True)
        owner = root / _OWNER
        if not owner.exists():
            owner.write_text(json.dumps(own) + "\n")
            sync(root)
        found = json.loads(owner.read_text())
    except (OSError, ValueError) as error:
        raise FilesError(f"cannot use {root}: {error}") from error
    if found != own:
        raise FilesError(
            f"{root} belongs to station {found.get('station')} of cluster {found.get('cluster')!r}; this is station {station} of "
            f"cluster {cluster!r}. If the folder was copied, remove it: the others have the databases"
        )


class Files:
    """Those of one database."""

    def __init__(self, root: Path, name: str) -> None:
        self.folder = root / name
        self.link = root / f"{name}.db"
        self._shut = root / f"{name}.shut"
        """The link, while nobody may open the file."""

    def open(self) -> Path:
        """The present generation, after what was left behind is removed. Raises OSError."""
        self.folder.mkdir(mode=0o750, exist_ok=True)
        found = sorted(self._generations())
        present = self._pointed()
        if present not in found:
            present = found[-1] if found else 1
        path = self.path(present)
        for number in found:
            if number != present:
                remove(self.path(number))
        self.keep_rest()
        for rest in self.folder.glob("*.part*"):
            rest.unlink()
        self.point(path)
        return path

    @property
    def part(self) -> Path:
        """Where a copy from another site comes."""
        return self.folder / "came.part"

    def keep_rest(self) -> Path:
        """What has come of a copy is used for the next one, from this path. Raises OSError."""
        rest = self.folder / "came.rest"
        if self.part.exists():
            self.part.rename(rest)
        return rest

    def damaged(self) -> list[Path]:
        """Copies that were set aside, the last one first."""
        found = [each for each in self.folder.glob("bad-*.db") if _BAD.fullmatch(each.name)]
        return sorted(found, key=self._number_of, reverse=True)

    @staticmethod
    def _number_of(damaged: Path) -> int:
        return int(damaged.stem.partition("-")[2])

    def present(self) -> Path:
        """The file that programs open; it need not be there."""
        return self.path(self._pointed() or 1)

    def adopt(self, prepared: Path) -> None:
        """Make this file, which is on the disk, the database's first one; unless there is one. Raises OSError."""
        if prepared.exists():
            self.folder.mkdir(mode=0o750, exist_ok=True)
            if not self._pointed():
                prepared.rename(self.path(1))
                sync(self.folder)
                self.point(self.path(1))
            prepared.unlink(missing_ok=True)

    def path(self, generation: int) -> Path:
        return self.folder / f"{generation}.db"

    def next(self) -> Path:
        """Where another copy goes."""
        return self.path(max([self._pointed(), *self._generations()]) + 1)

    def point(self, path: Path) -> None:
        """From here on this file is the database's. Raises OSError."""
        beside = self.link.with_suffix(".new")
        beside.unlink(missing_ok=True)
        beside.symlink_to(path.relative_to(self.link.parent))
        beside.rename(self.link)
        self._shut.unlink(missing_ok=True)
        sync(self.link.parent)

    def shut(self) -> None:
        """No program finds the file from here on, until ``open``. Raises OSError."""
        if self.link.is_symlink():
            self.link.rename(self._shut)

    @property
    def distrusted(self) -> str:
        """Why the present file must not be used for another one, however whole it looks; empty: it may."""
        try:
            return (self.folder / _DAMAGED).read_text() or "it is not known why"  # after a power cut
        except OSError:
            return ""

    def distrust(self, reason: str) -> None:
        """Remember it, also for the next process. Raises OSError."""
        (self.folder / _DAMAGED).write_text(reason)
        sync(self.folder)

    def trust(self) -> None:
        """There is another file. Raises OSError."""
        (self.folder / _DAMAGED).unlink(missing_ok=True)

    def set_aside(self, path: Path) -> Path:
        """Keep a damaged file under another name, beside the last ones. Raises OSError."""
        before = self.damaged()
        target = path.with_name(f"bad-{self._number_of(before[0]) + 1 if before else 1}.db")
        path.rename(target)
        remove(path)
        for each in before[BAD_MAX - 1 :]:
            remove(each)
        return target

    def remove(self) -> None:
        """All of them. Raises OSError."""
        self.link.unlink(missing_ok=True)
        self._shut.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)

    def _pointed(self) -> int:
        for link in (self.link, self._shut):
            with contextlib.suppress(OSError):
                if match := _FILE.fullmatch(link.readlink().name):
                    return int(match[1])
        return 0

    def _generations(self) -> list[int]:
        return [int(match[1]) for each in self.folder.glob("*.db") if (match := _FILE.fullmatch(each.name))]


def remove(path: Path) -> None:
    """A database's file with what belongs to it. Raises OSError."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def size_of(path: Path | None) -> int:
    """Bytes of a file; 0: there is none."""
    try:
        return path.stat().st_size if path is not None else 0
    except OSError:
        return 0
