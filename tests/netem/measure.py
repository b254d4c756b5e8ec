"""Frames with numbers through a lab, and what captures at both ends say about them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from zenjun.tools.lab import Impairment, Lab

ETHERTYPE = 0x88B6  # local experimental EtherType 2
GROUP = bytes.fromhex("035a4a0000ff")
SIZE = 64
PATIENCE_S = 240.0


def frame(source: int, number: int) -> bytes:
    """A group frame that carries its number."""
    head = GROUP + bytes.fromhex(f"025a4a0000{source:02x}") + ETHERTYPE.to_bytes(2, "big") + number.to_bytes(4, "big")
    return head + bytes(SIZE - len(head))


class Flow:
    """What happened to frames 0 … count-1 from station 1 to another one.

    sent: their bytes as captured at station 1, in order. got: (bytes, time) as captured at the receiver, in order. lost,
    overflowed: by the counters of the receiver's queue.
    """

    def __init__(self, sent: list[tuple[bytes, int]], got: list[tuple[bytes, int]], lost: int, overflowed: int) -> None:
        self.sent = sent
        self.got = got
        self.lost = lost
        self.overflowed = overflowed

    @property
    def numbers(self) -> list[int]:
        """Numbers of the frames received, as they came."""
        return [int.from_bytes(data[14:18], "big") for data, _ in self.got]

    @property
    def missing(self) -> list[bool]:
        """For each frame sent, whether it did not come."""
        came = set(self.numbers)
        return [number not in came for number in range(len(self.sent))]

    @property
    def transit_ns(self) -> dict[int, list[int]]:
        """How long each frame that came took, each time it came."""
        result: dict[int, list[int]] = defaultdict(list)
        for number, (_, time_ns) in zip(self.numbers, self.got, strict=True):
            result[number].append(time_ns - self.sent[number][1])
        return dict(result)


def read(path: Path) -> list[tuple[bytes, int]]:
    """Frames of a capture with their times, nanoseconds."""
    from scapy.utils import RawPcapNgReader

    with RawPcapNgReader(str(path)) as reader:
        return [(data, (note.tshigh << 32) + note.tslow) for data, note in cast("Iterable[tuple[bytes, Any]]", reader)]


def calm(lab: Lab) -> None:
    """End all impairments."""
    lab.impair(None, **Impairment().to_json())


def flow(lab: Lab, tmp_path: Path, count: int, receivers: tuple[int, ...] = (2,)) -> dict[int, Flow]:
    """Send numbered frames from station 1 through the impairments that are set, at once; what came of them, by receiver."""
    before = lab.counters()

    def finished() -> tuple[int, ...]:
        now = lab.counters()
        return tuple(sum(now[r][k] - before[r][k] for k in ("received", "lost", "queue_drops")) for r in receivers)

    with lab.capture(tmp_path, [1, *receivers], ring_mib=8) as paths:
        lab.stations[1].inject(*(frame(1, number) for number in range(count)))
        deadline = time.monotonic() + PATIENCE_S
        last: tuple[int, ...] = ()
        # With duplicates more come than were sent: done is what does not grow any more.
        while min(now := finished()) < count or now != last:
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {count} frames at {receivers}, but {now}"
            last = now
            time.sleep(0.05)
    after = lab.counters()
    sent = read(paths[1])
    assert [data for data, _ in sent] == [frame(1, number) for number in range(count)], "the sender's capture is not whole"
    return {
        r: Flow(sent, read(paths[r]), after[r]["lost"] - before[r]["lost"], after[r]["queue_drops"] - before[r]["queue_drops"])
        for r in receivers
    }
