"""What the lab's network does to frames, seen by its own captures and checked with another reader (scapy)."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from zenjun.tools.lab import Lab, LabError, LabNotFound, LabUnsupported

from ..netem import bounds
from ..timing import in_time
from .support import wait_for

pytestmark = [pytest.mark.lab, pytest.mark.timeout(500)]

ETHERTYPE = 0x88B6  # local experimental EtherType 2
GROUP = bytes.fromhex("035a4a0000ff")
MakeLab = Callable[..., Lab]


def frame(source: int, number: int, size: int = 60, tag: bytes = b"") -> bytes:
    """A group frame that carries its number."""
    head = GROUP + bytes.fromhex(f"025a4a0000{source:02x}") + tag + ETHERTYPE.to_bytes(2, "big") + number.to_bytes(4, "big")
    return head + bytes(size - len(head))


def read(path: Path) -> list[tuple[bytes, Any]]:
    """Frames of our EtherType in a capture, with scapy's notes about each."""
    from scapy.utils import RawPcapNgReader

    with RawPcapNgReader(str(path)) as reader:
        return [(data, note) for data, note in reader if ETHERTYPE.to_bytes(2, "big") in data[12:20]]


def numbers(path: Path) -> list[int]:
    return [int.from_bytes(data[14:18], "big") for data, _ in read(path)]


def settle(lab: Lab, station: int, frames: int, timeout_s: float = 60.0) -> None:
    """Wait until so many frames have come to an end at a station's port, delivered or dropped."""

    def done() -> bool:
        counters = lab.counters()[station]
        return counters["received"] + counters["lost"] + counters["cut"] >= frames

    wait_for(done, f"{frames} frames at station {station}", timeout_s)


def recorded(path: Path, frames: int) -> None:
    """Wait until so many of our frames are in the file of a capture that goes on."""
    wait_for(lambda: path.read_bytes().count(GROUP) >= frames, f"{frames} frames in {path}")


def one_processor(lab: Lab, station: int) -> None:
    """Have a station send from one processor: what was sent on two may come in another order, each has a queue of its own."""
    os.sched_setaffinity(lab.stations[station].netns_pid, {min(os.sched_getaffinity(0))})


def reached(lab: Lab, source: int, tmp_path: Path, number: int = 7) -> set[int]:
    """The stations that receive what *source* sends; sends one frame."""
    before = {s: sum(c[k] for k in ("received", "lost", "cut")) for s, c in lab.counters().items()}
    with lab.capture(tmp_path) as paths:
        lab.stations[source].inject(frame(source, number))
        for station in lab.stations:
            if station != source:
                settle(lab, station, before[station] + 1)
    return {station for station, path in paths.items() if station != source and number in numbers(path)}


def test_frames_reach_everybody_else_in_order(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3)
    one_processor(lab, 1)
    with lab.capture(tmp_path) as paths:
        lab.stations[1].inject(*(frame(1, n) for n in range(500)))
        settle(lab, 2, 500)
        settle(lab, 3, 500)
    assert numbers(paths[1]) == numbers(paths[2]) == numbers(paths[3]) == list(range(500))
    assert lab.counters()[1] == {"sent": 500, "received": 0, "lost": 0, "cut": 0, "queue_drops": 0}
    assert lab.counters()[2]["received"] == 500


def test_nothing_but_the_tests_frames_is_on_the_segment(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3)
    with lab.capture(tmp_path) as paths:
        lab.stations[1].inject(frame(1, 1))
        settle(lab, 2, 1)
    from scapy.utils import RawPcapNgReader

    with RawPcapNgReader(str(paths[2])) as reader:
        assert len(list(reader)) == 1


@pytest.mark.parametrize("snooping", [False, True])
def test_group_address_passes_the_bridge_with_and_without_snooping(make_lab: MakeLab, tmp_path: Path, snooping: bool) -> None:
    """Case 107: our group address is outside the range that bridges keep to themselves."""
    lab = make_lab(2, snooping=snooping)
    assert reached(lab, 1, tmp_path) == {2}


def test_loss_is_binomial_at_each_receiver_by_itself(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, loss=0.05)
    total, share = 20_000, 0.05
    bound = 5 * (total * share * (1 - share)) ** 0.5  # five standard deviations
    with lab.capture(tmp_path) as paths:
        lab.stations[1].inject(*(frame(1, n) for n in range(total)))
        settle(lab, 2, total, 30)
        settle(lab, 3, total, 30)
    got = {station: set(numbers(paths[station])) for station in (2, 3)}
    for station, seen in got.items():
        assert abs(total - len(seen) - total * share) < bound
        assert lab.counters()[station]["lost"] == total - len(seen)
    both = total - len(got[2] | got[3])
    expected = total * share**2
    assert abs(both - expected) < 5 * expected**0.5
    assert len(numbers(paths[1])) == total


