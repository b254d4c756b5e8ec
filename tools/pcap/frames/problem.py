"""What the decoder finds wrong with a frame."""

from __future__ import annotations

from enum import IntEnum


class Problem(IntEnum):
    """What is wrong with a frame (``frames.problem``), in the order in which it is looked for."""

    NONE = 0
    CUT = 1  # the capture kept fewer bytes than were on the wire, and they are needed
    SHORT = 2  # ends within the header or the vectors
    VERSION = 3
    KIND = 4
    STATIONS = 5  # n is not 1..64
    SOURCE = 6  # source or target is not 1..n
    LENGTH = 7  # the payload is longer than the frame
    CHECK = 8  # a checksum does not fit
    PAYLOAD = 9  # the payload does not fit its kind
    ASIDE = 10  # nothing is: an envelope that holds no PDU (HELLO, LINKS, PROBE), an encrypted one, or a piece of one
