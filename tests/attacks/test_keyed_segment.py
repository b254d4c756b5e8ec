"""Attacks from the segments on a cluster with a key and two links, under load: recorded frames on either link, frames that were
altered in any bit, frames of the same key under another name, floods.

What each of them does where the rule that stops it is missing: ``tests/sim/test_trust.py`` (a variant for each rule), and
``tests/e2e/test_key.py`` and ``test_recorded_frames.py`` (the same daemons without a key, with a key of 16 bytes).
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from zenjun.daemon.key import LONG_KEY_BYTES
from zenjun.proto.envelope import ENVELOPE, TAG_BYTES, Envelope, What
from zenjun.proto.wire import ETHERNET_HEADER, HEADER, Kind
from zenjun.tools.lab import Lab

from ..capturefile import CaptureFile
from ..e2e.cluster import cluster, datapath, exchange, kill, plan, programs, together, wait_for
from ..e2e.daemon_common import write_key
from .load import unharmed

pytestmark = pytest.mark.lab
N = 3
MEMBERS = range(1, N + 1)
ATTACKER = 4
EVIL = bytes.fromhex("02badbadbad0")
BATCH = 64
LINKS = (1, 2)
FLOOD = Path(__file__).resolve().parent.parent / "e2e" / "flood.py"
FLOOD_S = 2.0
RECORDED = ("rx_unproven", "rx_replayed", "rx_late", "rx_own", "rx_hello", "rx_double")
"""What a recorded frame may be."""
ALTERED = ("rx_size", "rx_version", "rx_suite", "rx_own", "rx_unproven", "rx_replayed", "rx_late", "rx_tag", "rx_hello")
"""What an altered one may be; a number of its own, changed, may be one that has come."""


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Three stations, and a fourth place on both segments for the attacker. Nobody is removed because the machine is busy."""
    key = write_key(tmp_path_factory.mktemp("key") / "zenjun.key", LONG_KEY_BYTES)
    options: dict[str, dict[str, Any]] = {
        "cluster": {"stations": N, "fail_timeout_ms": 10_000, "progress_timeout_ms": 30_000},
        "station": {"key_file": str(key)},
    }
    with cluster(4, ids=MEMBERS, links=2, options=options) as lab:
        yield lab


def recorded(lab: Lab, folder: Path, meanwhile: Callable[[], None]) -> list[bytes]:
    """What went over both segments, with the attacker's address as source."""
    with lab.capture(folder, [ATTACKER]) as files:
        meanwhile()
    with files[ATTACKER].open("rb") as file:
        frames = [record.data for record in CaptureFile(file)]
    assert frames
    return [evil(frame[ETHERNET_HEADER:], frame) for frame in frames]


def evil(body: bytes, like: bytes) -> bytes:
    """A frame of the attacker's with this behind the Ethernet header of another one."""
    return like[:6] + EVIL + like[12:ETHERNET_HEADER] + body


def talk(lab: Lab, count: int = 8, size_max: int = 2000) -> None:
    with programs(lab, {"g": "preack"}, ids=MEMBERS) as members:
        exchange(members, [plan(m, count, random.Random(m.station), size_max=size_max) for m in members])


def inject(lab: Lab, frames: list[bytes], link: int = 1) -> None:
    for at in range(0, len(frames), BATCH):
        lab.stations[ATTACKER].inject(*frames[at : at + BATCH], link=link)


def counted(lab: Lab, station: int, names: tuple[str, ...]) -> int:
    counters = datapath(lab.stations[station])
    return sum(counters[name] for name in names)