def test_loss_of_one_station_changes_while_the_lab_runs(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3)
    lab.set_loss(1.0, station=3)
    assert reached(lab, 1, tmp_path) == {2}
    lab.set_loss(0.0)
    assert reached(lab, 1, tmp_path) == {2, 3}
    assert lab.counters()[3]["lost"] == 1, "counters survive a change of rules"


def test_partition_cut_and_heal(make_lab: MakeLab, tmp_path: Path) -> None:
    """Cases 5 and 29: groups that do not hear each other, and a link that works one way only."""
    lab = make_lab(4)
    lab.partition([[1, 2], [3]])
    assert reached(lab, 1, tmp_path) == {2}
    assert reached(lab, 3, tmp_path) == set()
    assert reached(lab, 4, tmp_path) == set(), "stations not named are a group of their own"
    lab.heal()
    lab.cut(1, 2)
    assert reached(lab, 1, tmp_path) == {3, 4}
    assert reached(lab, 2, tmp_path) == {1, 3, 4}
    lab.heal()
    assert reached(lab, 1, tmp_path) == {2, 3, 4}
    assert lab.counters()[2]["cut"] == 3


def test_cut_and_loss_together(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3)
    lab.cut(1, 2)
    lab.set_loss(1.0, station=3)
    assert reached(lab, 1, tmp_path) == set()
    lab.set_loss(0.0)
    assert reached(lab, 1, tmp_path) == {3}, "the cut outlives a change of loss"


