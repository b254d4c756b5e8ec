"""The observer: what it derives from one station's frames is what the station did."""

from __future__ import annotations

import atexit
import functools
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from zenjun.proto import wire
from zenjun.tools.lab.capture import PcapngWriter
from zenjun.tools.pcap.tables import schema
from zenjun.tools.pcap.tables.replay import TABLES, Totals, replay
from zenjun.tools.pcap.tables.schema import Finding

from . import planted, recorded, simulated
from .planted import Pdu

SEEDS = (1, 2, 5, 9, 28, 128, 230, 364, 432)
"""Among them all that once showed a fault of the observer."""


def run(path: Path, station: int, out: Path) -> Totals:
    return replay([(0, str(path))], station, out)


def findings(out: Path, station: int) -> set[Finding]:
    return {Finding(row["what"]) for row in planted.rows(out, "findings", station)}


def agrees(totals: Totals) -> bool:
    return totals.own_equal == totals.own_compared and totals.others_equal == totals.others_compared


# ---- against simulated clusters


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules(seed: int, tmp_path: Path) -> None:
    """Loss, re-ordering, crashes, partitions, pauses: the digest is the announced one, the order is the delivered one."""
    simulation = simulated.simulation(seed, first_seq=0, direct_from=4 if seed % 2 else 0)
    files = simulated.capture(simulation, tmp_path / "captures")
    compared = 0
    for station, path in files.items():
        totals = run(path, station, tmp_path / "out")
        assert agrees(totals), totals
        assert findings(tmp_path / "out", station) <= {Finding.GAP}
        compared += totals.own_compared
    assert compared > 10
    delivered = 0
    for stay in simulation.facts.all_stays():
        records = [r.place for r in stay.records if r.type != wire.MessageType.VIEW]
        if not records or stay.fenced:
            continue
        rows = planted.rows(tmp_path / "out", "messages", stay.station + 1)
        between = [p for r in rows if records[0] <= (p := (r["clock"], r["src"] - 1, r["index"])) <= records[-1]]
        # What it delivered last, just before it crashed, may never have been acknowledged.
        assert records[: len(between)] == between
        delivered += len(between)
    assert delivered > 20


def test_numbers_that_wrap(tmp_path: Path) -> None:
    """Streams that begin shortly before 2^32."""
    seen = 0
    for seed in (9, 30):
        files = simulated.capture(simulated.simulation(seed, first_seq=(1 << 32) - 20), tmp_path / str(seed))
        for station, path in files.items():
            totals = run(path, station, tmp_path / f"out{seed}")
            if totals.resumed:  # it cannot know then at which number the streams of those begin who are let in
                continue
            assert agrees(totals)
            assert findings(tmp_path / f"out{seed}", station) <= {Finding.GAP}
            seen += any(row["seq"] >= 1 << 32 for row in planted.rows(tmp_path / f"out{seed}", "order", station))
    assert seen


# ---- captures that do not show everything


@functools.cache
def _long() -> dict[int, Path]:
    folder = Path(tempfile.mkdtemp(prefix="zenjun-observer-"))
    atexit.register(shutil.rmtree, folder, True)
    return simulated.capture(simulated.simulation(6, first_seq=0), folder)


def test_a_capture_that_begins_late(tmp_path: Path) -> None:
    """Places are known from where all earlier clocks are passed; positions are not."""
    path = _long()[1]
    whole = run(path, 1, tmp_path / "whole")
    compared = []
    for first in range(
        3000, min(9000, whole.frames - 500), 1000
    ):  # the station's last life begins before, or nothing of it were missing
        count = [0]

        def later(_pdu: Pdu, count: list[int] = count, first: int = first) -> list[Pdu] | None:
            count[0] += 1
            return [] if count[0] < first else None

        planted.rewrite(path, tmp_path / "late.pcapng", later)
        out = tmp_path / f"late{first}"
        totals = run(tmp_path / "late.pcapng", 1, out)
        assert totals.resumed and agrees(totals)
        if findings(out, 1) != {Finding.RESUMED}:
            continue  # it begins in the middle of a repair, which is a gap
        views = planted.rows(out, "views", 1)
        assert not views[0]["complete"] and views[0]["place_clock"] is None
        begin, end = views[0]["from_clock"], views[0]["to_clock"]
        keys = [
            [(r["clock"], r["src"], r["seq"]) for r in planted.rows(x, "order", 1) if begin < r["clock"] <= end]
            for x in (tmp_path / "whole", out)
        ]
        assert keys[0] == keys[1]
        assert all(r["position"] is None for r in planted.rows(out, "order", 1) if r["view"] == views[0]["view"])
        compared.append(len(keys[0]))
    assert max(compared, default=0) > 50, compared


