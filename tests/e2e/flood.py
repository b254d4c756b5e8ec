"""Sends the same frames over and over as fast as it can: ``flood.py INTERFACE SECONDS HEX...``; prints how many went out."""

from __future__ import annotations

import itertools
import socket
import sys
import time


def main() -> None:
    interface, seconds, frames = sys.argv[1], float(sys.argv[2]), [bytes.fromhex(text) for text in sys.argv[3:]]
    sent = 0
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.bind((interface, 0))
        end = time.monotonic() + seconds
        for frame in itertools.cycle(frames):
            try:
                sock.send(frame)
                sent += 1
            except OSError:  # the queue is full: that is what a flood is
                continue
            if not sent % 64 and time.monotonic() > end:
                break
    print(sent)


if __name__ == "__main__":
    main()
