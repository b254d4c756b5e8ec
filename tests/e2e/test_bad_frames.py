"""Bad input from the wire: whatever comes is dropped and counted by its reason; the cluster goes on, and nobody crashes.

Station 4 of the lab has no daemon: it is the frameser. What it sends is made from real frames of the running cluster.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.proto import wire
from zenjun.proto.envelope import PROBE, Envelope, Suite, What
from zenjun.proto.wire import (
    CHANGE,
    CONFIRM,
    ETHERTYPE,
    FRAGMENT,
    GROUP_MAC,
    HEADER,
    MESSAGE,
    NAK,
    OPEN,
    PROPOSAL,
    RANGE,
    Kind,
    Layout,
)
from zenjun.tools.lab import Lab, Station

from ..capturefile import CaptureFile
from ..link.test_links import crc32c
from ..sim.frames import add_checksum, patch
from .cluster import (
    PATIENT,
    Program,
    cluster,
    core,
    datapath,
    drops,
    exchange,
    in_parallel,
    instances_of,
    kill,
    log_of,
    plan,
    process_alive,
    programs,
    rejected,
    reported,
    status,
    stays,
    together,
    wait_for,
)
from .daemon_common import adopt

pytestmark = pytest.mark.lab
N = 3
ATTACKER = 4
GROUP = bytes.fromhex(GROUP_MAC.replace(":", ""))
MEMBERS = range(1, N + 1)
VECTOR = 4 * N
AFTER_ACK = HEADER.size + VECTOR


@pytest.fixture(scope="module")
def segment() -> Iterator[Lab]:
    """Three stations in a cluster, and one more that has no daemon."""
    with cluster(4, ids=MEMBERS, options={"cluster": {"stations": N}}) as lab:
        yield lab


def ethernet(pdu: bytes, source: int = ATTACKER, ethertype: int = ETHERTYPE) -> bytes:
    """A frame to the group address."""
    return GROUP + bytes.fromhex(f"025a4a0000{source:02x}") + ethertype.to_bytes(2, "big") + pdu


def inject_and_wait(lab: Lab, frames: list[bytes], last: bytes) -> None:
    """Send frames and, behind them, one of our own of an unknown version: when station 1 has counted that, it has seen, or its
    kernel has kept from it, all before."""
    before = drops(lab.station(1))["version"]
    for at in range(0, len(frames), 100):
        lab.station(ATTACKER).inject(*frames[at : at + 100])
    lab.station(ATTACKER).inject(ethernet(add_checksum(patch(last, "version", 255))))
    wait_for(lambda: drops(lab.station(1))["version"] > before, "the last one is counted")


def capture_kinds(lab: Lab, members: list[Program], folder: Path) -> dict[Kind, list[bytes]]:
    """Real PDUs of the cluster by kind, as station 1 sees them while everybody sends, NAKs included."""
    with lab.capture(folder, [1]) as files:
        lab.set_loss(0.05)
        exchange(members, [plan(m, 100, random.Random(m.station), size_max=3000) for m in members])
        lab.set_loss(0.0)
    found: dict[Kind, list[bytes]] = {kind: [] for kind in Kind}
    with files[1].open("rb") as file:
        for record in CaptureFile(file):
            if record.data[12:14] == ETHERTYPE.to_bytes(2, "big"):
                pdu = record.data[14:]
                if pdu[HEADER.offset("version")] != 1:  # LINKS and PROBE have an envelope
                    continue
                found[Kind(pdu[HEADER.offset("kind")])].append(pdu)
    return found


def put(data: bytes, at: int, layout: Layout, name: str, value: int) -> bytes:
    """The bytes with one field of a layout that begins at ``at`` replaced."""
    field = next(f for f in layout.fields if f.name == name)
    at += layout.offset(name)
    return data[:at] + value.to_bytes(field.width, "big") + data[at + field.width :]


def with_payload(template: bytes, kind: Kind, payload: bytes) -> bytes:
    """A PDU of the kind, with its checksum, and with the template's header and vectors."""
    flags = template[HEADER.offset("flags")]
    head = template[: HEADER.size + VECTOR * (2 if flags & wire.Flag.PACK else 1)]
    return add_checksum(patch(patch(head + payload, "kind", kind), "length", len(payload)))


