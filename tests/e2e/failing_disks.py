"""``python -m tests.e2e.failing_disks VARIANT --config …``: a database process whose disk or library is not what it should be.

While the file ``fail-sync`` is in its state directory the syncs of databases fail, as fdatasync says it once and not again.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import tomllib
from pathlib import Path
from typing import Final

import apsw
from zenjun.daemon.database import vfs
from zenjun.daemon.database.__main__ import main

VARIANTS: Final = ("sync-fails", "killed-in-sync", "other-release")


def failing_syncs(switch: Path, *, kills: bool) -> None:
    """kills: the process dies before it can say so."""
    real = os.fdatasync

    def is_next(path: str) -> bool:
        if not switch.exists() or "shop" not in path:
            return False
        switch.unlink()
        if kills:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    def fdatasync(fd: int) -> None:
        if is_next(os.readlink(f"/proc/self/fd/{fd}")):  # noqa: PTH115 (not the copy of a Path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    class Disk(vfs.Disk):
        """What the thread of commits says of its syncs."""

        fails = False

        def sync(self, path: Path) -> None:
            self.fails = is_next(str(path))
            super().sync(path)

        def take(self) -> tuple[int, float] | None:
            taken = super().take()
            return (errno.EIO, taken[1]) if taken is not None and self.fails else taken

    os.fdatasync = fdatasync  # type: ignore[assignment]
    vfs.Disk = Disk  # type: ignore[misc]


if __name__ == "__main__":
    variant, config = sys.argv[1], Path(sys.argv[3])
    if variant == "other-release":
        apsw.SQLITE_VERSION_NUMBER += 1000
    else:
        state = Path(tomllib.loads(config.read_text())["station"]["state_dir"])
        failing_syncs(state / "fail-sync", kills=variant == "killed-in-sync")
    sys.exit(main(sys.argv[2:]))
