"""``python -m tests.e2e.failing_disks VARIANT --config …``: a database process whose disk or library is not what it should be.

While the file ``fail-sync`` is in its state directory the syncs of databases fail, as fdatasync says it once and not again.
"""

from __future__ import annotations

import os
import signal
import sys
import tomllib
from pathlib import Path
from typing import Final

import apsw
from zenjun.daemon.database.__main__ import main

VARIANTS: Final = ("sync-fails", "killed-in-sync", "other-release")


def failing_syncs(switch: Path, *, kills: bool) -> None:
    """kills: the process dies before it can say so."""
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        if switch.exists() and "shop" in os.readlink(f"/proc/self/fd/{fd}"):  # noqa: PTH115 (not the copy of a Path)
            switch.unlink()
            if kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(5, "Input/output error")
        real(fd)

    os.fdatasync = fdatasync  # type: ignore[assignment]


if __name__ == "__main__":
    variant, config = sys.argv[1], Path(sys.argv[3])
    if variant == "other-release":
        apsw.SQLITE_VERSION_NUMBER += 1000
    else:
        state = Path(tomllib.loads(config.read_text())["station"]["state_dir"])
        failing_syncs(state / "fail-sync", kills=variant == "killed-in-sync")
    sys.exit(main(sys.argv[2:]))
