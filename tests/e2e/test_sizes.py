"""Sizes: messages from nothing to the limit, MTUs that are large, small, mixed or changing, tags, padding and trailers."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.daemon.client import TooLarge
from zenjun.proto.wire import ETHERTYPE, GROUP_MAC, MESSAGE_MAX
from zenjun.tools.lab import Lab

from ..capturefile import CaptureFile
from ..rules import rule
from .cluster import (
    PATIENT,
    Burst,
    cluster,
    core,
    datapath,
    exchange,
    in_parallel,
    log_of,
    payload,
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
from .hub import UserHub

pytestmark = pytest.mark.lab
ETHERNET = 14


@pytest.fixture(scope="module", params=[1500, 9000], ids=["mtu-1500", "mtu-9000"])
def segment(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with cluster(3, mtu=request.param) as lab:
        yield lab


def frame_max(lab: Lab, number: int = 1) -> dict[str, object]:
    return dict(status(lab.station(number))["interface"]["frame_max"])


def test_every_size_around_the_frames_edge_case_47(segment: Lab, tmp_path: Path) -> None:
    """All sizes from 64 below to 64 above what fits into one frame, and two, from all stations at once: all delivered, and no
    frame is larger than the interface allows."""
    rng = random.Random(47)
    mtu = segment.station(1).interface["mtu"]
    with programs(segment, {"g": "preack"}) as members:
        one = members[0].connection.welcome.payload_max
        sizes = [*range(one - 64, one + 65), *range(2 * one - 90, 2 * one + 20, 3)]
        with segment.capture(tmp_path, [2]) as files:
            exchange(members, [[("g", "preack", [rng.randbytes(size) for size in sizes])] for _ in members])
    with files[2].open("rb") as file:
        lengths = [record.wire_length for record in CaptureFile(file)]
    assert len(lengths) > len(sizes)
    assert max(lengths) <= mtu + ETHERNET
    assert max(lengths) >= mtu + ETHERNET - 20, "frames are filled"


def test_whole_messages_of_the_published_size_are_not_cut(segment: Lab) -> None:
    """payload_max is what always fits into one frame: such a message costs one DATA PDU. It counts the pack vector, which not
    every PDU carries, so that only what is larger by more than this vector surely costs two."""
    with programs(segment, {"g": "preack"}, ids=[1]) as (member,):
        one = member.connection.welcome.payload_max
        # Programs that were there before have left the groups: nothing else is to be sent.
        wait_for(lambda: [g["name"] for g in status(segment.station(1))["groups"]] == ["g"], "it is the only group")
        wait_for(lambda: len(status(segment.station(1))["groups"][0]["members"]) == 1, "alone in it")
        for size, frames in ((one, 1), (one + 4 * segment.size + 1, 2)):
            before = core(segment.station(1))["tx_data"]
            member.groups["g"].send(bytes(size))
            assert core(segment.station(1))["tx_data"] - before == frames, size


def test_nothing_and_little(segment: Lab) -> None:
    """0 and 1 byte, and the first few sizes; empty messages have their place like all others."""
    with programs(segment, {"g": "preack"}) as members:
        exchange(members, [[("g", "preack", [b"", b"", *(bytes([m.station]) * k for k in range(1, 47)), b""])] for m in members])


def test_up_to_the_limit_and_one_beyond_case_123(segment: Lab) -> None:
    """1 B, 1 MB and the limit arrive; the limit is published, and one byte more is refused before anything is sent."""
    rng = random.Random(123)
    with programs(segment, {"g": "preack"}, timeout_s=90) as members:
        limit = members[0].connection.welcome.message_max
        assert limit == MESSAGE_MAX == 16 * 1024 * 1024
        big = [rng.randbytes(limit), rng.randbytes(1_000_000), b"x"]
        others: list[list[Burst]] = [[("g", "preack", [payload(m, k, 70_000, rng) for k in range(20)])] for m in members[1:]]
        before = core(segment.station(1))["messages_sent"]
        exchange(members, [[("g", "preack", big)], *others])
        assert core(segment.station(1))["messages_sent"] - before == len(big)
        with pytest.raises(TooLarge, match=str(limit)):
            members[0].groups["g"].send(bytes(limit + 1))
        members[0].groups["g"].send(b"still there")
        assert core(segment.station(1))["messages_sent"] - before == len(big) + 1
        count = len(members[1].messages("g")) + 1
        for member in members:
            assert member.read_messages("g", count)[-1].data == b"still there"


# ---- padding, trailers, tags ----


@pytest.mark.parametrize(("pad_byte", "trailer"), [(0x00, 0), (0xAA, 4), (0xAA, 6)])
def test_padding_and_trailers_cases_61_63(pad_byte: int, trailer: int) -> None:
    """Messages of 0..46 bytes in frames that are filled up by the network, with trailers after them: only our own length counts.

    Our shortest PDU is longer than Ethernet's 60 bytes, so the hub pads to more than real hardware does.
    """
    with cluster(3) as lab:
        hub = UserHub(lab, seed=61, pad_to=240, pad_byte=pad_byte, trailer=trailer)
        with hub, programs(lab, {"g": "preack"}) as members:
            exchange(members, [[("g", "preack", [bytes([k]) * k for k in range(47)])] for _ in members])
            # One at a time too, so that most frames are short and padded.
            for k in range(47):
                members[k % 3].groups["g"].send(bytes([0xAA]) * k)
            for member in members:
                assert [len(m.data) for m in member.read_messages("g", 3 * 47 + 47)[3 * 47 :]] == list(range(47))
            exchange(members, [plan(m, 100, random.Random(61), size_max=3000) for m in members])
            for station in lab.stations.values():
                assert not rejected(station), "no padded frame is bad"
        assert hub.counters["sent"] > 100 and hub.counters["refused"] == 0


def test_frames_with_a_priority_tag_are_ours() -> None:
    """VLAN number 0 is no VLAN, only a priority: such frames are taken, full-size ones (4 bytes longer) as well."""
    with cluster(3) as lab, UserHub(lab, seed=10, tci=0xA000), programs(lab, {"g": "preack"}) as members:
        exchange(members, [plan(m, 200, random.Random(10), size_max=4000) for m in members])
        assert all(core(s)["rx_data"] > 10 for s in lab.stations.values())


def test_frames_of_another_vlan_are_not_ours() -> None:
    """With a tag of VLAN 10 on every frame nobody hears anybody: the tag is not just stripped and forgotten."""
    patient = {"cluster": {"fail_timeout_ms": 1500, "give_up_timeout_ms": 60_000}}
    with cluster(3, options=patient) as lab, programs(lab, {"g": "preack"}) as members:
        exchange(members, [plan(m, 50, random.Random(10)) for m in members])
        with UserHub(lab, seed=10, tci=0x000A) as hub:
            members[0].groups["g"].send(b"into the void", "sent")
            for station in lab.stations.values():
                wait_for(lambda s=station: status(s)["state"] == "blocked", "it hears nobody")  # type: ignore[misc]
            before = {i: core(s)["rx_frames"] for i, s in lab.stations.items()}
            stays(lambda: {i: core(s)["rx_frames"] for i, s in lab.stations.items()} == before, "nothing is received", 0.5)
            assert all(not rejected(s) for s in lab.stations.values()), "not even looked at"
        assert hub.counters["sent"] > 10
        assert members[1].read_messages("g", 151)[-1].data == b"into the void"


def test_short_tagged_frames_case_59() -> None:
    """Frames of 14 to 18 bytes, tagged and not, with our EtherType inside: no reply, no crash, no wrong delivery."""
    group, source = bytes.fromhex(GROUP_MAC.replace(":", "")), bytes.fromhex("025a4a0000ee")
    ours, tag = ETHERTYPE.to_bytes(2, "big"), b"\x81\x00\xa0\x00"
    whole = group + source + tag + ours + b"\x00" * 4
    frames = [whole[:size] for size in range(14, 23)] + [(group + source + ours + b"\x00" * 8)[:size] for size in range(14, 23)]
    with cluster(3) as lab, programs(lab, {"g": "preack"}) as members:
        for number in (1, 2):
            lab.station(number).deliver(*frames)
        exchange(members, [plan(m, 50, random.Random(59)) for m in members])
        assert all(process_alive(s) for s in lab.stations.values())


# ---- MTU ----


def test_mixed_mtus_take_the_smallest_case_49() -> None:
    """9000, 9000 and 1500: the group uses 1500, says whose limit it is, and large messages pass."""
    with Lab(3, mtu=9000, options=PATIENT) as lab, reported(lab):
        lab.station(3).set_mtu(1500)
        lab.start_daemons()
        lab.wait_open(90)
        wait_for(lambda: all(frame_max(lab, i)["bytes"] == 1500 for i in lab.stations), "all use the smallest")
        # Whose limit it is they know once they have heard each other in the instance.
        wait_for(lambda: frame_max(lab, 1)["source"] == frame_max(lab, 2)["source"] == "station 3", "they name station 3")
        assert frame_max(lab, 3)["source"] == "own interface"
        with programs(lab, {"g": "preack"}) as members:
            exchange(members, [plan(m, 100, random.Random(49), size_max=40_000) for m in members])
            assert all(datapath(s)["tx_too_long"] == 0 for s in lab.stations.values())


def test_smaller_mtu_of_a_switch_can_be_configured_cases_49_51() -> None:
    """Interfaces of 9000 bytes behind a switch that takes 1500: with ``station.mtu`` at one station all use it, and status says
    where each number comes from."""
    with Lab(3, mtu=9000, options=PATIENT) as lab, reported(lab):
        for station in lab.stations.values():
            station.set_mtu(9000, port_mtu=1500)
        lab.station(2).write_config({"station": {"mtu": 1500}})
        lab.start_daemons()
        lab.wait_open(90)
        with programs(lab, {"g": "preack"}) as members:
            exchange(members, [plan(m, 60, random.Random(51), size_max=40_000) for m in members])
        interface = status(lab.station(2))["interface"]
        assert interface["mtu"] == {"bytes": 1500, "source": "configuration"}
        assert interface["payload_max"]["bytes"] == 1500 - interface["header_bytes"]["bytes"]
        assert frame_max(lab, 1) == {"bytes": 1500, "source": "station 2"}


@rule("J13", "J15", "J17")
def test_hole_in_the_middle_is_found_cases_49_51() -> None:
    """Interfaces of 9000 bytes, a switch that silently drops above 1500, nothing configured: what passes is found before the
    first large message. Then the hole goes, and comes back at one station while large messages are under way: these go in pieces,
    and no instance ends."""
    with Lab(3, mtu=9000, options=PATIENT) as lab, reported(lab):
        for number in (2, 3):
            lab.station(number).set_mtu(9000, port_mtu=1500)
        lab.start_daemons()
        instance = together(lab)
        wait_for(lambda: all(1500 <= int(str(frame_max(lab, i)["bytes"])) < 1600 for i in (1, 2, 3)), "it is found", 30)
        sizes = status(lab.station(1))["frame_sizes"]
        assert sizes["why"] == "proven" and "something between carries less" in sizes["text"]
        with programs(lab, {"g": "preack"}) as members:
            exchange(members, [plan(m, 20, random.Random(49), size_max=40_000) for m in members])
            for number in (2, 3):
                lab.station(number).set_mtu(9000)
            wait_for(lambda: all(frame_max(lab, i)["bytes"] == 9000 for i in (1, 2, 3)), "more passes again", 60)
            done = threading.Event()

            def shrink() -> None:
                while core(lab.station(1))["tx_data"] < 60 and not done.is_set():
                    pass
                lab.station(3).set_mtu(9000, port_mtu=1500)

            plans = [plan(m, 60, random.Random(51), size_max=40_000) for m in members]

            def load() -> None:
                exchange(members, plans, 60)
                done.set()

            in_parallel([load, shrink])
            members[0].groups["g"].send(bytes(50_000), timeout=20)
            wait_for(lambda: int(str(frame_max(lab, 1)["bytes"])) < 1600, "it is found again", 30)
        assert {status(s)["instance"] for s in lab.stations.values()} == {instance}
        assert any("carries no frames of 9000 bytes any more" in log_of(s) for s in lab.stations.values())


def test_mtu_changes_while_running() -> None:
    """Down and up again between bursts: the others are told, nothing is lost, nobody restarts."""
    rng = random.Random(55)
    with cluster(3) as lab, programs(lab, {"g": "preack"}) as members:
        exchange(members, [plan(m, 60, rng, size_max=5000) for m in members])
        lab.station(2).set_mtu(1000)
        wait_for(lambda: all(frame_max(lab, i)["bytes"] == 1000 for i in (1, 2, 3)), "all use the smaller MTU")
        wait_for(lambda: frame_max(lab, 1)["source"] == "station 2", "it names station 2")
        exchange(members, [plan(m, 60, rng, size_max=5000) for m in members])
        lab.station(2).set_mtu(1500)
        wait_for(lambda: all(frame_max(lab, i)["bytes"] == 1500 for i in (1, 2, 3)), "all use the larger MTU")
        exchange(members, [plan(m, 60, rng, size_max=5000) for m in members])
        assert {status(s)["instance"] for s in lab.stations.values()} == {members[0].connection.instance}


def test_mtu_shrinks_under_load() -> None:
    """While full frames are under way one station's MTU shrinks and grows again, more than once."""
    rng = random.Random(56)
    # What does not get through for the moment is no reason to give anybody up, however long the machine makes it.
    with cluster(3, options={"cluster": {"progress_timeout_ms": 20_000}}) as lab, programs(lab, {"g": "preack"}) as members:
        plans = [plan(m, 600, rng, size_max=3000) for m in members]

        def change() -> None:
            for mtu in (1200, 1500, 800, 1500):
                lab.station(3).set_mtu(mtu)
                wait_for(lambda m=mtu: frame_max(lab, 3)["bytes"] == m, "it is noticed")  # type: ignore[misc]

        in_parallel([lambda: exchange(members, plans, 60), change])