def test_recorded_frames_on_either_link(segment: Lab, tmp_path: Path) -> None:
    """Of all kinds, and of a life that has ended, while all are there and while their source is away."""

    def busy() -> None:
        talk(segment)
        kill(segment.stations[3])
        together(segment, (1, 2))
        segment.stations[3].start_daemon()
        together(segment, MEMBERS)
        talk(segment)

    every = recorded(segment, tmp_path, busy)
    for members, frames in ((MEMBERS, every[::2]), ((1, 2), every[1::4])):
        if 3 not in members:
            kill(segment.stations[3])
            together(segment, members)
        with unharmed(segment, members, f"{2 * len(frames)} recorded frames, {len(members)} stations"):
            before = {n: counted(segment, n, RECORDED) for n in members}
            wrong = {n: counted(segment, n, ("rx_tag", "rx_spoofed", "rx_version", "rx_suite")) for n in members}
            for link in LINKS:
                inject(segment, frames, link)
            for n in members:
                want = before[n] + len(LINKS) * len(frames)
                wait_for(lambda n=n, want=want: counted(segment, n, RECORDED) >= want, f"station {n} counts them", 40)  # type: ignore[misc]
                assert counted(segment, n, ("rx_tag", "rx_spoofed", "rx_version", "rx_suite")) == wrong[n]
    segment.stations[3].start_daemon()
    together(segment, MEMBERS)


def unseen(lab: Lab, folder: Path) -> list[bytes]:
    """Frames with data that station 2 has sent under its present session and station 1 has not had."""

    def busy() -> None:
        sent = datapath(lab.stations[2])["tx_frames"]
        with programs(lab, {"g": "preack"}, ids=(2,)) as (member,):
            for k in range(8):
                member.groups["g"].send(b"%d" % k, "sent")
            wait_for(lambda: datapath(lab.stations[2])["tx_frames"] - sent >= 16, "they have left", 20)

    lab.cut(2, 1)  # before the recording begins, and until it has ended
    try:
        frames = recorded(lab, folder, busy)
    finally:
        lab.heal()
    found = {}
    for frame in frames:
        envelope = Envelope.read(frame[ETHERNET_HEADER:])
        if envelope is None or (envelope.what, envelope.tx) != (What.PDU, 2):
            continue
        if frame[ETHERNET_HEADER + ENVELOPE.size + HEADER.offset("kind")] == Kind.DATA:
            found[envelope.number] = frame[: ETHERNET_HEADER + ENVELOPE.size + envelope.length + TAG_BYTES]
    return [found[number] for number in sorted(found)]


