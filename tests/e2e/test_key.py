"""A cluster with a key: it works like another one, and who has not got the key can neither speak to it nor for its stations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from zenjun.daemon.key import KEY_BYTES
from zenjun.proto import wire
from zenjun.proto.wire import CONFIRM, HEADER, Flag, Kind
from zenjun.tools.lab import Lab

from ..capturefile import CaptureFile
from ..sim.frames import add_checksum, patch
from .cluster import (
    PATIENT,
    cluster,
    core,
    datapath,
    drops,
    exchange,
    log_of,
    plan,
    programs,
    reported,
    status,
    stays,
    together,
    wait_for,
)
from .daemon_common import refused, write_key

pytestmark = pytest.mark.lab
N = 3
MEMBERS = range(1, N + 1)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_key(tmp_path_factory.mktemp("key") / "zenjun.key", KEY_BYTES)


@pytest.fixture(scope="module")
def segment(key: Path) -> Iterator[Lab]:
    """Three stations with a key, and one more that has no daemon."""
    options: dict[str, dict[str, Any]] = {"cluster": {"stations": N}, "station": {"key_file": str(key)}}
    with cluster(4, ids=MEMBERS, options=options) as lab:
        yield lab


def largest_frame(segment: Lab, station: int) -> int:
    return int(status(segment.stations[station])["interface"]["frame_max"]["bytes"])


def test_all_arrives_in_order_under_loss_and_frames_stay_within_the_mtu(segment: Lab) -> None:
    with reported(segment), programs(segment, {"sealed": "preack"}, ids=MEMBERS) as members:
        segment.set_loss(0.05)
        exchange(members, [plan(m, 200, random.Random(m.station), size_max=5000) for m in members])
        segment.set_loss(0.0)
        for n in MEMBERS:
            counters = datapath(segment.stations[n])
            assert counters["tx_too_long"] == 0 and counters["rx_unsealed"] == 0
        # Not at once: while frames are lost a station may have taken the largest ones for too large, and tries again.
        wait_for(lambda: {largest_frame(segment, n) for n in MEMBERS} == {1500 - 8}, "frames are as large as can be")
        assert len({status(segment.stations[n])["key"] for n in MEMBERS}) == 1


def confirm_of(segment: Lab, source: int, folder: Path) -> bytes:
    """A CONFIRM of a station as it went over the wire, seal and all."""
    with segment.capture(folder, [1]) as files:
        beats = core(segment.stations[source])["tx_heartbeat"]
        wait_for(lambda: core(segment.stations[source])["tx_heartbeat"] >= beats + 2, "heartbeats pass")
    with files[1].open("rb") as file:
        for record in CaptureFile(file):
            pdu = record.data[wire.ETHERNET_HEADER :]
            if pdu[HEADER.offset("kind")] == Kind.CONFIRM and pdu[HEADER.offset("src")] == source:
                return pdu
    raise AssertionError(f"no CONFIRM of station {source} in {folder}")


def forged_goodbye(pdu: bytes) -> bytes:
    """The CONFIRM of a station that says it leaves: with right checksums, without the key."""
    size = HEADER.size + 8 * N + CONFIRM.size
    return add_checksum(patch(pdu[:size], "flags", pdu[HEADER.offset("flags")] | Flag.BYE))


def ethernet(pdu: bytes, source: int) -> bytes:
    return bytes.fromhex(wire.GROUP_MAC.replace(":", "") + f"025a4a0000{source:02x}") + wire.ETHERTYPE.to_bytes(2, "big") + pdu


def test_a_forged_goodbye_removes_nobody(segment: Lab, tmp_path: Path) -> None:
    with reported(segment):
        instance = together(segment, MEMBERS)
        forged = forged_goodbye(confirm_of(segment, 2, tmp_path))
        before = datapath(segment.stations[1])["rx_unsealed"]
        segment.stations[4].inject(*[ethernet(forged, 2)] * 20)
        wait_for(lambda: datapath(segment.stations[1])["rx_unsealed"] == before + 20, "all are dropped and counted")
        assert together(segment, MEMBERS) == instance
        wait_for(lambda: "without the seal of this cluster's key" in log_of(segment.stations[1]), "it is said")


def test_the_same_without_a_key_does_harm(tmp_path: Path) -> None:
    """What the key is for; and that the test above would notice."""
    with cluster(4, ids=MEMBERS, options={"cluster": {"stations": N}}) as lab:
        instance = together(lab, MEMBERS)
        lab.stations[4].inject(ethernet(forged_goodbye(confirm_of(lab, 2, tmp_path)), 2))
        wait_for(lambda: status(lab.stations[1])["instance"] > instance, "station 2 has been removed by a stranger's frame")


@pytest.mark.parametrize("other", ["another", "none"])
def test_a_station_with_another_key_or_none_is_not_let_in(key: Path, tmp_path: Path, other: str) -> None:
    with Lab(N, options={**PATIENT, "station": {"key_file": str(key)}}) as lab, reported(lab):
        third = lab.stations[3]
        third.start_daemon({"station": {"key_file": str(write_key(tmp_path / "other", KEY_BYTES)) if other == "another" else ""}})
        lab.start_daemons((1, 2))
        together(lab, (1, 2))
        wait_for(lambda: datapath(lab.stations[1])["rx_unsealed"] > 0, "its frames are dropped and counted")
        stays(
            lambda: status(third)["state"] == "opening" and len(status(lab.stations[1])["members"]) == 2, "it is not let in", 1.5
        )
        if other == "none":
            wait_for(lambda: "it is not admitted" in log_of(third), "it says that its options differ")
        else:
            wait_for(lambda: datapath(third)["rx_unsealed"] > 0, "it drops theirs as well")
        assert not drops(lab.stations[1])["check"]


def test_a_wrong_key_file_is_said_at_the_start(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("secret words\n")
    bad.chmod(0o600)
    with Lab(1, options={"station": {"key_file": str(bad)}}) as lab:
        lab.stations[1].write_config()
        code, text = refused(lab.stations[1])
        assert code == 3
        assert f"the key file {bad} does not hold 32 or 64 hexadecimal digits" in text and "secret" not in text
