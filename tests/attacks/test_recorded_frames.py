"""Attack: what was recorded on the segment is sent again while stations start (while they run: test_keyed_segment.py).

Under the seal of a key of 16 bytes a station's own old OPEN, sent while it starts, ends its daemon; under sessions nothing
happens, and everything is counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from zenjun.daemon.key import KEY_BYTES, LONG_KEY_BYTES
from zenjun.proto import wire
from zenjun.proto.envelope import ENVELOPE, What
from zenjun.proto.wire import HEADER, OPEN, Kind, OpenFlag
from zenjun.tools.lab import Lab

from ..capturefile import CaptureFile
from ..e2e.cluster import (
    cluster,
    datapath,
    exchange,
    kill,
    log_of,
    plan,
    process_alive,
    programs,
    reported,
    together,
    wait_for,
)
from ..e2e.daemon_common import write_key

pytestmark = pytest.mark.lab
N = 3
MEMBERS = range(1, N + 1)
EVIL = bytes.fromhex("02badbadbad0")
BATCH = 64


def up(folder: Path, size: int) -> Any:
    """Three stations with a key of this size, and a fourth place on the segment for the attacker."""
    key = write_key(folder / "zenjun.key", size)
    return cluster(4, ids=MEMBERS, options={"cluster": {"stations": N}, "station": {"key_file": str(key)}})


@pytest.fixture
def proving(tmp_path: Path) -> Iterator[Lab]:
    with up(tmp_path, LONG_KEY_BYTES) as lab:
        yield lab


def recorded(lab: Lab, folder: Path, meanwhile: Callable[[], None]) -> list[bytes]:
    """What went over the segment, with the attacker's address as source."""
    with lab.capture(folder, [4]) as files:
        meanwhile()
    with files[4].open("rb") as file:
        frames = [record.data for record in CaptureFile(file)]
    assert frames
    return [frame[:6] + EVIL + frame[12:] for frame in frames]


def busy(lab: Lab) -> None:
    """Messages, and a station that ends and comes back."""
    with programs(lab, {"g": "preack"}, ids=(1, 2)) as members:
        exchange(members, [plan(m, 50, random.Random(m.station), size_max=2000) for m in members])
        kill(lab.stations[3])
        together(lab, (1, 2))
        lab.stations[3].start_daemon()
        together(lab, MEMBERS)


def inject(lab: Lab, frames: list[bytes]) -> None:
    for at in range(0, len(frames), BATCH):
        lab.stations[4].inject(*frames[at : at + BATCH])


def test_all_that_was_recorded_while_all_start(proving: Lab, tmp_path: Path) -> None:
    """Of this life and of earlier ones: nobody ends, and they open."""
    with reported(proving):
        frames = recorded(proving, tmp_path, lambda: busy(proving))
        kill(*(proving.stations[n] for n in MEMBERS))
        inject(proving, frames)
        proving.start_daemons(MEMBERS)
        for _ in range(3):
            inject(proving, frames)
        together(proving, MEMBERS, 60)
        assert all(process_alive(proving.stations[n]) for n in MEMBERS)
        assert not any("used twice" in log_of(proving.stations[n]) for n in MEMBERS)


def own_open(frames: list[bytes], station: int, envelope: int) -> bytes:
    """An OPEN that says that this station has started; envelope: bytes before the PDU."""
    for frame in frames:
        pdu = frame[wire.ETHERNET_HEADER + envelope :]
        if len(pdu) < HEADER.size or pdu[HEADER.offset("kind")] != Kind.OPEN or pdu[HEADER.offset("src")] != station:
            continue
        if pdu[HEADER.size + 4 * N + OPEN.offset("oflags")] & OpenFlag.STARTED:
            return frame
    raise AssertionError(f"station {station} has said nowhere that it has started")


def restart(lab: Lab) -> None:
    """Station 1 is killed and started."""
    kill(lab.stations[1])
    together(lab, (2, 3))
    lab.stations[1].start_daemon()


def flood_until(lab: Lab, frame: bytes, condition: Callable[[], object], what: str) -> None:
    def sent_again() -> object:
        lab.stations[4].inject(*[frame] * 8)
        return condition()

    wait_for(sent_again, what, 30)


def with_answers(lab: Lab) -> None:
    """Station 3 starts anew: the others tell it that they have started."""
    kill(lab.stations[3])
    together(lab, (1, 2))
    lab.stations[3].start_daemon()
    together(lab, MEMBERS)


def test_an_own_open_of_an_earlier_life_ends_nobody(proving: Lab, tmp_path: Path) -> None:
    with reported(proving):
        frames = recorded(proving, tmp_path, lambda: with_answers(proving))
        frame = own_open(frames, 1, ENVELOPE.size)
        assert frame[wire.ETHERNET_HEADER + 5] == What.PDU
        restart(proving)
        flood_until(proving, frame, lambda: together_now(proving), "station 1 is let in")
        assert process_alive(proving.stations[1])
        assert datapath(proving.stations[1])["rx_own"] >= 8


def together_now(lab: Lab) -> bool:
    try:
        return bool(together(lab, MEMBERS, 0.2))
    except AssertionError:
        return False


def test_the_same_under_a_seal_ends_the_daemon(tmp_path: Path) -> None:
    """What sessions are for; and that the test above would notice."""
    with up(tmp_path, KEY_BYTES) as lab, reported(lab):
        frames = recorded(lab, tmp_path, lambda: with_answers(lab))
        frame = own_open(frames, 1, 0)
        restart(lab)
        flood_until(lab, frame, lambda: not process_alive(lab.stations[1]), "its daemon ends")
        assert "used twice" in log_of(lab.stations[1])