def message(size: int, body: bytes, kind: int = 0, mflags: int = 0, fragment: tuple[int, int] | None = None) -> bytes:
    out = MESSAGE.struct.pack(size, 1, 1, kind, mflags)
    return out + (FRAGMENT.struct.pack(*fragment) if fragment else b"") + body


def bad_payloads(data: bytes, confirm: bytes) -> list[bytes]:
    """PDUs with right checksums whose insides do not fit."""
    fragment, last = wire.MessageFlag.FRAGMENT, wire.MessageFlag.LAST
    payloads = [
        message(0xFFFFFFFF, b"x"),
        message(2, b"x"),
        message(1, b"xx"),  # a byte is left over
        message(1, b"x") * 3 + b"\0" * (MESSAGE.size - 1),
        message(1, b"x", kind=9),
        message(1, b"x", mflags=0x80),
        message(1, b"x", mflags=last),  # completes what is no fragment
        message(0, b"", mflags=fragment, fragment=(10, 0)),
        message(4, b"abcd", mflags=fragment, fragment=(2**32 - 1, 0)),
        # Offset + size wraps 32 bits and would look small.
        message(4, b"abcd", mflags=fragment, fragment=(8, 2**32 - 4)),
        message(4, b"abcd", mflags=fragment | last, fragment=(0, 2**32 - 4)),
        message(2**32 - 4, b"abcd", mflags=fragment, fragment=(16, 8)),
        message(4, b"abcd", mflags=fragment | last, fragment=(16, 8)),  # last, but does not end it
        message(4, b"abcd", mflags=fragment, fragment=(12, 8)),  # ends it, but is not last
        message(4, b"ab", mflags=fragment, fragment=(wire.MESSAGE_MAX, 0))[: MESSAGE.size + 3],
    ]
    out = [with_payload(data, Kind.DATA, p) for p in payloads]
    out += [with_payload(confirm, Kind.CONFIRM, b"\0" * size) for size in (0, CONFIRM.size - 1, CONFIRM.size + 1, 500)]
    nak = patch(confirm, "target", 1)
    out += [
        with_payload(nak, Kind.NAK, NAK.struct.pack(stream, count, 0, 1) + RANGE.struct.pack(0, 1) * ranges)
        for stream, count, ranges in (
            (1, 0, 0),
            (1, 2, 1),
            (1, 1, 2),
            (1, 65, 65),
            (1, 255, 1),
            (0, 1, 1),
            (4, 1, 1),
            (255, 1, 1),
        )
    ]
    out.append(with_payload(patch(confirm, "target", 0), Kind.NAK, NAK.struct.pack(1, 1, 0, 1) + RANGE.struct.pack(0, 1)))
    for members, name, size in ((255, 0, 0), (4, 0, 32), (0, 0xFFFF, 10), (3, 65, 89), (1, 0, 0), (32, 0xFF00, 0)):
        body = OPEN.struct.pack(9, 9, 0, 0, 0, members, 0, name) + b"\0" * size
        out.append(with_payload(confirm, Kind.OPEN, body))
    out.append(with_payload(confirm, Kind.OPEN, b"\0" * (OPEN.size - 1)))
    return out


def bad_votes(data: bytes) -> list[bytes]:
    """Votes on the members, of a member and with right checksums, whose insides do not fit: counts and lengths that lie."""
    out = [add_checksum(patch(data, "kind", k)) for k in (Kind.STOP, Kind.STOP_ACK, Kind.RCV, Kind.RCV_ACK)]
    least = PROPOSAL.size + CHANGE.size
    for kind in (Kind.STOP, Kind.STOP_ACK, Kind.RCV_ACK):
        out += [with_payload(data, kind, b"\0" * size) for size in (0, PROPOSAL.size - 1, least - 1)]
        out += [with_payload(data, kind, put(b"\0" * least, 0, PROPOSAL, "changes", count)) for count in (0, 2, 65, 255)]
    return out


def flip(pdu: bytes, at: int) -> bytes:
    return pdu[:at] + bytes([pdu[at] ^ 0x10]) + pdu[at + 1 :]