@rule("J17")
def test_mtu_shrinks_for_good_under_load() -> None:
    """Full frames under way that can never arrive any more as they are: they go in pieces. No message is lost, none comes twice
    or out of order, no instance ends and no station is removed."""
    rng = random.Random(58)
    with cluster(3) as lab, programs(lab, {"g": "preack"}) as members:
        first = together(lab)
        plans = [plan(m, 400, rng, size_max=3000) for m in members]

        def shrink() -> None:
            wait_for(lambda: core(lab.station(1))["tx_data"] > 50, "traffic")
            for mtu in (1200, 700):
                lab.station(3).set_mtu(mtu)
                wait_for(lambda m=mtu: all(frame_max(lab, i)["bytes"] == m for i in (1, 2, 3)), "all know", 20)  # type: ignore[misc]

        in_parallel([shrink, lambda: exchange(members, plans, 60)])
        assert {status(s)["instance"] for s in lab.stations.values()} == {first}
        assert not any(view.reason == "death" for member in members for view in member.views("g"))


def test_big_messages_from_all_at_once() -> None:
    """Fragments of several stations and of several programs of one station mix; every message comes out whole."""
    rng = random.Random(57)
    with cluster(3, loss=0.01) as lab, programs(lab, {"g": "preack"}, per_station=2) as members:
        bursts: list[list[Burst]] = [
            [("g", "preack", [payload(m, k, size, rng) for k, size in enumerate((200_000, 10, 90_000, 1_000_000))])]
            for m in members
        ]
        exchange(members, bursts)