@pytest.mark.parametrize("share", [0.002, 0.02, 0.2])
def test_a_capture_with_holes(share: float, tmp_path: Path) -> None:
    """What is missing is counted; what is there keeps its place; nobody is accused."""
    path = _long()[2]
    run(path, 2, tmp_path / "whole")
    rng = random.Random(share)
    planted.rewrite(path, tmp_path / "holes.pcapng", lambda _: [] if rng.random() < share else None)
    totals = run(tmp_path / "holes.pcapng", 2, tmp_path / "holes")
    assert agrees(totals), totals
    assert findings(tmp_path / "holes", 2) <= {Finding.GAP, Finding.RESUMED, Finding.VIEW_UNKNOWN, Finding.NEVER_SENT}
    if share > 0.01:
        assert totals.gaps > 0
        assert not all(v["complete"] for v in planted.rows(tmp_path / "holes", "views", 2))
    whole = {(r["src"], r["incarnation"], r["seq"]): r for r in planted.rows(tmp_path / "whole", "order", 2)}
    for row in planted.rows(tmp_path / "holes", "order", 2):
        same = whole[row["src"], row["incarnation"], row["seq"]]
        assert row["clock"] == same["clock"]
        assert row["position"] in (None, same["position"])


def test_frames_that_make_no_sense(tmp_path: Path) -> None:
    """Valid checksums around any numbers, in both directions: the replay ends, and its tables are whole."""
    path = _long()[1]
    for seed in range(6):
        rng = random.Random(seed)

        def change(pdu: Pdu, rng: random.Random = rng) -> list[Pdu] | None:
            if rng.random() > 0.01:
                return None
            name = rng.choice(("seq", "clock", "instance", "incarnation", "src", "kind"))
            low, high = {"src": (1, 6), "kind": (1, 10)}.get(name, (0, (1 << 32) - 1))
            pdu[name] = rng.choice((rng.randint(low, high), min(pdu[name] + 1, high), max(pdu[name] - 1, low)))
            return [pdu]

        planted.rewrite(path, tmp_path / "odd.pcapng", change)
        totals = run(tmp_path / "odd.pcapng", 1, tmp_path / str(seed))
        assert totals.pdus + totals.damaged <= totals.frames <= totals.pdus + totals.damaged + totals.strange
        assert len(planted.rows(tmp_path / str(seed), "order", 1)) == totals.ordered


def test_several_captures_of_one_station_are_one(tmp_path: Path) -> None:
    path = _long()[3]
    whole = run(path, 3, tmp_path / "whole")
    half = whole.frames // 2
    for name, first in (("a", True), ("b", False)):
        count = [0]

        def change(_pdu: Pdu, count: list[int] = count, first: bool = first) -> list[Pdu] | None:
            count[0] += 1
            return None if (count[0] <= half) is first else []

        planted.rewrite(path, tmp_path / name, change)
    replay([(5, str(tmp_path / "a")), (6, str(tmp_path / "b"))], 3, tmp_path / "parts")
    keys = [
        [(r["view"], r["position"], r["clock"], r["src"], r["acked_ns"]) for r in planted.rows(tmp_path / x, "order", 3)]
        for x in ("whole", "parts")
    ]
    assert keys[0] == keys[1] and keys[0]
    assert {r["file"] for r in planted.rows(tmp_path / "parts", "order", 3)} == {5, 6}


def test_what_went_in_pieces_is_what_went_whole(tmp_path: Path) -> None:
    """PIECEs of PDUs that were larger than frames may be by then. One that is missing is a PDU that is missing."""
    path, rng = _long()[2], random.Random(3)
    whole = run(path, 2, tmp_path / "whole")
    count = planted.in_pieces(path, tmp_path / "pieces.pcapng", 150, rng)
    assert count > 50
    pieced = run(tmp_path / "pieces.pcapng", 2, tmp_path / "pieced")
    assert (pieced.pdus, pieced.damaged, pieced.ordered) == (whole.pdus, whole.damaged, whole.ordered)
    for table in ("messages", "order"):
        keys = [
            [{k: v for k, v in row.items() if k != "frame"} for row in planted.rows(tmp_path / x, table, 2)]
            for x in ("whole", "pieced")
        ]
        assert keys[0] == keys[1] and keys[0], table


# ---- a real bus


def test_a_bus_with_loss(tmp_path: Path) -> None:
    """Order of arrival, resets in it: all places and positions are known, all digests are right."""
    for station, path in recorded.captures("bus").items():
        totals = run(path, station, tmp_path)
        assert totals.bus and agrees(totals)
        assert totals.own_compared > 10
        assert totals.positions == totals.ordered > 50
        assert findings(tmp_path, station) == set()
        assert [r["clock"] & 0xFFFFFFFF for r in planted.rows(tmp_path, "order", station)] == list(range(1, totals.ordered + 1))


# ---- frame by frame


