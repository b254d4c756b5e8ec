"""A running cluster changes its options and its roster (docs/changing.md): nothing is lost, nobody is left behind, and what
cannot be is refused in words."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from zenjun.daemon.client.errors import Refused
from zenjun.daemon.client.sync import connect_sync
from zenjun.daemon.confighost import HEARD_NS
from zenjun.tools.cli.cluster import _goes_on
from zenjun.tools.lab import Lab

from ..rules import rule
from .cluster import PATIENT, Program, exchange, kill, log_of, plan, programs, reported, status, together, wait_for

pytestmark = pytest.mark.lab
THREE = (1, 2, 3)
FIVE = (1, 2, 3, 4, 5)
LATE: Final = {"cluster": {**PATIENT["cluster"], "open_window_ms": 1000}}
"""A station that does not run for a second is in the next instance all the same."""
ZENJUN = (sys.executable, "-c", "from zenjun.tools.command import main; main()")


@contextlib.contextmanager
def started() -> Iterator[Lab]:
    """Five daemons with the same file, of which three are in its roster."""
    with Lab(5, options=LATE) as up, reported(up):
        for k in FIVE:
            up.stations[k].start_daemon({"cluster": {"stations": 3}})
        together(up, THREE)
        for k in (4, 5):
            wait_for(lambda k=k: status(up.stations[k])["state"] == "opening", "it waits", 20)  # type: ignore[misc]
        yield up


def asked(lab: Lab, at: int, step: str, **arguments: Any) -> dict[str, Any]:
    with connect_sync(str(lab.stations[at].socket_path)) as connection:
        return connection.cluster(step, **arguments)


def change(lab: Lab, at: int, *words: str) -> None:
    """``zenjun cluster …``, in force at that station then. An attempt that ends because a late station is let in meanwhile
    is made again: the page says so."""
    argv = [*ZENJUN, "cluster", *words, "--timeout", "60", "--socket", str(lab.stations[at].socket_path)]
    for _ in range(5):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=150)
        if "given up: members have come or gone" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr


def number(lab: Lab, station: int) -> int:
    return int(status(lab.stations[station])["configuration"]["number"])


@contextlib.contextmanager
def load(members: Sequence[Program]) -> Iterator[None]:
    """They exchange messages all the time, each round compared as a whole."""
    failed: list[BaseException] = []
    done = threading.Event()
    rounds = 0

    def flow() -> None:
        nonlocal rounds
        try:
            while not done.is_set():
                exchange(members, [plan(m, 10, random.Random(m.station)) for m in members])
                rounds += 1
                done.wait(0.02)
        except BaseException as exc:
            failed.append(exc)

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(200)
    assert not thread.is_alive() and not failed, failed
    assert rounds


REFUSED: Final = (
    ("set", {"option": "speed", "value": "9"}, "no option speed"),
    ("set", {"option": "ethertype", "value": "9"}, "cannot be changed while the cluster runs"),
    ("set", {"option": "confirm", "value": "all"}, "cannot be changed while the cluster runs"),
    ("set", {"option": "stations", "value": "9"}, "changed by zenjun cluster add"),
    ("set", {"option": "heartbeat_ms", "value": "soon"}, "expected an integer"),
    ("set", {"option": "heartbeat_ms", "value": "1900"}, "at least 3800 ms"),
    ("set", {"option": "heartbeat_ms", "value": "200"}, "is that already"),
    ("set", {"option": "quorum", "value": "1"}, "only one may go on"),
    ("add", {"station": 2, "absent": False}, "in the roster already"),
    ("add", {"station": 9, "absent": False}, "station 9 is not heard"),
    ("add", {"station": 65, "absent": False}, "stations are 1 to 64"),
    ("remove", {"station": 1, "absent": False}, "is this one"),
    ("remove", {"station": 7, "absent": False}, "not in the roster"),
)


@rule("V5", "V6", "V7")
def test_a_cluster_grows_shrinks_and_remembers() -> None:
    """From three to five and back under load: every message that a program sends is delivered to all, in one order, and none is
    undecided. Then a station is away during a change, and all lose power."""
    with started() as lab:
        refuses(lab)
        has_no_room(lab)
        with programs(lab, {"g": "preack"}, ids=THREE) as members:
            with load(members):
                change(lab, 1, "add", "4")
                change(lab, 2, "add", "5")
                together(lab, FIVE, 60)
                change(lab, 4, "set", "heartbeat_ms", "150")
                change(lab, 2, "remove", "4")
                change(lab, 3, "remove", "5")
            assert all(event.undecided == 0 for m in members for event in m.events("reopened"))
            assert all(1 <= len(m.events("reopened")) <= 5 for m in members), "a change costs one re-opening at most"
        together(lab, THREE, 60)
        wait_for(lambda: [number(lab, k) for k in FIVE] == [5] * 5, "all know the last configuration", 60)
        assert all(status(lab.stations[k])["configuration"]["in_roster"] is (k in THREE) for k in FIVE)
        shown = asked(lab, 3, "show")["message"]
        assert "stations = 3\n" in shown and "heartbeat_ms = 150\n" in shown
        at_once(lab)
        kill(lab.stations[4], lab.stations[5])
        is_away(lab)


def refuses(lab: Lab) -> None:
    instance = together(lab, THREE)
    for step, arguments, why in REFUSED:
        with pytest.raises(Refused, match=why):
            asked(lab, 1, step, **arguments)
    with pytest.raises(Refused, match="not in the roster: ask one that is"):
        asked(lab, 4, "set", option="heartbeat_ms", value="150")
    assert not _goes_on(status(lab.stations[4])), "it is not waited for"
    assert together(lab, THREE) == instance and number(lab, 1) == 0


def has_no_room(lab: Lab) -> None:
    """Station 2 can write nothing: it says so, the change is refused, and nobody ends for it."""
    instance = together(lab, THREE)
    in_the_way = lab.stations[2].state_directory / "station.json.tmp"
    in_the_way.mkdir()
    argv = [*ZENJUN, "cluster", "set", "heartbeat_ms", "210", "--timeout", "60", "--socket", str(lab.stations[1].socket_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    in_the_way.rmdir()
    assert done.returncode == 1 and "given up: station 2: cannot write the state file" in done.stderr, done
    assert together(lab, THREE) == instance and number(lab, 1) == 0


def at_once(lab: Lab) -> None:
    """Two operators, each at one station: who is told that the change is in force has made it."""
    before = number(lab, 1)
    asking = {}
    for k, value in ((1, 160), (2, 170)):
        argv = [*ZENJUN, "cluster", "set", "heartbeat_ms", str(value), "--timeout", "60"]
        argv += ["--socket", str(lab.stations[k].socket_path)]
        asking[value] = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = {value: (process.communicate(timeout=150), process.returncode) for value, process in asking.items()}
    carried_out = [value for value, (_, code) in said.items() if code == 0]
    together(lab, THREE, 60)
    assert len(carried_out) == number(lab, 1) - before, said
    assert not carried_out or status(lab.stations[1])["configuration"]["options"]["heartbeat_ms"] in carried_out, said


def never_fits(lab: Lab) -> str:
    """Why 4 is not added. An option that does not change is another one there: it would count for the quorum, and never be a
    member."""
    with pytest.raises(Refused, match=r"station 4 is not heard|station 4 could never be let in") as refused:
        asked(lab, 1, "add", station=4, absent=False)
    return str(refused.value)


def is_away(lab: Lab) -> None:
    """A station that was away takes the configuration over, whatever its file says; so do all that start again."""
    time.sleep(HEARD_NS / 1e9)  # what 4 said before it was killed would let it in
    lab.stations[4].start_daemon({"cluster": {"stations": 3, "message_max": 70_000}})
    wait_for(lambda: "could never be let in" in never_fits(lab), "4 is heard, and cannot be added", 60)
    kill(lab.stations[4])
    kill(lab.stations[3])
    together(lab, (1, 2), 60)
    before = number(lab, 1)
    change(lab, 1, "set", "probe_interval_ms", "20")
    lab.stations[3].start_daemon({"cluster": {"stations": 3, "probe_interval_ms": 30}})
    together(lab, THREE, 60)
    assert number(lab, 3) == before + 1 and status(lab.stations[3])["options"]["probe_interval_ms"] == 20
    said = log_of(lab.stations[3])
    assert f"configuration {before + 1} is in force: this station was at {before}" in said
    assert "probe_interval_ms is 20 and 30 in the file" in said
    kill(*(lab.stations[k] for k in (1, 2)))
    wait_for(lambda: status(lab.stations[3])["state"] != "open", "there is no quorum", 60)
    with pytest.raises(Refused, match="there is no quorum"):
        asked(lab, 3, "add", station=4, absent=False)
    for k in (1, 2):
        lab.stations[k].start_daemon({"cluster": {"stations": 3}})
    together(lab, THREE, 60)
    assert {number(lab, k) for k in THREE} == {before + 1}, "the files count no more"
