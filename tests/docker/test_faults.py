"""Faults on containers, by the lab: each is seen in the counters of the kernel and of the daemons, and total order holds."""

from __future__ import annotations

import contextlib
import math
import random
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from zenjun.tools.lab import Impairment, LabError, LabNotFound, LabUnsupported
from zenjun.tools.lab.containers import ContainerLab
from zenjun.tools.lab.docker_api import Engine

from ..e2e.cluster import Program, core, exchange, plan, programs, status, stays, wait_for
from .conftest import TIMEOUT_S, ZENJUN, open_cluster, output_of

pytestmark = [pytest.mark.docker, pytest.mark.timeout(TIMEOUT_S)]
SIGMAS = 5


def peer_state(lab: ContainerLab, at: int, of: int) -> str:
    """What station ``at`` says about another."""
    peers = {peer["station"]: peer for peer in status(lab.station(at))["peers"]}
    return str(peers[of]["state"]) if of in peers else "gone"


def without(lab: ContainerLab, gone: int) -> None:
    """Wait until the others go on in an instance without this station."""
    rest = [number for number in lab.stations if number != gone]

    def members() -> list[list[int]]:
        said = [status(lab.station(number)) for number in rest]
        return [[station for station, _ in s["members"]] if s["state"] == "open" else [] for s in said]

    wait_for(lambda: members() == [rest] * len(rest), f"the others go on without station {gone}", 30)
    wait_for(lambda: all(peer_state(lab, number, gone) == "out" for number in rest), f"station {gone} is out for them", 30)


def all_talk(lab: ContainerLab, seed: str, messages: int = 300) -> None:
    """Everybody sends, everybody has received the same sequence."""
    rng = random.Random(seed)
    with programs(lab, {"red": "preack", "blue": "ack"}) as members:
        exchange(members, [plan(member, messages, rng) for member in members])


def all_left_talk(lab: ContainerLab, ids: tuple[int, ...]) -> None:
    """As ``all_talk``, between some stations."""
    rng = random.Random(f"left {ids}")
    with programs(lab, {"red": "preack"}, ids=ids) as members:
        exchange(members, [plan(member, 100, rng) for member in members])


@contextlib.contextmanager
def healed(lab: ContainerLab) -> Iterator[None]:
    """Ends all faults after the block, and waits for the cluster."""
    try:
        yield
    finally:
        lab.impair(None, **Impairment().to_json())
        lab.heal()
        open_cluster(lab)


def flood(lab: ContainerLab, sender: int, frames: int) -> None:
    """Many frames from one station to all others, of nobody's protocol, so that nobody answers; all have come to their end."""
    before = {number: ended(counters) for number, counters in lab.counters().items()}
    lab.station(sender).inject(*[b"\x03\x5a\x4a\0\0\x09" + b"\x02\x5a\x4a\0\0\x77" + b"\x88\xb6" + bytes(50)] * frames)
    wait_for(
        lambda: all(ended(c) >= before[n] + frames for n, c in lab.counters().items() if n != sender),
        "all have come to their end",
        30,
    )


def ended(counters: dict[str, int]) -> int:
    """Frames towards a station that have been received, or dropped."""
    return counters["received"] + counters["lost"] + counters["cut"]


@pytest.mark.parametrize("loss", [0.05, 0.2])
def test_loss_is_what_was_asked_for_and_is_repaired(lab: ContainerLab, loss: float) -> None:
    with healed(lab):
        before = lab.counters()
        lab.impair(None, loss=loss)
        flood(lab, 1, 4000)
        after = lab.counters()
        for number in (2, 3):
            lost = after[number]["lost"] - before[number]["lost"]
            seen = after[number]["received"] - before[number]["received"]
            offered = seen + lost
            assert offered >= 4000
            assert abs(lost - offered * loss) <= SIGMAS * math.sqrt(offered * loss * (1 - loss)), (number, lost, offered)
        repaired = {number: core(station)["rx_repaired"] for number, station in lab.stations.items()}
        all_talk(lab, f"loss {loss}", 800)
        assert all(core(station)["rx_repaired"] > repaired[number] for number, station in lab.stations.items())


def test_loss_in_bursts_and_a_queue_length(lab: ContainerLab) -> None:
    """The mean loss of the Gilbert-Elliott model; and settings that other processes find again."""
    p, r = 0.1, 0.25
    with healed(lab):
        before = lab.counters()
        lab.impair([2], burst=(p, r))
        flood(lab, 1, 4000)
        after = lab.counters()
        lost, seen = (after[2][key] - before[2][key] for key in ("lost", "received"))
        share = p / (p + r)
        # Neighbours go together: what the one frame does says something about the next.
        deviation = math.sqrt(share * (1 - share) * (2 - p - r) / (p + r) / (lost + seen))
        assert abs(lost / (lost + seen) - share) <= SIGMAS * deviation, (lost, seen)
        output_of(*ZENJUN, "lab", "impair", "--name", lab.name, "--rate", "10mbit", "--limit", "50")
        text = output_of(*ZENJUN, "lab", "status", "--name", lab.name)
        assert "burst 10% 25% 100% 0% (loses 28.57%), rate 10mbit, limit 50" in text
        all_talk(lab, "bursts of lost frames", 200)