def bad_frames(kinds: dict[Kind, list[bytes]]) -> dict[str, list[bytes]]:
    """Bad PDUs by the reason they must be dropped for at station 1 (source: station 2, whose frames the others know)."""
    from_two = {k: [p for p in pdus if p[HEADER.offset("src")] == 2] for k, pdus in kinds.items()}
    data, confirm = from_two[Kind.DATA][-1], from_two[Kind.CONFIRM][-1]
    seq = int.from_bytes(data[HEADER.offset("seq") :][:4], "big")
    far = [with_payload(patch(data, "seq", (seq + step) % 2**32), Kind.DATA, message(1, b"x")) for step in (70_000, 2**31 - 9)]
    return {
        "short": [confirm[:4], confirm[:20], confirm[: HEADER.size - 1], confirm[: HEADER.size], confirm[: AFTER_ACK + 5]],
        "version": [add_checksum(patch(data, "version", v)) for v in (0, 2, 255)],
        "kind": [add_checksum(patch(data, "kind", k)) for k in (0, 11, 12, 255)],
        "stations": [add_checksum(patch(data, "stations", n)) for n in (0, 1, 2, 4, 64, 255)],
        "source": [add_checksum(patch(data, "src", s)) for s in (0, 4, 64, 255)] + [add_checksum(patch(confirm, "target", 4))],
        "length": [patch(confirm, "length", CONFIRM.size + 1), patch(confirm, "length", 65535), data[:-1]],
        "check": [flip(p, at) for p in (data, confirm) for at in (HEADER.offset("clock"), HEADER.size + 2, len(p) - 1)]
        + [put(data, 0, HEADER, "check", 0)],
        "payload": bad_payloads(data, confirm) + bad_votes(data),
        # Numbers of later instances are no reason to drop: they tell a station that the others have gone on without it.
        "instance": [add_checksum(patch(p, "instance", 0)) for p in (data, confirm)],
        "incarnation": [add_checksum(patch(p, "incarnation", i)) for p in (data, confirm) for i in (0, 1, 2**32 - 1)],
        # A place far beyond the window can be claimed only together with an acknowledgement that cannot be.
        "ack": far + [add_checksum(put(p, HEADER.size, RANGE, "first", v)) for p in (data, confirm) for v in (2**31 - 5, 10**6)],
        "clock": [add_checksum(patch(p, "clock", v)) for p in (confirm,) for v in (2**63, 2**64 - 1)],
        "own": [add_checksum(patch(confirm, "src", 1))],
    }


def test_every_reason_is_counted_cases_133_139(segment: Lab, tmp_path: Path) -> None:
    """For each reason some frames that have to be dropped for it, counts and offsets that wrap 32 bits among them."""
    one = segment.station(1)
    with programs(segment, {"g": "preack"}, ids=MEMBERS) as members:
        kinds = capture_kinds(segment, members, tmp_path)
        bad = bad_frames(kinds)
        for reason, pdus in bad.items():
            before = drops(one)
            segment.station(ATTACKER).inject(*(ethernet(pdu) for pdu in pdus))

            def more(r: str = reason, p: list[bytes] = pdus, b: Counter[str] = before) -> bool:
                return drops(one)[r] - b[r] >= len(p)

            try:
                wait_for(more, f"{len(pdus)} frames dropped for {reason}", 30)
            except AssertionError as error:
                raise AssertionError(f"{error}; counted instead: {drops(one) - before}") from None
            assert drops(one)[reason] - before[reason] == len(pdus), reason
        exchange(members, [plan(m, 200, random.Random(133), size_max=3000) for m in members])
    assert all(process_alive(segment.station(i)) for i in MEMBERS)
    assert {status(segment.station(i))["state"] for i in MEMBERS} == {"open"}
    # A number used twice is worth a line, even if only a frame says so; nothing else is.
    assert sum("Traceback" in log_of(segment.station(i)) for i in MEMBERS) == 0


def test_frames_of_other_clusters_types_and_groups_stay_outside(segment: Lab, tmp_path: Path) -> None:
    """Another cluster number or EtherType never leaves the kernel: our counters do not even move."""
    with programs(segment, {"g": "preack"}, ids=MEMBERS) as members:
        kinds = capture_kinds(segment, members, tmp_path)
        strangers = [patch(pdu, "cluster", 0xDEADBEEF) for pdus in kinds.values() for pdu in pdus[:20]]
        frames = [ethernet(p) for p in strangers] + [ethernet(p, ethertype=0x88B6) for p in kinds[Kind.DATA][:20]]
        frames += [ethernet(b""), ethernet(b"\0"), ethernet(b"\0" * 3), ethernet(b"\0" * 46)]
        before = drops(segment.station(1))
        sent = sum(datapath(segment.station(i))["tx_frames"] for i in (2, 3))
        rx = datapath(segment.station(1))["rx_frames"]
        inject_and_wait(segment, frames, kinds[Kind.DATA][0])
        assert drops(segment.station(1)) - before == Counter(version=1)
        rx = datapath(segment.station(1))["rx_frames"] - rx
        ours = sum(datapath(segment.station(i))["tx_frames"] for i in (2, 3)) - sent
        assert rx - ours < len(frames) // 2, "heartbeats only"


