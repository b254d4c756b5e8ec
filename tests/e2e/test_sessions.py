"""A cluster whose frames prove their sender: it works like another one, and recorded frames do nothing to it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from zenjun.daemon.key import KEY_BYTES, LONG_KEY_BYTES
from zenjun.proto import wire
from zenjun.proto.envelope import OVERHEAD, What
from zenjun.tools.lab import Lab

from ..capturefile import CaptureFile
from .cluster import (
    PATIENT,
    cluster,
    core,
    datapath,
    exchange,
    kill,
    log_of,
    plan,
    process_alive,
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


@pytest.fixture(scope="module", params=["authenticate", "encrypt"])
def segment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Three stations with a key of 32 bytes, and one more that has no daemon."""
    key = write_key(tmp_path_factory.mktemp("key") / "zenjun.key", LONG_KEY_BYTES)
    options: dict[str, dict[str, Any]] = {
        "cluster": {"stations": N, "security": request.param},
        "station": {"key_file": str(key)},
    }
    with cluster(4, ids=MEMBERS, options=options) as lab:
        lab.security = request.param  # type: ignore[attr-defined]
        yield lab


def frames_of(path: Path) -> list[bytes]:
    """Behind the Ethernet header."""
    with path.open("rb") as file:
        return [record.data for record in CaptureFile(file)]


def test_all_arrives_in_order_under_loss_and_frames_stay_within_the_mtu(segment: Lab) -> None:
    with reported(segment), programs(segment, {"proven": "preack"}, ids=MEMBERS) as members:
        segment.set_loss(0.05)
        exchange(members, [plan(m, 200, random.Random(m.station), size_max=5000) for m in members])
        segment.set_loss(0.0)
        for n in MEMBERS:
            counters = datapath(segment.stations[n])
            assert not [name for name in ("tx_too_long", "rx_version", "rx_tag", "rx_spoofed", "rx_replayed") if counters[name]]
            report = status(segment.stations[n])
            assert report["interface"]["frame_max"]["bytes"] == 1500 - OVERHEAD
            assert report["sessions"]["security"] == segment.security  # type: ignore[attr-defined]
            assert all(s["proven"] and s["reads_own"] for s in report["sessions"]["stations"].values())


def test_text_is_readable_on_the_wire_only_without_encryption(segment: Lab, tmp_path: Path) -> None:
    with reported(segment), segment.capture(tmp_path, [2]) as files:
        with programs(segment, {"said": "ack"}, ids=MEMBERS) as members:
            exchange(members, [plan(m, 5, random.Random(1)) for m in members])
        beats = core(segment.stations[1])["tx_heartbeat"]
        wait_for(lambda: core(segment.stations[1])["tx_heartbeat"] >= beats + 1, "a heartbeat passes")
    frames = frames_of(files[2])
    assert frames
    bodies = [f[wire.ETHERNET_HEADER + 24 :] for f in frames if f[wire.ETHERNET_HEADER + 5] == What.PDU]
    readable = [b for b in bodies if b[:4] == frames[0][wire.ETHERNET_HEADER :][:4]]
    assert (len(readable) == 0) == (segment.security == "encrypt")  # type: ignore[attr-defined]


@pytest.mark.parametrize("other", ["another key", "no key", "a short key", "another suite"])
def test_a_station_that_differs_stays_out_and_is_named(tmp_path: Path, other: str) -> None:
    key = write_key(tmp_path / "key", LONG_KEY_BYTES)
    options: dict[str, dict[str, Any]] = {"cluster": dict(PATIENT["cluster"]), "station": {"key_file": str(key)}}
    with Lab(N, options=options) as lab, reported(lab):
        third, first = lab.stations[3], lab.stations[1]
        changed = {
            "another key": {"station": {"key_file": str(write_key(tmp_path / "other", LONG_KEY_BYTES))}},
            "no key": {"station": {"key_file": ""}},
            "a short key": {"station": {"key_file": str(write_key(tmp_path / "short", KEY_BYTES))}},
            "another suite": {"cluster": {"security": "encrypt"}},
        }[other]
        third.start_daemon(changed)
        lab.start_daemons((1, 2))
        together(lab, (1, 2))
        said = {
            "another key": "a HELLO in the name of station 3 is dropped: its key is",
            "no key": "without the seal of this cluster's key arrive",
            "a short key": "without the seal of this cluster's key arrive",
            "another suite": 'station 3 has this cluster\'s key and cluster.security = "encrypt"; here it is "authenticate"',
        }[other]
        wait_for(lambda: said in log_of(first), "it is said why", 20)
        stays(lambda: status(third)["state"] == "opening" and len(status(first)["members"]) == 2, "it is not let in", 1.5)
        assert key.read_text().strip() not in log_of(first) + log_of(third)


def test_security_without_a_long_key_is_an_error(tmp_path: Path) -> None:
    short = write_key(tmp_path / "short", KEY_BYTES)
    for path, what in ((str(short), "has one of 32"), ("", "has none")):
        with Lab(1, options={"cluster": {"security": "authenticate"}, "station": {"key_file": path}}) as lab:
            lab.stations[1].write_config()
            code, text = refused(lab.stations[1])
            assert code == 3
            assert f'cluster.security = "authenticate" needs a key of 64 hexadecimal digits; this station {what}' in text


def test_stations_that_end_come_back(segment: Lab) -> None:
    """Killed and started again, one after the other: each has another session, and is let in."""
    with reported(segment):
        for n in MEMBERS:
            station = segment.stations[n]
            kill(station)
            together(segment, [m for m in MEMBERS if m != n])
            station.start_daemon()
            together(segment, MEMBERS)
        stations = status(segment.stations[1])["sessions"]["stations"]
        assert all(s["proven"] and s["reads_own"] for s in stations.values())


def test_a_daemon_that_was_stopped_goes_on_under_another_session(segment: Lab) -> None:
    """A copy of it may be running elsewhere: no frame leaves under the session that both have."""
    with reported(segment):
        station = segment.stations[3]
        station.signal(signal.SIGSTOP)
        time.sleep(3)
        station.signal(signal.SIGCONT)
        wait_for(lambda: "it goes on under another session" in log_of(station), "it takes another", 20)
        together(segment, MEMBERS)


def test_a_second_daemon_with_a_number_in_use_ends(segment: Lab) -> None:
    """It has the key and is alive, so it is no recorded frame: the one that was here first stays."""
    with reported(segment):
        instance = together(segment, MEMBERS)
        fourth = segment.stations[4]
        fourth.start_daemon({"station": {"id": 1}})
        wait_for(lambda: not process_alive(fourth), "the second one ends")
        assert "station number 1 is used twice, by daemons that have this cluster's key" in log_of(fourth)
        assert together(segment, MEMBERS) == instance
