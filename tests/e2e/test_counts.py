"""What a message costs on the segment, counted in captures: a lone DATA PDU, silence after it, many messages, own frames."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from zenjun.daemon.client import Level
from zenjun.proto.wire import ETHERTYPE, Flag, Kind
from zenjun.tools.dissect import Ether, Zenjun, find
from zenjun.tools.lab import Lab, LabError

from ..capturefile import CaptureFile
from ..rules import rule
from .cluster import PATIENT, cluster, core, datapath, drops, exchange, plan, programs, reported, status, stays, wait_for
from .daemon_common import adopt

pytestmark = pytest.mark.lab
QUIET = {
    "poll_delay_ms": 1000,  # a starved process must not make anybody ask for news: the counts are exact only without polls
    "poll_delay_max_ms": 1000,
    "heartbeat_ms": 10_000,
    "fail_timeout_ms": 60_000,
    "progress_timeout_ms": 60_000,
}
"""Timers so slow that nothing but the message and its confirmations is on the segment during a test."""
SIZES = range(3, 9)


@dataclass(frozen=True)
class Seen:
    """One of our frames in a capture."""

    time_ns: int
    source: str
    pdu: Zenjun


def read_capture(path: Path) -> list[Seen]:
    """All frames of our EtherType, decoded; the checksums of all must be right."""
    out = []
    with path.open("rb") as file:
        for record in CaptureFile(file):
            frame = Ether(record.data)
            if frame.type == ETHERTYPE:
                pdu = find(frame)
                assert pdu is not None and pdu.check_ok, "a frame of ours that cannot be decoded"
                out.append(Seen(record.time_ns, str(frame.src), pdu))
    return out


@pytest.fixture(scope="module")
def wires() -> Iterator[Lab]:
    """Eight stations; each test starts the daemons of the first n."""
    with Lab(max(SIZES)) as lab, reported(lab):
        yield lab


@pytest.fixture(params=SIZES, ids=[f"n={n}" for n in SIZES])
def quiet(request: pytest.FixtureRequest, wires: Lab) -> Iterator[tuple[Lab, int]]:
    """An open cluster of n stations with slow timers; of an even number, one that confirms to the sender."""
    ids = range(1, request.param + 1)
    for number in ids:
        if wires.station(number).state_directory.exists():
            adopt(wires.station(number))
        wires.station(number).start_daemon({"cluster": {**QUIET, "stations": request.param, "confirm": confirm(request.param)}})
    wires.wait_open(90, ids)
    yield wires, request.param
    for number in ids:
        wires.station(number).stop_daemon()


def confirm(n: int) -> str:
    return "merged" if n % 2 else "sender"


def sent(lab: Lab, n: int) -> int:
    """Frames sent by all stations so far."""
    return sum(datapath(lab.station(i))["tx_frames"] for i in range(1, n + 1))


def count_one(lab: Lab, n: int, level: Level, folder: Path) -> tuple[list[Seen], list[Seen]]:
    """Frames at the sender's and at another station's interface from a lone message on, until half a second of silence has
    passed."""
    with programs(lab, {"g": "preack"}, ids=[2]) as (sender,):
        wait_for(lambda: still(lab, n), "the segment is idle", 20)
        with lab.capture(folder, [1, 2]) as files:
            sender.groups["g"].send(b"lone", level, timeout=10)
            wait_for(lambda: sent(lab, n) >= 0 and still(lab, n), "silence again", 20)
        at_sender, elsewhere = (read_capture(files[i]) for i in (2, 1))
        for frames in (at_sender, elsewhere):
            datas = [f for f in frames if f.pdu.kind == Kind.DATA]
            assert [f.pdu.src for f in datas] == [2]
            assert datas[0].pdu.payload.messages[0].data == b"lone"
        return at_sender, elsewhere


def still(lab: Lab, n: int) -> bool:
    """Whether nobody sends anything for 0.4 s."""
    before = sent(lab, n)
    try:
        stays(lambda: sent(lab, n) == before, "nobody sends", 0.4)
    except AssertionError:
        return False
    return True


@rule("C6", "C7")
def test_a_lone_message_costs_n_or_2n_frames_then_silence(quiet: tuple[Lab, int], tmp_path: Path) -> None:
    """To level preack n frames that all receive. With confirm = "sender" n + 1, of which the n - 1 confirmations go to the sender
    alone, so the others see three: the message, their own and the sender's. 2n to level ack, or 2n - 1 when a confirmation came
    so late that it carried both."""
    lab, n = quiet
    alone = confirm(n) == "sender"
    for level, allowed in (("preack", {n + 1 if alone else n}), ("ack", {2 * n - 1, 2 * n})):
        frames, elsewhere = count_one(lab, n, level, tmp_path / level)  # type: ignore[arg-type]
        assert len(elsewhere) == (3 if level == "preack" and alone else len(frames))
        kinds = Counter(Kind(f.pdu.kind).name for f in frames)
        assert len(frames) in allowed, (level, kinds, [f.pdu.summary() for f in frames])
        assert kinds == Counter(DATA=1, CONFIRM=len(frames) - 1)
        assert not any(f.pdu.flags & Flag.POLL for f in frames)


def test_idle_segment_carries_heartbeats_only(tmp_path: Path) -> None:
    """Nobody sends: a CONFIRM of each station per heartbeat interval, none of which asks for anything, and none is answered.

    Who is late by a quarter of an interval, because the machine has not run it, is asked: then a later while is looked at."""
    heartbeat_s = 0.8
    options = {"cluster": {"heartbeat_ms": 800, "fail_timeout_ms": 20_000}}
    with cluster(3, options=options) as lab, programs(lab, {"g": "preack"}) as members:
        members[0].groups["g"].send(b"x", "ack")
        before = core(lab.station(1))["tx_heartbeat"]
        wait_for(lambda: core(lab.station(1))["tx_heartbeat"] > before, "it has come to rest")
        for attempt in range(8):
            with lab.capture(tmp_path / str(attempt), [1]) as files:
                beats = core(lab.station(1))["tx_heartbeat"]
                wait_for(lambda b=beats: core(lab.station(1))["tx_heartbeat"] >= b + 3, "three heartbeats", 20)  # type: ignore[misc]
            frames = read_capture(files[1])
            if not any(f.pdu.flags & Flag.POLL for f in frames):
                break
        assert not any(f.pdu.flags & Flag.POLL for f in frames)
        assert {Kind(f.pdu.kind) for f in frames} == {Kind.CONFIRM}
        seconds = (frames[-1].time_ns - frames[0].time_ns) / 1e9
        assert len(frames) <= 3 * (seconds / heartbeat_s + 2), (len(frames), seconds)
        assert {f.pdu.src for f in frames} == {1, 2, 3}


def test_many_small_messages_share_frames(tmp_path: Path) -> None:
    """A burst of small messages from all stations costs far fewer frames than messages, confirmations included."""
    with cluster(3) as lab, programs(lab, {"g": "preack"}) as members:
        before = sent(lab, 3)
        exchange(members, [[("g", "preack", [b"%d" % k for k in range(2000)])] for _ in members])
        assert sent(lab, 3) - before < 6000 / 4


def test_own_frames_are_never_received_case_37(tmp_path: Path) -> None:
    """With a capture open on every interface (which sees both directions) no station counts a frame of its own as received:
    what all have received is what the others have sent."""
    options = {"cluster": {**QUIET, "poll_delay_ms": 5}}  # no heartbeat between two readings of the counters
    with cluster(3, options=options) as lab, programs(lab, {"g": "preack"}) as members, lab.capture(tmp_path) as files:
        wait_for(lambda: still(lab, 3), "the segment is idle", 20)
        before = {i: datapath(s) for i, s in lab.stations.items()}
        exchange(members, [plan(m, 300, random.Random(37)) for m in members])

        def balanced() -> bool:
            now = {i: datapath(s) for i, s in lab.stations.items()}
            tx, rx = ({i: now[i][k] - before[i][k] for i in now} for k in ("tx_frames", "rx_frames"))
            return all(rx[i] == sum(tx.values()) - tx[i] for i in rx)

        wait_for(balanced, "received by each = sent by the others", 20)
        assert all(drops(s)["own"] == 0 for s in lab.stations.values())
        assert all(status(s)["kernel"]["drops"] == 0 for s in lab.stations.values())
        for member in members:
            assert [m.own for m in member.messages("g")] == [m.station == member.station for m in member.messages("g")]
    assert all(path.stat().st_size > 1000 for path in files.values())


def test_own_frames_coming_back_are_not_taken_case_37() -> None:
    """On a medium that returns a station's own frames (a bus) they are counted by reason and change nothing."""
    lab = Lab(3, medium="bus", options={"cluster": {"medium": "switched", **PATIENT["cluster"]}})
    with lab, reported(lab):
        try:
            lab.start_daemons()
            lab.wait_open(90)
        except LabError as error:
            pytest.fail(f"it does not open where own frames come back: {error}")
        with programs(lab, {"g": "preack"}) as members:
            exchange(members, [plan(m, 300, random.Random(37)) for m in members])
        assert all(status(s)["state"] == "open" for s in lab.stations.values())