def test_truncated_and_random_frames(segment: Lab, tmp_path: Path) -> None:
    """Every kind of PDU cut at every byte, and random bytes behind our cluster number: dropped, never delivered, never fatal."""
    rng = random.Random(139)
    with programs(segment, {"g": "preack"}, ids=MEMBERS) as members:
        kinds = capture_kinds(segment, members, tmp_path)
        frames = []
        for kind in (Kind.DATA, Kind.CONFIRM, Kind.NAK):
            pdu = min(kinds[kind], key=len)
            frames += [ethernet(pdu[:size]) for size in range(4, min(len(pdu), 400))]
        cluster_number = kinds[Kind.DATA][0][:4]
        for _ in range(1000):
            body = bytearray(rng.choice(kinds[rng.choice((Kind.DATA, Kind.CONFIRM))])[:1400])
            for _ in range(rng.randrange(1, 20)):
                body[rng.randrange(4, len(body))] = rng.randrange(256)
            # No checksum is mended: a forged PDU with a right checksum is an attack that only authentication can stop.
            frames.append(ethernet(bytes(body)))
            frames.append(ethernet(cluster_number + rng.randbytes(rng.randrange(200))))
        before = drops(segment.station(1))
        for at in range(0, len(frames), 200):
            segment.station(ATTACKER).inject(*frames[at : at + 200])
        wait_for(lambda: sum((drops(segment.station(1)) - before).values()) > len(frames) // 2, "most are counted as dropped", 30)
    assert all(process_alive(segment.station(i)) for i in MEMBERS)


def test_harmless_extremes(segment: Lab, tmp_path: Path) -> None:
    """Well-formed questions without end: a NAK for 4 billion PDUs, 64 times, costs a bounded answer."""
    with programs(segment, {"g": "preack"}, ids=MEMBERS) as members:
        kinds = capture_kinds(segment, members, tmp_path)
        confirm = next(p for p in reversed(kinds[Kind.CONFIRM]) if p[HEADER.offset("src")] == 2)
        incarnation = status(segment.station(1))["incarnation"]
        payload = NAK.struct.pack(1, 64, 0, incarnation) + RANGE.struct.pack(0, 2**32 - 1) * 64
        nak = with_payload(patch(confirm, "target", 1), Kind.NAK, payload)
        before = core(segment.station(1))
        segment.station(ATTACKER).inject(*[ethernet(nak)] * 50)
        wait_for(lambda: core(segment.station(1))["rx_nak"] - before["rx_nak"] >= 50, "they are taken")
        again = core(segment.station(1))["tx_retransmit"] - before["tx_retransmit"]
        assert again < 2000, f"{again} frames sent again"
        exchange(members, [plan(m, 100, random.Random(1)) for m in members])


def test_frames_of_an_earlier_instance_cases_21_135(tmp_path: Path) -> None:
    """After a restart everything sent in the first instance comes once more, at full speed: that of the former life of station 3
    is ignored by its incarnation or instance, that of the others is known already; nothing is delivered again, and the members
    stay as they are."""
    with cluster(4, ids=MEMBERS, options={"cluster": {"stations": N}}) as lab:
        with programs(lab, {"g": "preack"}, ids=MEMBERS) as members:
            kinds = capture_kinds(lab, members, tmp_path)
        first = together(lab, MEMBERS)
        kill(lab.station(3))
        together(lab, [1, 2])
        lab.station(3).start_daemon()
        instance = together(lab, MEMBERS)
        assert instance == first + 2, "one without it, one with it again"
        old = [ethernet(pdu) for pdus in kinds.values() for pdu in pdus]
        with programs(lab, {"g": "preack"}, ids=MEMBERS) as members:
            before = drops(lab.station(1))
            inject_and_wait(lab, old, kinds[Kind.DATA][0])
            counted = drops(lab.station(1)) - before - Counter(version=1)
            assert counted["incarnation"] + counted["instance"] > 10, counted
            assert set(counted) <= {"instance", "incarnation", "own", "control_full", "repeated"}, counted
            exchange(members, [plan(m, 200, random.Random(135)) for m in members])
            assert all(len(m.messages("g")) == 3 * 200 for m in members), "nothing old was delivered"
        assert {status(lab.station(i))["instance"] for i in MEMBERS} == {instance}


def recorded_openings(lab: Lab, folder: Path) -> list[bytes]:
    """OPEN and RCV PDUs of a former life of station 3, which has been let in again since."""
    with lab.capture(folder, [1]) as files:
        kill(lab.station(3))
        together(lab, [1, 2])
        lab.station(3).start_daemon()
        together(lab, MEMBERS)
    kill(lab.station(3))
    together(lab, [1, 2])
    lab.station(3).start_daemon()
    together(lab, MEMBERS)
    with files[1].open("rb") as file:
        pdus = [record.data[14:] for record in CaptureFile(file) if record.data[12:14] == ETHERTYPE.to_bytes(2, "big")]
    kinds, src = (Kind.OPEN, Kind.RCV), HEADER.offset("src")
    pdus = [pdu for pdu in pdus if pdu[HEADER.offset("version")] == 1]  # LINKS and PROBE have an envelope
    return [pdu for pdu in pdus if pdu[HEADER.offset("kind")] in kinds and pdu[src] == 3]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["another EtherType", "bad checksums", "an earlier instance", "RCV", "recorded openings"])