def altered(frame: bytes, other: bytes) -> list[bytes]:
    """Every bit but those by which the kernel knows the cluster; every length; another frame's tag; other words about itself."""
    body, cluster_bytes = frame[ETHERNET_HEADER:], 4
    out = [
        body[: bit // 8] + bytes([body[bit // 8] ^ 1 << bit % 8]) + body[bit // 8 + 1 :]
        for bit in range(8 * cluster_bytes, 8 * len(body))
    ]
    out += [body[:size] for size in range(cluster_bytes + 1, len(body))]
    out.append(body[:-TAG_BYTES] + other[-TAG_BYTES:])
    out.append(body[ENVELOPE.size : -TAG_BYTES])  # version 1: the PDU as it is, with a right checksum
    for name, values in (
        ("suite", (0, 1, 2, 16, 17, 18)),
        ("tx", (1, 2, 3, 4)),
        ("what", (1, 2, 3, 4, 5)),
        ("version", (1, 2, 3)),
    ):
        at = ENVELOPE.offset(name)
        out += [body[:at] + bytes([value]) + body[at + 1 :] for value in values if value != body[at]]
    return [evil(each, frame) for each in out]


def test_frames_altered_in_any_way(segment: Lab, tmp_path: Path) -> None:
    """Of a frame that station 1 has not had: none of its variants is taken, and none keeps the frame itself from being taken."""
    with unharmed(segment, MEMBERS, "altered frames"):
        frame, other, *_ = unseen(segment, tmp_path)
        bad = altered(frame, other)
        before = counted(segment, 1, ALTERED)
        inject(segment, bad)
        wait_for(lambda: counted(segment, 1, ALTERED) >= before + len(bad), f"station 1 counts {len(bad)}", 40)
        again = datapath(segment.stations[1])["rx_replayed"]
        inject(segment, [frame] * 5)
        wait_for(lambda: datapath(segment.stations[1])["rx_replayed"] >= again + 4, "it was taken once", 20)
        assert datapath(segment.stations[1])["rx_replayed"] == again + 4


def test_the_same_key_under_another_name(segment: Lab, tmp_path: Path) -> None:
    """A daemon of another cluster with this cluster's key file; its frames come with this cluster's number."""
    ours = recorded(segment, tmp_path / "ours", lambda: talk(segment, 5))[0][ETHERNET_HEADER:][:4]
    attacker = segment.stations[ATTACKER]
    about: dict[str, dict[str, Any]] = {"cluster": {"name": "another", "stations": N}, "station": {"id": 3}}

    def other_cluster() -> None:
        attacker.start_daemon(about)
        wait_for(attacker.socket_path.exists, "it is there", 40)
        wait_for(lambda: datapath(attacker)["tx_frames"] > 5, "it says HELLO", 20)
        kill(attacker)

    theirs = [f for f in recorded(segment, tmp_path / "theirs", other_cluster) if f[ETHERNET_HEADER:][:4] != ours]
    frames = [evil(ours + frame[ETHERNET_HEADER + 4 :], frame) for frame in theirs]
    assert frames
    with unharmed(segment, MEMBERS, f"{len(frames)} frames of another cluster"):
        before = {n: counted(segment, n, ("rx_tag", "rx_unproven")) for n in (1, 2)}
        inject(segment, frames)
        for n in (1, 2):
            want = before[n] + len(frames)
            wait_for(lambda n=n, want=want: counted(segment, n, ("rx_tag", "rx_unproven")) >= want, f"station {n} counts", 20)  # type: ignore[misc]


def flood_frames(frames: list[bytes]) -> dict[str, list[bytes]]:
    """By the counter that shows them at station 1."""

    def of(what: What) -> bytes:
        return next(f for f in frames if f[ETHERNET_HEADER + 5] == what and f[ETHERNET_HEADER + 6] == 2)

    pdu, hello = of(What.PDU), of(What.HELLO)
    body, number = pdu[ETHERNET_HEADER:], ENVELOPE.offset("number")
    ahead = body[:number] + (int.from_bytes(body[number:][:8], "big") + 10**6).to_bytes(8, "big") + body[number + 8 :]
    what, piece = ENVELOPE.offset("what"), ENVELOPE.offset("piece")

    def as_kind(kind: What, place: int = 0) -> bytes:
        changed = ahead[:what] + bytes([kind]) + ahead[what + 1 :]
        return changed[:piece] + place.to_bytes(2, "big") + changed[piece + 2 :]

    group = pdu[:6] + EVIL
    ethertype = pdu[12:ETHERNET_HEADER]
    return {
        "rx_replayed": [pdu],
        "rx_hello": [hello],
        "rx_version": [evil(body[ENVELOPE.size :], pdu)],
        "rx_tag": [evil(ahead, pdu), evil(as_kind(What.PIECE, 15 << 8 | 16), pdu), evil(as_kind(What.PROBE) + bytes(1200), pdu)],
        "rx_size": [evil(body[: ENVELOPE.size - 4], pdu)],
        "": [
            group + b"\x81\x00\x00\x0a" + ethertype + body,  # a VLAN
            group + b"\x88\xa8\x00\x0a\x81\x00\x00\x0b" + ethertype + body,  # one in another
            group + ethertype,
            group + ethertype + body[:3],
        ],
    }


def test_floods(segment: Lab, tmp_path: Path) -> None:
    """As fast as a program can send, all kinds by turns: without an envelope, with wrong tags, replays, recorded HELLOs,
    unfinished PIECEs, PROBEs, runts, frames of VLANs. The load goes on, and each kind is counted."""

    def busy() -> None:
        kill(segment.stations[2])
        together(segment, (1, 3))
        segment.stations[2].start_daemon()
        together(segment, MEMBERS)
        talk(segment)

    kinds = flood_frames(recorded(segment, tmp_path, busy)[::-1])
    hexed = [frame.hex() for frames in kinds.values() for frame in frames]
    with unharmed(segment, MEMBERS, f"a flood of {FLOOD_S:g} s"):
        before = datapath(segment.stations[1])
        argv = [sys.executable, str(FLOOD), "eth0", str(FLOOD_S), *hexed]
        flood = segment.stations[ATTACKER].spawn(argv, stdout=subprocess.PIPE, text=True)
        sent = int(flood.communicate(timeout=60)[0])
        assert sent > 2_000
        after = datapath(segment.stations[1])
        more = {name: after[name] - before[name] for name in kinds if name}
        print(f"{sent} frames sent, counted at station 1: {more}")
        assert all(more.values()), more