def test_a_station_in_two_groups_is_refused(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    with pytest.raises(LabError, match="one group only"):
        lab.partition([[1, 2], [2]])
    with pytest.raises(LabNotFound, match="no station 3"):
        lab.partition([[3]])


def test_whole_jumbo_frames_are_captured(make_lab: MakeLab, tmp_path: Path) -> None:
    """Case 55: frames of 9000 bytes are kept whole, and the file's snap length says so."""
    lab = make_lab(2, mtu=9000)
    sent = frame(1, 1, 9014)[:-4] + b"tail"
    with lab.capture(tmp_path) as paths:
        lab.stations[1].inject(sent)
        settle(lab, 2, 1)
    for station in (1, 2):
        ((data, note),) = read(paths[station])
        assert data == sent
        assert note.wirelen == 9014
    raw = paths[2].read_bytes()
    interface = raw.index(struct.pack("<I", 1), 28)  # the block after the section header
    (snaplen,) = struct.unpack_from("<I", raw, interface + 12)
    assert snaplen >= 65536


def test_capture_has_direction_nanoseconds_and_name(make_lab: MakeLab, tmp_path: Path) -> None:
    """Case 151: nanosecond time stamps; checked by tshark where it is installed."""
    lab = make_lab(2)
    one_processor(lab, 1)
    with lab.capture(tmp_path) as paths:
        lab.stations[1].inject(*(frame(1, n) for n in range(20)))
        settle(lab, 2, 20)
    times: list[int] = [(note.tshigh << 32) + note.tslow for _, note in read(paths[2])]
    assert all(note.tsresol == 10**9 for _, note in read(paths[2]))
    assert times == sorted(times)
    assert any(t % 1000 for t in times), "more than microseconds"
    tshark = shutil.which("tshark")
    assert tshark is not None, "tshark is not installed"
    fields = [
        "-T",
        "fields",
        "-e",
        "frame.interface_name",
        "-e",
        "frame.packet_flags_direction",
        "-e",
        "frame.interface_description",
    ]
    for station, direction in ((1, "0x00000002"), (2, "0x00000001")):
        done = subprocess.run(
            [tshark, "-r", str(paths[station]), *fields], capture_output=True, text=True, timeout=30, check=True
        )
        lines = [line.split("\t") for line in done.stdout.splitlines()]
        assert len(lines) == 20
        assert {line[0] for line in lines} == {"eth0"}
        assert {int(line[1], 0) for line in lines} == {int(direction, 0)}
        assert lines[0][2].endswith(f"station {station}")


def test_capture_puts_vlan_tags_back(make_lab: MakeLab, tmp_path: Path) -> None:
    """Case 157: the kernel keeps a tag beside the frame; the file has it in its place."""
    lab = make_lab(2)
    sent = frame(1, 1, 64, tag=bytes.fromhex("8100 6007"))
    with lab.capture(tmp_path) as paths:
        lab.stations[1].inject(sent)
        settle(lab, 2, 1)
    ((data, _),) = read(paths[2])
    assert data == sent


def test_capture_ends_by_count_and_can_be_started_again(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2)
    lab.start_capture(tmp_path, [2], count=10)
    with pytest.raises(LabError, match="captured already"):
        lab.start_capture(tmp_path, [2])
    # That failed start ends the captures it was about; this one is over, with what there was.
    assert lab.capturing() == [2]
    lab.stations[1].inject(*(frame(1, n) for n in range(50)))
    wait_for(lambda: not lab.capturing(), "the capture ends by itself")
    assert lab.stop_capture() == {2: {"frames": 10, "bytes": 600, "dropped": 0}}
    assert len(numbers(tmp_path / "station-2.pcapng")) == 10
    assert lab.stop_capture() == {}


def test_capture_into_an_impossible_file_is_refused(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2)
    (tmp_path / "station-2.pcapng").mkdir()
    with pytest.raises(LabError, match=r"station-2\.pcapng: Is a directory"):
        lab.start_capture(tmp_path)
    assert lab.capturing() == []


def test_capture_follows_a_new_interface(make_lab: MakeLab, tmp_path: Path) -> None:
    """Case 69: the interface is deleted and made again under the same name, with another index."""
    lab = make_lab(2)
    station = lab.stations[2]
    station.set_mac("02:00:00:00:00:99")
    before = station.interface
    with lab.capture(tmp_path) as paths:
        lab.stations[1].inject(frame(1, 1))
        settle(lab, 2, 1)
        recorded(paths[2], 1)
        station.delete_interface()
        assert station.interface["present"] is False
        assert lab.counters()[2]["received"] == 0
        station.create_interface()
        wait_for(lambda: _carrier(lab, 2), "it has a carrier")
        after = station.interface
        lab.stations[1].inject(frame(1, 2))
        settle(lab, 2, 1)
    assert numbers(paths[2]) == [1, 2]
    assert after["index"] != before["index"]
    assert {**after, "index": 0} == {**before, "index": 0}, "same name, address, MTU and state"


def test_deliver_reaches_one_station_alone(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3)
    lab.partition([[1], [2], [3]])
    with lab.capture(tmp_path) as paths:
        lab.stations[2].deliver(frame(9, 5), b"\x00" * 14)
        settle(lab, 2, 2)
    assert [numbers(paths[s]) for s in (1, 2, 3)] == [[], [5], []]


def test_frames_too_long_are_refused_by_name(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    with pytest.raises(LabError, match="frame 1 of 1700 bytes on eth0: Message too long"):
        lab.stations[1].inject(frame(1, 0), frame(1, 1, 1700))


def test_interface_operations(make_lab: MakeLab, tmp_path: Path) -> None:
    """Cases 49 and 71: interface down and up, carrier lost, renamed, MTU and MAC changed."""
    lab = make_lab(3)
    station = lab.stations[2]
    station.link_down()
    assert station.interface["up"] is False
    station.link_up()
    wait_for(lambda: reached(lab, 1, tmp_path) == {2, 3} if _carrier(lab, 2) else False, "station 2 hears again")
    station.cable_out()
    wait_for(lambda: not _carrier(lab, 2), "no carrier")
    assert station.interface["up"] is True
    station.cable_in()
    wait_for(lambda: _carrier(lab, 2), "carrier")
    station.rename_interface("lan7")
    assert station.interface["name"] == "lan7"
    wait_for(lambda: _carrier(lab, 2), "it has a carrier under its new name")
    station.set_mac("02:00:00:00:00:42")
    station.set_mtu(9000, port_mtu=1500)
    assert {k: station.interface[k] for k in ("name", "mac", "mtu")} == {"name": "lan7", "mac": "02:00:00:00:00:42", "mtu": 9000}
    assert reached(lab, 2, tmp_path) == {1, 3}
    station.delete_interface()
    with pytest.raises(LabError, match="unplugged"):
        station.cable_out()
    station.create_interface()
    assert {k: station.interface[k] for k in ("name", "mac", "mtu")} == {"name": "lan7", "mac": "02:00:00:00:00:42", "mtu": 9000}
    with pytest.raises(LabError, match="plugged in already"):
        station.create_interface()


def _carrier(lab: Lab, station: int) -> bool:
    name = lab.stations[station].interface["name"]
    return str(lab.stations[station].run(["cat", f"/sys/class/net/{name}/operstate"]).stdout).strip() == "up"


def test_rate_limits_both_directions(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2, rate_bit=10_000_000)
    with lab.capture(tmp_path, [2]) as paths:
        lab.stations[1].inject(*(frame(1, n, 1514) for n in range(150)))
        wait_for(
            lambda: sum(lab.counters()[2][k] for k in ("received", "queue_drops")) >= 150 or len(read(paths[2])) >= 100,
            "100 frames",
        )
    times: list[int] = [(note.tshigh << 32) + note.tslow for _, note in read(paths[2])][19:]  # after the bucket's first burst

    def rate(first: int, last: int) -> float:
        """Bits per second between two frames."""
        return (last - first) * 1514 * 8 / ((times[last] - times[first]) / 1e9)

    assert len(times) > 60
    # A machine that stands still makes it slower, never faster: the rate is what frames come at while it does not.
    assert rate(0, len(times) - 1) < 10.5e6
    in_time(max(rate(k, k + 20) for k in range(0, len(times) - 20, 5)) > 8e6, "twenty frames one behind the other")
    lab.impair(rate_bit=0)
    before = lab.counters()[2]["received"]
    lab.stations[1].inject(*(frame(1, n, 1514) for n in range(150)))
    settle(lab, 2, before + 150)


def test_what_needs_netem_is_refused_by_name_without_it(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2)
    if lab.describe()["netem"]:
        pytest.skip("this kernel has sch_netem")
    with pytest.raises(
        LabUnsupported, match=r"delay, reorder needs sch_netem \(CONFIG_NET_SCH_NETEM\).*loss, burst and rate work without"
    ):
        lab.impair(delay_ns=1_000_000, reorder=0.1, loss=1.0)
    assert reached(lab, 1, tmp_path) == {2}, "nothing was changed"
    with pytest.raises(LabUnsupported, match="duplicate needs sch_netem"):
        Lab(2, duplicate=0.5).up()
    with pytest.raises(LabError, match="must be one of uniform, normal"):
        lab.impair(jitter_distribution="flat")
    with pytest.raises(LabError, match="no such impairment: lose"):
        lab.impair(lose=1.0)


def test_burst_loss_with_and_without_netem(make_lab: MakeLab, tmp_path: Path) -> None:
    """The nftables rules are the same model: mean loss and mean length of a burst are in their exact bounds."""
    lab = make_lab(3)
    p, r, total, bursts = 0.1, 0.25, 6000, 300
    lab.impair([2, 3], burst=(p, r))
    with lab.capture(tmp_path) as paths:
        lab.stations[1].inject(*(frame(1, n) for n in range(total)))
        settle(lab, 2, total)
        settle(lab, 3, total)
    lost = {}
    for station in (2, 3):
        got = set(numbers(paths[station]))
        lost[station] = [n not in got for n in range(total)]
        assert lab.counters()[station]["lost"] == sum(lost[station])
        bounds.check_bursts(lost[station], p, r, bursts)
        for other in ((2 * p, r), (p, 2 * r)):  # the check can fail
            with pytest.raises(AssertionError, match="on average, not of"):
                bounds.check_bursts(lost[station], *other, bursts)
    assert lost[2] != lost[3], "each receiver has states of its own"
    # 1-h and 1-k, and a loss on top: a state that is never left is a plain share.
    for model, loss, share in (((0.0, 1.0, 1.0, 0.1), 0.2, 0.28), ((1.0, 1e-9, 0.6), 0.0, 0.6)):
        before = lab.counters()[2]["lost"]
        lab.impair([2], burst=model, loss=loss)
        lab.stations[1].inject(*(frame(1, n) for n in range(2000)))
        settle(lab, 2, total + 2000)
        total += 2000
        bounds.check_hits("lost", lab.counters()[2]["lost"] - before, 2000, share)
    lab.impair(burst=(), loss=0.0)
    assert reached(lab, 1, tmp_path) == {2, 3}


def test_a_limit_is_a_queue_of_frames_before_the_rate(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    lab.impair([2], rate_bit=64_000, limit=10)
    lab.stations[1].inject(*(frame(1, n, 1000) for n in range(100)))

    def ended() -> int:
        counters = lab.counters()[2]
        return counters["received"] + counters["queue_drops"]

    wait_for(lambda: ended() >= 100, "what waited has come", 30)
    # The bucket's first burst, those that waited, and a few that found a place meanwhile.
    before = lab.counters()[2]
    assert before["queue_drops"] > 60 and before["received"] >= 10
    lab.impair([2], limit=100)
    lab.stations[1].inject(*(frame(1, n, 100) for n in range(50)))
    wait_for(lambda: ended() >= 150, "these have, too", 30)
    assert lab.counters()[2]["queue_drops"] == before["queue_drops"], "a change of the limit alone"
    lab.impair([2], limit=0, rate_bit=0)
    if not lab.describe()["netem"]:
        with pytest.raises(LabUnsupported, match="limit without rate needs sch_netem"):
            lab.impair([2], limit=10)


def test_loss_without_nft_names_the_package(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    from zenjun.tools.lab import filters

    monkeypatch.setattr(shutil, "which", lambda *_args, **_options: None)
    with pytest.raises(LabUnsupported, match="install the package nftables"):
        filters.apply("", "loss without sch_netem")


def test_a_bus_returns_the_senders_frames(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2, medium="bus")
    with lab.capture(tmp_path) as paths:
        lab.stations[1].inject(frame(1, 3))
        settle(lab, 1, 1)
        settle(lab, 2, 1)
    assert numbers(paths[1]) == [3, 3], "once on its way out, once from the medium"
    assert numbers(paths[2]) == [3]