def test_flood_of_small_frames_case_35(segment: Lab, tmp_path: Path, what: str) -> None:
    """Two seconds of frames as fast as a program can send them. The cluster may slow down; it works as soon as the flood is over,
    without help, and nobody has restarted."""
    openings = recorded_openings(segment, tmp_path / "openings") if what in ("RCV", "recorded openings") else []
    with programs(segment, {"g": "preack"}, ids=MEMBERS) as members:
        confirms = capture_kinds(segment, members, tmp_path)[Kind.CONFIRM]
        # Not one of station 1, which counts the drops: a frame with its own number is dropped before anything else is looked at.
        confirm = next(p for p in reversed(confirms) if p[HEADER.offset("src")] != 1)
        frames = {
            "another EtherType": [ethernet(b"\0" * 46, ethertype=0x88B6)],
            "bad checksums": [ethernet(flip(confirm, HEADER.offset("clock")))],
            "an earlier instance": [ethernet(add_checksum(patch(confirm, "instance", 0)))],
            "RCV": [ethernet(pdu) for pdu in openings if pdu[HEADER.offset("kind")] == Kind.RCV][:1],
            # As many different ones as a station remembers of another: of more, two a turn are looked at again.
            "recorded openings": [ethernet(pdu) for pdu in openings[-6:]],
        }[what]
        before, lost_before = drops(segment.station(1)), status(segment.station(1))["kernel"]["drops"]
        handed_before = handed_by_a_stranger(segment)
        lines = len(log_of(segment.station(1)).splitlines())
        instance = status(segment.station(1))["instance"]
        argv = [sys.executable, str(Path(__file__).with_name("flood.py")), "eth0", "2", *(frame.hex() for frame in frames)]
        flood = segment.station(ATTACKER).spawn(argv, stdout=subprocess.PIPE, text=True)
        plans = [plan(m, 500, random.Random(35), chunk=25) for m in members]
        exchange(members, plans, 30)
        sent = int(flood.communicate(timeout=60)[0])
        assert sent > 10_000
        wait_for(lambda: all(status(segment.station(i))["state"] == "open" for i in MEMBERS), "all open", 30)
        exchange(members, [plan(m, 100, random.Random(36)) for m in members], 10)

        def seen() -> tuple[Counter[str], int]:
            """Drops of the daemon by reason, and of its ring."""
            return drops(segment.station(1)) - before, status(segment.station(1))["kernel"]["drops"] - lost_before

        if what == "another EtherType":
            counted, lost = seen()
            assert not counted and lost == 0, "the filter stands before the ring"
        else:
            reason = {"bad checksums": ["check"], "an earlier instance": ["instance"]}.get(what, ["repeated", "control_full"])
            # A busy kernel may have dropped some on their way, in no queue of ours. A few of the others' may be on their way too.
            handed = handed_by_a_stranger(segment) - handed_before
            assert handed > sent // 10, (handed, sent)

            def all_counted() -> bool:
                counted, lost = seen()
                return sum(counted[word] for word in reason) + lost > handed - 1000

            wait_for(all_counted, f"{handed} of {sent} frames are counted as dropped for {' or '.join(reason)}")
        assert status(segment.station(1))["instance"] == instance
        assert len(log_of(segment.station(1)).splitlines()) - lines < 40, "no flood in the log"


