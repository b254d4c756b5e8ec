"""The TO paper's evaluation (section 4) on the real thing: what it costs to acknowledge one PDU on a bus, counted in a capture.

One more station than the cluster has looks on: its port of the bridge sees every frame once, whoever sent it. Each message is
sent when the segment has been silent for a while; what is seen from its DATA PDU to the next silence belongs to it. Nothing is
believed but the frames: that everybody has acknowledged is read from the P vectors, rounds from what each vector covers first.

`zenjun evaluate all` counts the same captures in Spark (counts.py); the two must agree.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...daemon.client import connect_sync
from ...proto import wire
from ...proto.wire import Flag, Kind
from ..lab import Lab, LabError
from ..pcap.frames.records import Records

SIZES: Final = tuple(range(2, 9))
PATIENCE_S: Final = 20.0
QUIET_S: Final = 0.05
"""Silence between two messages."""
QUIET: Final = {
    "poll_delay_ms": 1000,
    "poll_delay_max_ms": 1000,
    "heartbeat_ms": 10_000,
    "fail_timeout_ms": 60_000,
    "progress_timeout_ms": 60_000,
    "own_timeout_ms": 1000,
}
"""Timers so slow that a starved process makes nobody ask: the counts are those of the message alone."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A PDU of the cluster on the segment; stations are 0..n-1."""

    time_ns: int
    kind: int
    flags: int
    src: int
    seq: int
    ack: tuple[int, ...]
    pack: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one message has cost."""

    pdus: int
    """Until everybody had said that it knows everybody to have it, and to the silence after that: it is the same."""
    rounds: int


def read(path: Path, cluster: int) -> list[Seen]:
    """The cluster's PDUs in a capture, in order."""
    out = []
    size = wire.HEADER.size
    for record in Records(path):
        pdu = record.data[wire.ETHERNET_HEADER :]
        if len(pdu) < size or struct.unpack_from(">H", record.data, 12)[0] != wire.ETHERTYPE:
            continue
        fields = dict(zip((f.name for f in wire.HEADER.fields), wire.HEADER.struct.unpack_from(pdu), strict=True))
        if fields["cluster"] != cluster:
            continue
        n = fields["stations"]
        ack = struct.unpack_from(f">{n}I", pdu, size)
        pack = struct.unpack_from(f">{n}I", pdu, size + 4 * n) if fields["flags"] & Flag.PACK else ()
        out.append(Seen(record.time_ns, fields["kind"], fields["flags"], fields["src"] - 1, fields["seq"], ack, pack))
    return out


def split(seen: Iterable[Seen]) -> Iterator[list[Seen]]:
    """One list for each DATA PDU, up to the next."""
    now: list[Seen] = []
    for pdu in seen:
        if pdu.kind == Kind.DATA:
            if now:
                yield now
            now = [pdu]
        elif now:
            now.append(pdu)
    if now:
        yield now


def judge(pdus: Sequence[Seen]) -> Exchange:
    """Count. ValueError if not everybody has acknowledged at the end, or there is something else than DATA and CONFIRM."""
    data = pdus[0]
    n, src = len(data.ack), data.src
    if any(p.kind != Kind.CONFIRM for p in pdus[1:]):
        raise ValueError("other PDUs than one DATA and CONFIRMs: " + " ".join(Kind(p.kind).name for p in pdus))
    covers: dict[int, int] = {src: 1}  # station: round of its first PDU that shows that it has the message
    knows: dict[int, int] = {}  # station: round of its first PDU that shows that it knows everybody to have it
    rounds = 1
    for p in pdus[1:]:
        level = 1
        if p.ack[src] > data.seq and p.src not in covers:
            level = covers[p.src] = 2
        if p.pack and p.pack[src] > data.seq and p.src not in knows:
            others = [covers[j] for j in range(n) if j != p.src and j in covers]
            if len(others) < n - 1:
                raise ValueError(f"station {p.src + 1} knows that everybody has it, and not everybody has said so")
            level = knows[p.src] = max(others) + 1
        rounds = max(rounds, level)
    if len(knows) < n:
        raise ValueError(f"only {sorted(k + 1 for k in knows)} of {n} stations have acknowledged it")
    return Exchange(len(pdus), rounds)


def measure(n: int, each: bool, repeats: int, folder: Path, name: str | None = None) -> list[Exchange]:
    """Send ``repeats`` lone messages in a lab of n stations on a bus. ``each``: every reception is answered at once. ``name``: of
    the lab. LabError."""
    with Lab(n + 1, name=name, medium="bus", options={"cluster": {**QUIET, "confirm": "each" if each else "merged"}}) as lab:
        ids = range(1, n + 1)
        for number in ids:
            lab.station(number).start_daemon({"cluster": {"stations": n, **lab.options["cluster"]}})
        lab.wait_open(PATIENCE_S, ids)
        with connect_sync(str(lab.station(1).socket_path), name="evaluate", timeout=PATIENCE_S, wait=PATIENCE_S) as connection:
            group = connection.join("evaluate", "ack")
            _silence(lab, ids)
            with lab.capture(folder, [n + 1]) as files:
                for k in range(repeats):
                    group.send(b"%d" % k, "ack", timeout=PATIENCE_S)
                    _silence(lab, ids)
        exchanges = list(split(read(files[n + 1], wire.cluster_id(f"lab-{lab.name}"))))
    if len(exchanges) != repeats:
        raise LabError(f"{repeats} messages were sent, the capture has {len(exchanges)}")
    return [judge(pdus) for pdus in exchanges]


def _silence(lab: Lab, ids: Iterable[int]) -> None:
    """Until nobody has sent anything for a while."""
    deadline = time.monotonic() + PATIENCE_S
    last, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_S:
        if time.monotonic() > deadline:
            raise LabError("the segment does not become silent")
        sent = sum(lab.station(i).status(PATIENCE_S)["counters"]["datapath"]["tx_frames"] for i in ids)
        if sent != last:
            last, since = sent, time.monotonic()
        time.sleep(0.01)


def _range(values: Iterable[int]) -> str:
    low, high = min(v := list(values)), max(v)
    return str(low) if low == high else f"{low}–{high}"


def table(results: dict[int, tuple[list[Exchange], list[Exchange]]]) -> str:
    """Markdown: by n, measured beside what the paper says."""
    out = [
        "| n | best, paper: 2n | measured | serialised: 2n − 1 | rounds, paper: 3 | measured | worst, paper: n² − n + 1"
        " | measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n, (merged, each) in sorted(results.items()):
        serial = sum(e.pdus == 2 * n - 1 for e in merged)
        out.append(
            f"| {n} | {2 * n} | {_range(e.pdus for e in merged)} | {serial} of {len(merged)} | 3 |"
            f" {_range(e.rounds for e in merged)} | {n * n - n + 1} | {_range(e.pdus for e in each)} |"
        )
    return "\n".join(out)


def as_claimed(n: int, merged: Iterable[Exchange], each: Iterable[Exchange]) -> str:
    """What does not agree with the paper, or nothing. Its domain begins at n = 3: of two, one confirmation says it all."""
    best = {2 * n - 1, 2 * n} if n > 2 else {3}
    for exchange in merged:
        if exchange.pdus not in best or exchange.rounds > 3:
            return f"n = {n}: {exchange.pdus} PDUs in {exchange.rounds} rounds"
    for exchange in each:
        if exchange.pdus != n * n - n + 1:
            return f"n = {n}, every reception answered: {exchange.pdus} PDUs"
    return ""
