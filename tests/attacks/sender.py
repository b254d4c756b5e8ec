"""A program of a user that sends as fast as it can: ``sender.py FOLDER SOCKET UID NAME COUNT``; prints the seconds it took.

Each message is NAME and a number from 1, to group ``flood``; the time ends when the last one has reached preack, and
begins when a line of standard input is there.
"""

from __future__ import annotations

import os
import sys
import time

from zenjun.daemon.client import connect_sync

WAIT_S = 120.0


def main() -> None:
    folder, path, uid, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    os.chdir(folder)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    with connect_sync(path, timeout=WAIT_S) as connection:
        group = connection.join("flood", timeout=WAIT_S, send_only=True)
        print("ready", flush=True)
        sys.stdin.readline()
        begun = time.monotonic()
        with group.pipeline(timeout=WAIT_S) as pipeline:
            for number in range(1, count + 1):
                pipeline.put(f"{name} {number}".encode())
        print(time.monotonic() - begun, flush=True)


if __name__ == "__main__":
    main()