def enveloped(what: What, tx: int, number: int, body: bytes, cluster_number: bytes, piece: int = 0) -> bytes:
    """A frame of a cluster without a key, with a right checksum."""
    head = Envelope(int.from_bytes(cluster_number, "big"), what, tx, Suite.NONE, len(body), b"evil", number, piece=piece).packed()
    return ethernet(head + body + crc32c(head + body).to_bytes(4, "big"))


@pytest.mark.slow
def test_flood_of_well_formed_frames(segment: Lab, tmp_path: Path) -> None:
    """Without a key they cannot be told from real ones: unfinished PIECEs, PROBEs that want an answer, NAKs of whole windows;
    with them runts and frames of VLANs. Nobody is removed, nothing is lost, and answers stay few."""
    one = segment.station(1)
    with programs(segment, {"g": "preack"}, ids=MEMBERS) as members:
        confirm = next(
            p for p in reversed(capture_kinds(segment, members, tmp_path)[Kind.CONFIRM]) if p[HEADER.offset("src")] == 2
        )
        ours, incarnation = confirm[:4], status(one)["incarnation"]
        nak = NAK.struct.pack(1, 64, 0, incarnation) + RANGE.struct.pack(0, 2**32 - 1) * 64
        kinds = {
            "rx_piece": [enveloped(What.PIECE, 2, 16 * k, bytes(1000), ours, 15 << 8 | 16) for k in range(1, 9)],
            "rx_probe": [enveloped(What.PROBE, 2, 7, PROBE.struct.pack(1, 1, k, 1400, 0) + bytes(1300), ours) for k in range(4)],
        }
        more = [ethernet(with_payload(patch(confirm, "target", 1), Kind.NAK, nak)), ethernet(ours), ethernet(b"")]
        more += [
            GROUP + bytes(6) + tags + ETHERTYPE.to_bytes(2, "big") + confirm
            for tags in (b"\x81\0\0\n", b"\x88\xa8\0\n\x81\0\0\n")
        ]

        def by_members(name: str) -> int:
            return sum(int(datapath(segment.station(i))[name]) for i in MEMBERS)

        before, asked, frames, pieced = datapath(one), core(one), by_members("tx_frames"), by_members("tx_pieced")
        instance = status(one)["instance"]
        argv = [sys.executable, str(Path(__file__).with_name("flood.py")), "eth0", "2"]
        argv += [frame.hex() for frame in [*(f for some in kinds.values() for f in some), *more]]
        flood = segment.station(ATTACKER).spawn(argv, stdout=subprocess.PIPE, text=True)
        exchange(members, [plan(m, 300, random.Random(35), chunk=25) for m in members], 60)
        sent = int(flood.communicate(timeout=60)[0])
        assert sent > 2_000
        exchange(members, [plan(m, 100, random.Random(36)) for m in members], 30)
        now, answered = datapath(one), core(one)
        counted = {name: now[name] - before[name] for name in kinds} | {"rx_nak": answered["rx_nak"] - asked["rx_nak"]}
        left = by_members("tx_frames") - frames
        print(f"{sent} frames sent, counted at station 1: {counted}; the stations sent {left}")
        assert all(counted.values()), counted
        whole = now["rx_pieced"] - before["rx_pieced"]  # members send some in pieces when a flood has hidden their probes
        assert whole <= by_members("tx_pieced") - pieced, "none of the flood was ever whole"
        assert status(one)["instance"] == instance and all(process_alive(segment.station(i)) for i in MEMBERS)


def handed_by_a_stranger(lab: Lab) -> int:
    """Frames that the hub has handed to station 1 and that the other two have not sent."""
    ours = sum(datapath(lab.station(i))["tx_frames"] for i in (2, 3))
    return lab.counters()[1]["received"] - ours


# ---- neighbours ----