def test_loss_of_one_station_only(lab: ContainerLab) -> None:
    with healed(lab):
        before = lab.counters()
        lab.impair([2], loss=0.5)
        flood(lab, 1, 500)
        after = lab.counters()
        assert after[2]["lost"] - before[2]["lost"] > 150
        assert after[3]["lost"] == before[3]["lost"]


def test_a_cut_is_one_way(lab: ContainerLab) -> None:
    """Station 2 hears nothing from station 1 itself, but all of it from station 3, which passes it on: nobody is removed."""
    with healed(lab):
        instance = open_cluster(lab)
        lab.cut(1, 2)
        assert lab.describe()["cuts"] == [(1, 2)]
        relayed, cut = core(lab.station(3))["tx_relay"], {number: c["cut"] for number, c in lab.counters().items()}
        all_talk(lab, "during the cut")
        assert core(lab.station(3))["tx_relay"] > relayed
        now = {number: c["cut"] for number, c in lab.counters().items()}
        assert now[2] > cut[2] + 10 and (now[1], now[3]) == (cut[1], cut[3])
        stays(lambda: {status(s)["instance"] for s in lab.stations.values()} == {instance}, "nobody is removed", 3.0)
    all_talk(lab, "cut")


def test_a_partition_and_its_end(lab: ContainerLab) -> None:
    with healed(lab):
        lab.partition([[1, 2]])
        without(lab, 3)
        wait_for(lambda: not status(lab.station(3))["quorum"]["have"], "station 3 knows that it is too few", 30)
        instance = status(lab.station(1))["instance"]
    assert open_cluster(lab) > instance, "it has been let in again"
    all_talk(lab, "partition")


def test_paused_and_resumed(lab: ContainerLab) -> None:
    container = lab.desks[2]
    lab.station(2).signal(19)
    try:
        assert container.look()["Paused"]
        without(lab, 2)
        with pytest.raises(LabError):
            lab.station(2).status(0.3)
    finally:
        lab.station(2).signal(18)
    assert not container.look()["Paused"]
    open_cluster(lab)
    all_talk(lab, "pause")


def test_killed_noticed_started_and_back_with_its_faults(lab: ContainerLab) -> None:
    with healed(lab):
        lab.impair(None, loss=0.05)
        first = open_cluster(lab)
        port = lab.describe()["stations"][2]["interface"]["index"]
        daemon = lab.station(3).daemon
        assert daemon is not None
        lab.station(3).signal(9)
        assert daemon.wait(10) == -9
        without(lab, 3)
        all_left_talk(lab, (1, 2))
        with pytest.raises(LabNotFound, match="does not run"):
            lab.station(3).command(["true"])
        assert lab.station(3).start_daemon().pid != daemon.pid
        assert open_cluster(lab) > first + 1, "one instance without it, one with it again"
        assert lab.describe()["stations"][2]["interface"]["index"] != port, "the cable is new"
        before = lab.counters()[3]["lost"]
        flood(lab, 1, 1000)
        assert 10 < lab.counters()[3]["lost"] - before < 150, "the new cable loses 5 % as the old one did"
        all_talk(lab, "kill")


def test_restarted_by_somebody_else_behind_a_cut(lab: ContainerLab, images: Engine) -> None:
    """Between the start and the first command that can set its cuts, nothing gets past them; then they are set anew."""
    with healed(lab):
        lab.partition([[3]])
        without(lab, 3)
        images.act(lab.desks[3].container, "restart", t="5")

        # Its status is asked past the lab, which would look where the new cable is.
        pid = images.inspect(lab.desks[3].container)["State"]["Pid"]
        socket = f"/proc/{pid}/root/run/zenjun/zenjund.sock"
        argv = [*ZENJUN, "status", "--json", "--socket", socket]
        wait_for(lambda: subprocess.run(argv, capture_output=True, check=False, timeout=20).returncode == 0, "it is up again", 20)
        stays(lambda: peer_state(lab, 1, 3) != "up" and peer_state(lab, 2, 3) != "up", "nobody hears it", 1.5)
        assert peer_state(lab, 3, 1) != "up"
        lab.refresh()
        before = lab.counters()[1]["cut"]
        wait_for(lambda: lab.counters()[1]["cut"] > before, "what the new cable brings is cut by name")
        assert peer_state(lab, 1, 3) != "up"
    all_talk(lab, "restart behind a cut")


def test_interface_down_and_up(lab: ContainerLab) -> None:
    lab.station(2).link_down()
    try:
        assert not lab.station(2).interface["up"]
        wait_for(lambda: status(lab.station(2))["state"] == "no link", "its daemon sees it")
        without(lab, 2)
    finally:
        lab.station(2).link_up()
    open_cluster(lab)
    all_talk(lab, "down and up")


