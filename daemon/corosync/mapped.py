"""Files in which programs leave messages for libcpg (cpg_zcb_*): shared memory of the program and, with corosync, of the server.

The stand-in does not map them. A program can cut a file that it has given away, and who then reads mapped memory beyond its end
is killed. So what is to be sent is read from the file like from any other, once.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from pathlib import Path
from typing import Final

from .table import MAPPED_DATA, MAPPED_LENGTH, MAPPED_NUMBER

FOLDER: Final = b"/dev/shm/"
"""Where libcpg makes them."""
DATA_MAX: Final = 1 << 20
FILES_MAX: Final = 4096
"""Of a connection."""
FILES_ALL: Final = 16_384
"""Of all connections together, if the process may have as many descriptors."""
DESCRIPTORS: Final = 2048
"""For connections, those who have not said who they are, and the process itself: files leave so many, or three of four."""


def files_max() -> int:
    """Files of all connections together. Each is a descriptor: when there are none left nobody can connect, and the descriptor of
    a service stays ready, so that the loop would go round without a rest."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return FILES_ALL
    return min(FILES_ALL, max(most - DESCRIPTORS, most // 4))


class MappedError(Exception):
    """Not a file that a program may have given, or nothing in it that can be sent."""


class MappedFile:
    """One of them, open; it has no name any more."""

    def __init__(self, path: bytes, uid: int, number: int) -> None:
        """Takes the file of this user away, and writes its number into it. Raises MappedError: it is none of libcpg's kind. Never
        waits, and never touches another's file: this process may be root, the program need not."""
        name = path.removeprefix(FOLDER)
        if not path.startswith(FOLDER) or not name or b"/" in name:
            raise MappedError(f"{os.fsdecode(path)} is not in {os.fsdecode(FOLDER)}")
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise MappedError(f"{os.fsdecode(path)}: {error.strerror}") from None
        try:
            found = os.fstat(self._fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != uid or found.st_nlink != 1:
                raise MappedError(f"{os.fsdecode(path)} is not a file of user {uid} alone")
            os.pwrite(self._fd, number.to_bytes(8, "little"), MAPPED_NUMBER)
            Path(os.fsdecode(path)).unlink()
        except OSError as error:
            self.close()
            raise MappedError(f"{os.fsdecode(path)}: {error.strerror}") from None
        except MappedError:
            self.close()
            raise

    def message(self) -> bytes:
        """What is in it now. Raises MappedError: it says that it is longer than it is, or than a message may be."""
        try:
            head = os.pread(self._fd, 4, MAPPED_LENGTH)
            length = int.from_bytes(head, "little")
            data = os.pread(self._fd, length, MAPPED_DATA) if len(head) == 4 and length <= DATA_MAX else None
        except OSError as error:
            raise MappedError(error.strerror) from None
        if data is None or len(data) != length:
            raise MappedError("a message that is not there")
        return data

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