def test_two_clusters_on_one_segment() -> None:
    """Stations 1 to 3 and 4 to 6 are clusters of different names: both work at full load and neither looks at the other."""
    with Lab(6, options=PATIENT) as lab, reported(lab):
        for number, station in lab.stations.items():
            name, own = ("left", number) if number <= 3 else ("right", number - 3)
            station.start_daemon({"cluster": {"name": name, "stations": 3}, "station": {"id": own}})
        lab.wait_open(90, [1, 2, 3])
        lab.wait_open(90, [4, 5, 6])
        with programs(lab, {"g": "preack"}, ids=[1, 2, 3]) as left, programs(lab, {"g": "preack"}, ids=[4, 5, 6]) as right:
            for member in right:
                member.station -= 3
            rng = random.Random(6)
            exchange_both(left, right, rng)
            for station in lab.stations.values():
                assert not rejected(station)
                tx = sum(datapath(lab.station(i))["tx_frames"] for i in (range(1, 4) if station.id <= 3 else range(4, 7)))
                assert datapath(station)["rx_frames"] <= tx, "what the other cluster sent came through the filter"


def exchange_both(left: list[Program], right: list[Program], rng: random.Random) -> None:
    """Both clusters exchange messages at the same time, in the group of the same name."""
    plans = [[plan(m, 300, rng) for m in side] for side in (left, right)]
    in_parallel([lambda: exchange(left, plans[0]), lambda: exchange(right, plans[1])])


def test_stray_station_of_another_schema() -> None:
    """Somebody on the segment believes that the cluster has five stations: counted by reason, the three go on, it waits alone."""
    with cluster(4, ids=MEMBERS, options={"cluster": {"stations": N}}) as lab:
        lab.station(4).start_daemon({"cluster": {"stations": 5}})
        wait_for(lambda: drops(lab.station(1))["stations"] >= 3, "its frames are counted")
        with programs(lab, {"g": "preack"}, ids=MEMBERS) as members:
            exchange(members, [plan(m, 100, random.Random(5)) for m in members])
        assert status(lab.station(4))["state"] == "opening"
        wait_for(lambda: drops(lab.station(4))["stations"] > 0, "it counts theirs")


def test_second_daemon_with_a_number_in_use_is_refused() -> None:
    """Into a running cluster comes another station 2: the newcomer ends with code 8 naming both; nobody else is disturbed."""
    with (
        cluster(4, ids=MEMBERS, options={"cluster": {"stations": N}}) as lab,
        programs(lab, {"g": "preack"}, ids=MEMBERS) as members,
    ):
        instance = instances_of(lab, MEMBERS)
        lab.station(4).write_config({"station": {"id": 2}})
        newcomer = lab.station(4).start_daemon()
        exchange(members, [plan(m, 1000, random.Random(2), chunk=50) for m in members])
        assert newcomer.wait(60) == 8
        last = log_of(lab.station(4)).strip().splitlines()[-1]
        assert "station number 2 is used twice" in last and "02:5a:4a:00:00:02" in last and "02:5a:4a:00:00:04" in last
        wait_for(lambda: "used twice" in log_of(lab.station(2)), "the one in office names it as well")
        exchange(members, [plan(m, 100, random.Random(3)) for m in members])
        assert instances_of(lab, MEMBERS) == instance
        stays(lambda: status(lab.station(2))["state"] == "open", "still open", 0.5)


def refusal_of(named: str, station: Station) -> list[str]:
    """The lines of a station's log that refuse the station ``named`` for its cluster options; each peer gets its own line, and
    they come in the order of the peers' frames."""
    return [line for line in log_of(station).splitlines() if named in line and "has other cluster options" in line]


def test_restart_with_other_cluster_options_is_not_admitted() -> None:
    """One station comes back with another fingerprint: named by both sides, not admitted; with the right options all go on."""
    with cluster(3) as lab:
        third = lab.station(3)
        third.stop_daemon()
        adopt(third)
        third.start_daemon({"cluster": {"nak_retry_ms": 7}})
        for station, named in ((lab.station(1), "station 3 ("), (third, "station 1 ("), (third, "station 2 (")):
            wait_for(lambda s=station, n=named: refusal_of(n, s), f"station {station.id} names {named}")  # type: ignore[misc]
            assert "fingerprint" in refusal_of(named, station)[0]
        assert status(third)["state"] == "opening"
        third.stop_daemon()
        third.start_daemon({})
        lab.wait_open(90)
        with programs(lab, {"g": "preack"}) as members:
            exchange(members, [plan(m, 50, random.Random(4)) for m in members])