def test_interface_deleted_and_made_anew_case_69(lab: ContainerLab) -> None:
    before = lab.station(2).interface
    with healed(lab):
        lab.impair([2], loss=0.1)
        lab.station(2).delete_interface()
        try:
            assert not lab.station(2).interface["present"]
            wait_for(lambda: status(lab.station(2))["state"] == "no link", "its daemon sees it")
        finally:
            lab.station(2).create_interface()
        after = lab.station(2).interface
        assert after["mac"] == before["mac"] and after["index"] != before["index"]
        open_cluster(lab)
        lost = lab.counters()[2]["lost"]
        flood(lab, 1, 1000)
        assert 30 < lab.counters()[2]["lost"] - lost < 250
    all_talk(lab, "made anew")


def test_mtu_changed_while_running(lab: ContainerLab) -> None:
    lab.station(2).set_mtu(1300)
    try:
        assert lab.station(2).interface["mtu"] == 1300
        wait_for(lambda: status(lab.station(2))["interface"]["mtu"]["bytes"] == 1300, "its daemon sees it")
        open_cluster(lab)
        all_talk(lab, "mtu")
    finally:
        lab.station(2).set_mtu(1500)
    wait_for(lambda: status(lab.station(2))["interface"]["mtu"]["bytes"] == 1500, "its daemon sees it")
    open_cluster(lab)


def test_rate_holds_both_ways(lab: ContainerLab) -> None:
    with healed(lab):
        lab.impair([1], rate_bit=1_000_000)
        with programs(lab, {"red": "preack"}, ids=[1, 2]) as (slow, fast):
            for sender in (slow, fast):
                started = time.monotonic()
                sender.groups["red"].send_many([bytes(1000)] * 150)
                took = time.monotonic() - started
                # 150 kB at 1 Mbit/s are 1.2 s, less what the bucket gives at once.
                assert took > 0.9, f"{sender.station} sent 150 kB in {took:.2f} s"


def test_what_the_kernel_lacks_is_refused_by_name_and_nothing_changes(lab: ContainerLab) -> None:
    if lab.describe()["netem"]:
        pytest.skip("this kernel has sch_netem")
    with pytest.raises(LabUnsupported, match="delay needs sch_netem"):
        lab.impair(None, delay_ns=5_000_000, loss=0.1)
    assert all(entry["impairment"]["loss"] == 0 for entry in lab.describe()["stations"])


def test_delay_by_netem(lab: ContainerLab) -> None:
    if not lab.describe()["netem"]:
        pytest.skip("this kernel has no sch_netem")
    with healed(lab), programs(lab, {"red": "preack"}) as members:
        lab.impair(None, delay_ns=20_000_000)
        started = time.monotonic()
        members[0].groups["red"].send(b"x")
        assert time.monotonic() - started > 0.02
        lab.impair(None, delay_ns=0)


def test_two_processes_share_what_was_set(lab: ContainerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    zenjun = [*ZENJUN, "lab"]
    with healed(lab):
        output_of(*zenjun, "loss", "--name", lab.name, "7%", "-s", "2")
        output_of(*zenjun, "cut", "--name", lab.name, "1", "3")
        described = lab.describe()
        assert described["stations"][1]["impairment"]["loss"] == pytest.approx(0.07)
        assert described["cuts"] == [(1, 3)]
        lab.impair([1], rate_bit=10_000_000)
        text = output_of(*zenjun, "status", "--name", lab.name)
        assert "rate 10mbit" in text and "loss 7%" in text and "cut: 1 → 3" in text
        output_of(*zenjun, "impair", "--name", lab.name, "--rate", "0")
        assert not status_rate(lab)


def status_rate(lab: ContainerLab) -> list[int]:
    return [entry["impairment"]["rate_bit"] for entry in lab.describe()["stations"] if entry["impairment"]["rate_bit"]]


def test_frames_are_recorded(lab: ContainerLab, tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    with lab.capture(folder) as files:
        flood(lab, 1, 50)
    for number in (2, 3):
        assert files[number].read_bytes().count(b"\x03\x5a\x4a\0\0\x09\x02\x5a\x4a\0\0\x77\x88\xb6") == 50, number


def test_the_bridge_of_another_network_namespace_is_refused_case_109(lab: ContainerLab) -> None:
    """As with an engine in a virtual machine: its interfaces are not here, and that is said."""
    argv = ["unshare", "-n", *ZENJUN, "lab", "loss", "--name", lab.name, "5%"]
    text = output_of(*argv, code=6)
    assert "is no interface of this network namespace" in text
    assert "virtual machine" in text


def test_jumbo_frames_and_options(make_lab: Callable[..., ContainerLab]) -> None:
    lab = make_lab(2, mtu=9000, options={"cluster": {"window_frames": 32}})
    assert lab.station(1).interface["mtu"] == 9000
    assert status(lab.station(1))["window"]["frames"] == 32
    all_talk(lab, "jumbo", 100)


def test_programs_run_in_the_network_of_a_container(lab: ContainerLab) -> None:
    done = lab.station(2).run([*ZENJUN, "status", "--json"], check=True)
    assert '"station": 2' in done.stdout or '"station":2' in done.stdout
    member = Program(lab.station(2), {"red": "preack"})
    member.close()
