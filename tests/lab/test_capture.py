"""The end of a capture, with a kernel that takes its time to hand over what has arrived."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.tools.lab import capture

from ..pcap.shapes import walk

FRAME = bytes(60)


class SlowRing:
    """Stands in for the kernel's ring: three frames have arrived and are counted, and the block with them is not ready yet."""

    def __init__(self, ready_after_s: float) -> None:
        self._read, self._write = os.pipe()
        self._ready = time.monotonic() + ready_after_s
        self.taken = 0

    def fileno(self) -> int:
        return self._read

    def frames(self) -> Iterator[tuple[int, int, bytes, int, int]]:
        while self.taken < 3 and time.monotonic() >= self._ready:
            self.taken += 1
            yield 2, self.taken, FRAME, len(FRAME), 0

    def counted(self) -> tuple[int, int]:
        return 3, 0

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.mark.parametrize(("ready_after_s", "frames"), [(0.0, 3), (0.4, 3), (60.0, 0)])
def test_all_that_had_arrived_is_in_the_file(
    ready_after_s: float, frames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the block's time is up late; what never comes is waited for no longer than a deadline."""
    ring = SlowRing(ready_after_s)
    monkeypatch.setattr(capture, "Ring", lambda _size: ring)
    if frames == 0:
        monkeypatch.setattr(capture, "_LAST_S", 0.2)
    made = capture.Capture(tmp_path / "frames.pcapng", "station 1", 1 << 17, 0)
    stop_read, stop_write = os.pipe()
    try:
        os.write(stop_write, b"x")
        assert made.run(stop_read) == 0
    finally:
        for descriptor in (stop_read, stop_write):
            os.close(descriptor)
        ring.close()
    assert made.frames == frames
    assert len(walk(tmp_path / "frames.pcapng")[0]) == frames
