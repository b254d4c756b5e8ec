"""Seeds for the fuzz targets, made from real PDUs; ``python -m tests.fuzz.make_corpus`` rewrites tests/fuzz/corpus.

Deterministic: the same sources give the same files.

Small clusters of C cores run over a lossy in-memory medium. What each station received, offered and did becomes one input of
``fuzz_rx`` (its operations are in fuzz_rx.c); one PDU of each kind and shape becomes one of ``fuzz_codec``.
Those of ``fuzz_multi`` are records of groups that overlap, those of ``fuzz_client`` frames as docs/client-protocol.md has them,
between calls of a program.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zenjun.daemon import clientwire
from zenjun.daemon.clientwire import Frame
from zenjun.proto import wire
from zenjun.proto.core import Commit, Core
from zenjun.proto.multicast.codec import encode
from zenjun.proto.multicast.records import Data, Decide, Held, Id, Record, Relay, Report, Stable
from zenjun.proto.multicast.tables import EraNumber, Program
from zenjun.proto.wire import Ordering
from zenjun.tools.dissect import Zenjun, ZenjunMember, ZenjunOpen

from ..virtual.cores import Cores

CORPUS = Path(__file__).with_name("corpus")
CLUSTER, INSTANCE, FRAME_MAX, MESSAGE_MAX = 0x7A656E6A, 3, 600, 4096
FIRSTS = (0, 0xFFFFFFF8, 0x7FFFFFFC, 0xFFFFFFFF)
OP_PDU, OP_STEP, OP_TIME, OP_OFFER, OP_TIMERS, OP_WORK, OP_MEMBER = 0, 2, 3, 4, 5, 7, 8
LIMIT, PROPOSE_STOP, COMMIT = 0, 2 | 8, 3
"""Membership operations of fuzz_rx.c."""
VIEW_BASE = 1000
SEALED, ALL_REPAIRED = 0x40, 0x7F
"""Sealing changes nothing in a real PDU, and keeps a mutated one from being dropped for its checksum."""


@dataclass
class Station:
    """A real core and the script of what happened to it."""

    core: Core
    script: bytearray = field(default_factory=bytearray)
    refused: int | None = None
    """Size of the message that was not, or only partly, taken: it comes first."""
    instance: int = INSTANCE

    def __post_init__(self) -> None:
        self.members = (1 << self.core.stations) - 1
        self.incarnations = [100 + index for index in range(self.core.stations)]

    def offer(self, size: int) -> None:
        size = size if self.refused is None else self.refused
        taken = self.core.offer(
            bytes(size),
            group=size & 0xFF,
            client=1,
            need_ack=bool(size & 1),
            ordering=Ordering.FIFO if size < 128 and size & 2 else Ordering.TOTAL,
        )
        self.refused = None if taken else size
        if not taken:
            return
        self.script += bytes([OP_OFFER, size]) if size < 128 else struct.pack(">BBH", OP_OFFER, 0x80, size)

    def receive(self, now: int, pdu: bytes, repair: int) -> None:
        self.core.rx(now, pdu, b"\x02\0\0\0\0\1")
        self.script += struct.pack(">BBH", OP_PDU, repair, len(pdu)) + pdu

    def membership(self, now: int, operation: int, h: int) -> None:
        """What ``membership`` in fuzz_rx.c does with these."""
        core = self.core
        self.script += bytes([OP_MEMBER, operation, h])
        if operation == LIMIT:
            core.limit(now, h, core.peer(h).req)
        elif operation == PROPOSE_STOP:
            core.propose(now, wire.Kind.STOP, wire.PROPOSAL.struct.pack(0, 0, 0, 1) + wire.CHANGE.struct.pack(h + 1, 0))
        else:
            seqs = {k: (core.peer(k).req - 1) % 2**64 for k in range(core.stations)}
            self.members ^= 1 << h
            joined = self.members & 1 << h
            self.incarnations[h] += 1
            self.instance += 1
            place = core.clock, core.index
            view = VIEW_BASE + self.instance
            core.commit(now, Commit(self.instance, view, self.members, joined, *place, tuple(self.incarnations), seqs, FRAME_MAX))

    def work(self, now: int) -> list[bytes]:
        self.core.proposals()
        self.core.step(now, True)
        self.core.deliver()
        self.script += bytes([OP_WORK, 255])
        return self.core.tx(now)


def cluster(stations: int, slots_power: int, window: int, first: int, loss: float, seed: int) -> tuple[list[bytes], list[bytes]]:
    """Run one; returns (an input per station, the PDUs sent)."""
    rng = random.Random(seed)
    slots = 4 << slots_power
    cores = Cores(
        stations,
        instance=INSTANCE,
        view=VIEW_BASE + INSTANCE,
        incarnations=range(100, 100 + stations),
        now=1,
        per_core={index: {"seed": first} for index in range(stations)},
        cluster=CLUSTER,
        window=1 + window % (slots // 2),
        slots=slots,
        frame_max=FRAME_MAX,
        message_max=MESSAGE_MAX,
        confirm_delay_ns=200_000,
        nak_delay_ns=100_000,
        nak_retry_ns=500_000,
        nak_retry_max_ns=8_000_000,
        poll_delay_ns=2_000_000,
        poll_delay_max_ns=64_000_000,
        retransmit_gap_ns=300_000,
        first_seq=FIRSTS[first],
    )
    all_of_it = [
        Station(core, bytearray([index * 5 + stations - 1, slots_power, window, first])) for index, core in enumerate(cores.cores)
    ]
    now, sent = 1, []
    changes = {6: (LIMIT, PROPOSE_STOP), 9: (COMMIT,), 11: (COMMIT,)} if stations > 2 else {}
    for turn in range(14):
        now += 400_000
        for station in all_of_it[:-1]:  # the last one is removed, and let in again
            for operation in changes.get(turn, ()):
                station.membership(now, operation, stations - 1)
        for station in all_of_it:
            station.script += struct.pack(">BH", OP_TIME, 400)
            if turn < 5 or turn == 10:
                station.offer(rng.choice((0, 1, 20, 100, 700)))
            station.core.nak(now)
            station.core.poll(now)
            station.script += bytes([OP_TIMERS, 3])
        for index, station in enumerate(all_of_it):
            for pdu in station.work(now):
                sent.append(pdu)
                for other, receiver in enumerate(all_of_it):
                    if other != index and rng.random() >= loss:
                        receiver.receive(now, pdu, ALL_REPAIRED if rng.random() < 0.3 else SEALED)
    return [bytes(station.script) for station in all_of_it], sent


def opens() -> list[bytes]:
    header: dict[str, Any] = {"cluster": CLUSTER, "src": 2, "incarnation": 101, "frame_max": FRAME_MAX, "ack": [0, 0, 0]}
    members = [ZenjunMember(station=i + 1, member_incarnation=100 + i, past=2, reached=5 * i) for i in range(3)]
    return [
        bytes(Zenjun(**header) / ZenjunOpen(boot=7, highest=2, proposed=members[1:2], host=b"station2")),
        bytes(Zenjun(**header) / ZenjunOpen(boot=7, proposal=3, highest=3, oflags=1, proposed=members, host=b"s")),
    ]


def programs() -> list[bytes]:
    """Scripts of fuzz_client.c: what the daemon says, each piece with its size before it, and calls."""
    place = {"clock": 1, "station": 1, "index": 0, "instance": 7}
    view = {
        **place,
        "group": "g",
        "reason": "join",
        "members": [[1, 1, "\u00e4"], [2, 1, "x"]],
        "joined": [[1, 1, "c"]],
        "left": [],
    }
    left = {**view, "left": [[1, 1, "c"]], "reason": "leave"}
    waited = [{"station": 2, "reason": "silent"}]
    lost = {"undecided": 2, "first": 1, "forgotten": 3, "unsafe": True}
    events: list[dict[str, Any]] = [
        {"event": "view", **place, "members": [[1, 5, "host"]], "joined": [1], "left": [2]},
        {"event": "blocked", "stations": waited, "quorum": False}, {"event": "unblocked"}, {"event": "closed", "station": 2},
        {"event": "reopened", "instance": 8, "members": [1, 2], "joined": True, **lost},
        {"event": "fenced", "at": [1, [2], None]},
        {"event": "expelled", "reason": "told", "station": 1, **lost}, {"event": "closing"},
    ]  # fmt: skip

    def frame(kind: Frame, body: bytes | dict[str, Any], handle: int = 0, flags: int = 0) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        whole = clientwire.HEADER.struct.pack(len(data), kind, flags, handle) + data
        return bytes([0]) + struct.pack("<H", len(whole)) + whole

    def reply(number: int, body: dict[str, Any], status: int = 0) -> bytes:
        return frame(Frame.REPLY, clientwire.REPLY.struct.pack(number, status) + json.dumps(body).encode())

    names = ("next", "join", "leave", "send", "ask", "sent", "wait", "only", "several")
    calls = {name: bytes([1 + at]) for at, name in enumerate(names)}
    message = frame(Frame.MESSAGE, clientwire.MESSAGE.struct.pack(1, 2, 3, 1) + b"data", 1, 1)
    joined = calls["join"] + frame(Frame.VIEW, view, 1) + calls["next"]
    done = frame(Frame.DONE, clientwire.DONE.struct.pack(2, 2, 1))
    refused = frame(Frame.ERROR, {"code": "closed-group", "message": "no", "handle": 1, "send": 2})
    detail = [{"station": 1, "incarnation": 5, "host": "h", "letter": None, "state": "up", "member": True}]
    return [
        joined + calls["several"] + calls["send"] + calls["several"] * 3 + done + calls["sent"] * 2 + calls["next"] * 3,
        joined + message * 3 + calls["next"] * 2 + calls["send"] * 3 + refused + done + calls["sent"] * 3 + calls["next"] * 5,
        joined + calls["leave"] + message + frame(Frame.VIEW, left, 1) + calls["next"] * 4 + calls["send"],
        calls["join"] + frame(Frame.ERROR, {"code": "name", "message": "x", "handle": 1}) + calls["next"] * 2 + calls["join"],
        joined + calls["send"] * 3 + b"".join(frame(Frame.EVENT, e) for e in events) + calls["sent"] * 3 + calls["next"] * 9,
        calls["ask"] * 2 + reply(1, {"members": [[1, 0, "h"]], "detail": detail}) + calls["next"]
        + reply(2, {"code": "refused", "message": "no"}, 1) + calls["next"] * 2,
        calls["only"] + reply(1, {"members": []}) + calls["next"] + calls["send"] + calls["leave"] + calls["wait"],
    ]  # fmt: skip


def pieces() -> list[bytes]:
    """PDUs in pieces: in order, the last one first, cut short, of too many; PROBEs and LINKS between."""

    def piece(place: int, count: int, size: int, *, number: int = 16, tx: int = 2, what: int = 2, first: bytes = b"") -> bytes:
        return struct.pack(">4BBBBBH", what, tx, 7, 0, number + place, place, count, 1, size) + first.ljust(8, b"\0")

    head = struct.pack(">IBB", 1, 1, wire.Kind.DATA)
    whole = [piece(k, 3, 900, first=head) for k in range(3)]
    return [
        b"".join(whole),
        b"".join(reversed(whole)),
        whole[0] + piece(1, 3, 800) + whole[2] + whole[2],
        b"".join(piece(k, 16, 187, tx=1 + k % 3, first=head) for k in range(16)),
        b"".join(piece(15, 16, 100, number=16 * n) for n in range(1, 15)) + b"".join(whole),
        piece(0, 3, 60, what=0, first=b"\1\1\0\5\0\x40") + piece(0, 0, 60, what=1) + whole[0],
    ]


def overlapping() -> list[bytes]:
    """Of ``fuzz_multi``: records as stations make them, between messages of this one, in an order that is likely or not."""
    name, order, program, groups = Id(EraNumber(INSTANCE, 0), 1, 1), "token", Program(1, 1, 1), (73, 75)
    records: list[Record] = [
        Data(name, program, order, groups, 7, b"content"),
        Report(name.era, order, 2, 1, 1, 9),
        Decide(name.era, order, 1, 1, 1, 9),
        Held(name.era, order, 1),
        Stable(name.era, order, 1),
        Relay(Data(name, program, order, groups, 7, b"again")),
    ]
    out = []
    for who in (b"\x0f\x01\x06\x01", b"\xff\xff\xff\xff", b"\x03\x00\x05\x00"):
        for how in (0, 1, 3, 7):
            script = bytearray(who)
            for k, record in enumerate(records):
                encoded = encode(record)
                head = bytes([4 | how << 3, k % 4, encoded.type, (encoded.group or 70) - 70, encoded.client, len(encoded.data)])
                script += bytes([how << 3, 1, 9]) + head + encoded.data + bytes([2 | 3 << 3, 1 | k << 3])
            out.append(bytes(script) + bytes([3 | 31 << 3]))
    return out


def main() -> None:
    shutil.rmtree(CORPUS, ignore_errors=True)
    for target in ("rx", "codec", "client", "pieces", "multi"):
        (CORPUS / target).mkdir(parents=True)

    def put(target: str, data: bytes) -> None:
        (CORPUS / target / f"{zlib.crc32(data):08x}").write_bytes(data)

    shapes: dict[tuple[int, int, int, int], bytes] = {}
    runs = ((2, 0, 0, 0, 0.0), (3, 1, 2, 0, 0.2), (3, 2, 7, 1, 0.3), (4, 1, 3, 2, 0.2), (5, 3, 15, 3, 0.1), (1, 1, 1, 0, 0.0))
    for seed, run in enumerate(runs):
        inputs, sent = cluster(*run, seed)
        put("rx", inputs[-1])
        if run[0] > 2:
            put("rx", inputs[0])
        elif run[0] == 2:  # the same frames as those of a link: the harness makes the header fit (0x7f: all of it)
            ops = b"".join(struct.pack(">BBH", OP_PDU, 0x7F, len(pdu)) + pdu + bytes([OP_WORK, 9]) for pdu in sent[:12])
            put("rx", bytes([1, 2, 3, 0x80]) + ops)
            put("rx", bytes([6, 2, 3, 0x80]) + ops)
        for pdu in sent:
            kind, flags = pdu[wire.HEADER.offset("kind")], pdu[wire.HEADER.offset("flags")]
            shapes.setdefault((run[0], kind, flags, len(pdu) // 64), pdu)
    for number, pdu in enumerate(opens()):
        shapes[3, wire.Kind.OPEN, number, 0] = pdu
        put("rx", bytes([2, 1, 2, 0]) + struct.pack(">BBH", OP_PDU, SEALED, len(pdu)) + pdu + bytes([OP_WORK, 9]))
    for (stations, _, _, _), pdu in shapes.items():
        put("codec", bytes([stations - 1]) + pdu)
    for script in programs():
        put("client", script)
    for frames in pieces():
        put("pieces", frames)
    for script in overlapping():
        put("multi", script)


if __name__ == "__main__":
    main()
