"""Captures of a run in which nothing is lost and everybody has everything at once: as long as one likes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from zenjun.proto import wire
from zenjun.tools.lab.capture import PcapngWriter

from . import traffic
from .built import frame

LIVES = [11, 22, 33]
"""Incarnations."""
STEP_NS = 1000


def run(count: int, senders: Sequence[int] = (1, 2, 3), confirm_every: int = 4) -> Iterator[tuple[int, int, bytes]]:
    """(time, sender, PDU): three stations open instance 1, and the senders in turn send so many DATA."""
    seqs, clock, now, shown = [0, 0, 0], 1 << 32, traffic.START_NS, wire.view_hash(1, LIVES)
    members = b"".join(wire.MEMBER.struct.pack(k, life, 0, 0) for k, life in enumerate(LIVES, 1))

    def made(kind: wire.Kind, src: int, payload: bytes, *, instance: int = 1, pack: bool = False) -> tuple[int, int, bytes]:
        nonlocal now
        now += STEP_NS
        vectors = list(seqs)
        body = traffic.pdu(
            kind, src, seqs[src - 1], vectors, payload, pack=vectors if pack else None, clock=clock,
            incarnation=LIVES[src - 1], instance=instance,
        )  # fmt: skip
        return now, src, body

    def confirm(src: int) -> tuple[int, int, bytes]:
        return made(wire.Kind.CONFIRM, src, wire.CONFIRM.struct.pack(0, 0, 0, 0, 0, shown), pack=True)

    for src in (1, 2, 3):
        yield made(wire.Kind.OPEN, src, wire.OPEN.struct.pack(1, 1, 0, 1, src, 3, 0, 0) + members, instance=0)
    for src in (1, 2, 3):
        yield confirm(src)
    for k in range(count):
        clock += 1
        src = senders[k % len(senders)]
        yield made(wire.Kind.DATA, src, traffic.data(b"%d" % k))
        seqs[src - 1] += 1
        if k % confirm_every == confirm_every - 1:
            yield confirm(k // confirm_every % 3 + 1)
    for k in range(9):
        yield confirm(k % 3 + 1)


def captures(
    folder: Path, frames: Sequence[tuple[int, int, bytes]], keep: Callable[[int, int], bool] = lambda station, k: True
) -> dict[int, Path]:
    """What all of them sent and received; keep: whether a station's capture has the frame of this index."""
    folder.mkdir(parents=True, exist_ok=True)
    out = {station: folder / f"station-{station}.pcapng" for station in (1, 2, 3)}
    for station, path in out.items():
        with path.open("wb") as file:
            writer = PcapngWriter(file, "ideal")
            writer.interface("eth0", "")
            for k, (now, src, body) in enumerate(frames):
                if keep(station, k):
                    raw = frame(body, src)
                    writer.frame(0, now, raw, len(raw), 2 if src == station else 1)
    return out