class Hand:
    """Writes the capture of station 1 of two by hand; times are 1000, 2000 and so on."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._writer = PcapngWriter(self._file, "test")
        self._writer.interface("eth0", "")
        self.now = 0

    def put(self, src: int, kind: wire.Kind, payload: bytes = b"", **fields: Any) -> int:
        """A PDU, sent if src is 1; gives its time."""
        self.now += 1000
        ack, pack = fields.pop("ack", (0, 0)), fields.pop("pack", None)
        n = 2
        body = bytearray(wire.HEADER.size) + b"".join(v.to_bytes(4, "big") for v in (*ack, *(pack or ()))) + payload
        pdu = Pdu(body, planted.OUT if src == 1 else planted.IN)
        values = {"cluster": 9, "version": wire.VERSION, "kind": kind, "stations": n, "src": src, "length": len(payload)}
        values |= {"incarnation": 4 + src, "flags": wire.Flag.PACK if pack else 0, "frame_max": 1500, **fields}
        for name, value in values.items():
            pdu[name] = value
        pdu.seal()
        mac = bytes([2, 0, 0, 0, 0, src])
        data = (b"\x03ZJ\0\0\1" + mac + wire.ETHERTYPE.to_bytes(2, "big") + bytes(pdu.bytes)).ljust(60, b"\0")
        self._writer.frame(0, self.now, data, len(data), 0b10 if src == 1 else 0b1001)
        return self.now

    def close(self) -> None:
        self._file.close()


def _opening() -> bytes:
    member = b"".join(bytes([k]) + (4 + k).to_bytes(4, "big") + bytes(12) for k in (1, 2))
    return (1).to_bytes(4, "big") * 2 + bytes(16) + bytes([2, 0, 0, 0]) + member


def _confirm(position: int = 0) -> bytes:
    view = wire.view_hash(1, [5, 6])
    return bytes(16) + position.to_bytes(8, "big") + bytes(8) + (0).to_bytes(4, "big") + view.to_bytes(4, "big")


def test_levels_are_reached_when_the_rules_say(tmp_path: Path) -> None:
    """One message of station 1: its own PDU counts as had by itself from its transmission; it is ordered and pre-acknowledged
    with the other's CONFIRM, acknowledged when both have said that everybody has it."""
    hand, base = Hand(tmp_path / "s1.pcapng"), 1 << 32
    hand.put(1, wire.Kind.OPEN, _opening())
    hand.put(2, wire.Kind.OPEN, _opening())
    hand.put(1, wire.Kind.CONFIRM, _confirm(), instance=1, clock=base, pack=(0, 0))
    hand.put(2, wire.Kind.CONFIRM, _confirm(), instance=1, clock=base, pack=(0, 0))
    message = (3).to_bytes(4, "big") + (77).to_bytes(4, "big") + bytes([0, 8, 0, 0]) + b"abc"
    sent = hand.put(1, wire.Kind.DATA, message, instance=1, clock=base + 1, ack=(1, 0))
    seen = hand.put(2, wire.Kind.CONFIRM, _confirm(), instance=1, clock=base + 1, ack=(1, 0), pack=(0, 0))
    hand.put(1, wire.Kind.CONFIRM, _confirm(), instance=1, seq=1, clock=base + 1, ack=(1, 0), pack=(1, 0))
    known = hand.put(2, wire.Kind.CONFIRM, _confirm(), instance=1, clock=base + 1, ack=(1, 0), pack=(1, 0))
    hand.close()
    totals = run(tmp_path / "s1.pcapng", 1, tmp_path)
    assert (totals.own, totals.ordered, totals.damaged, totals.strange) == (4, 1, 0, 0)
    (row,) = planted.rows(tmp_path, "order", 1)
    assert (row["sent_ns"], row["ordered_ns"], row["preack_ns"], row["acked_ns"]) == (sent, seen, seen, known)
    assert (row["view"], row["position"], row["clock"], row["src"], row["seq"]) == (1, 1, base + 1, 1, 0)
    assert (row["copies"], row["messages"], row["bytes"]) == (1, 1, 15)
    (found,) = planted.rows(tmp_path, "messages", 1)
    assert (found["group"], found["client"], found["size"], found["first_seq"], found["op"]) == (77, 8, 3, 0, False)
    (view,) = planted.rows(tmp_path, "views", 1)
    assert (view["members"], view["incarnations"], view["place_clock"], view["complete"]) == (3, [5, 6], base, True)
    assert view["to_clock"] == base + 1
    rates = planted.rows(tmp_path, "control_rates", 1)
    assert sorted((r["src"], r["direction"], r["confirms"]) for r in rates) == [(1, 2, 2), (2, 1, 3)]
    assert [r["kind"] for r in planted.rows(tmp_path, "control", 1)] == [wire.Kind.OPEN] * 2


def test_every_table_has_the_columns_of_its_schema(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = _long()[1]
    run(path, 1, tmp_path / "out")
    for name in TABLES:
        for file in (tmp_path / "out" / name).glob("*/*.parquet"):
            assert pq.read_schema(file).equals(schema.arrow(name)), name
    made = {p.parent.parent.name for p in (tmp_path / "out").glob("*/*/*.parquet")}
    assert set(TABLES) - made <= {"findings"}


def test_frames_of_another_cluster_are_left_out(tmp_path: Path) -> None:
    hand = Hand(tmp_path / "s1.pcapng")
    hand.put(1, wire.Kind.OPEN, _opening())
    hand.put(2, wire.Kind.OPEN, _opening(), cluster=10)
    hand.close()
    totals = run(tmp_path / "s1.pcapng", 1, tmp_path)
    assert (totals.pdus, totals.strange) == (1, 1)
