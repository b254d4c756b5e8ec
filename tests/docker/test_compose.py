"""docker/compose.yml with both versions of compose: five stations and all that can run beside them."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from zenjun.tools.lab import compose, containers, files
from zenjun.tools.lab.containers import ContainerLab
from zenjun.tools.lab.docker_api import Engine

from ..e2e.cluster import core, exchange, plan, programs, reported, status, wait_for
from .conftest import CALM, TIMEOUT_S, open_cluster, output_of

pytestmark = [pytest.mark.docker, pytest.mark.timeout(TIMEOUT_S)]
FAIL_TIMEOUT = str(CALM["cluster"]["fail_timeout_ms"])
Make = Callable[..., compose.Project]


@pytest.fixture(params=["docker compose", "docker-compose"])
def project(request: pytest.FixtureRequest, images: Engine, name: str) -> Iterator[Make]:
    """Makes a project of one of the versions of compose; it is down after the test."""
    command = compose.commands().get(request.param)
    if command is None:
        pytest.skip(f"{request.param} is not installed")
    made: list[compose.Project] = []

    def make(**settings: str) -> compose.Project:
        made.append(
            compose.Project(images, name, command, **{"LAB_HOME": str(files.home()), "FAIL_TIMEOUT": FAIL_TIMEOUT, **settings})
        )
        return made[-1]

    yield make
    for each in made:
        each.down()
    # What the lab has noted about it; there is no container any more.
    containers.take_down(images, name, files.home() / name, grace_s=0.0)


@contextlib.contextmanager
def attached(engine: Engine, name: str) -> Iterator[ContainerLab]:
    lab = ContainerLab.attach(name, engine=engine)
    try:
        with reported(lab):
            yield lab
    finally:
        lab.close()


def talk_by_commands(lab: ContainerLab, count: int) -> None:
    """The image's own commands in every container: all send, all receive the same sequence."""
    received: dict[int, list[str]] = {}

    def receive(number: int) -> None:
        text = output_of(
            "docker", "exec", lab.desks[number].container,
            "zenjun", "recv", "-g", "words", "-F", "json", "-n", str(count * len(lab.stations)), "-t", "60",
            timeout_s=100,
        )  # fmt: skip
        received[number] = [f"{m['station']} {m['text']}" for m in map(json.loads, text.splitlines()) if m["type"] == "message"]

    def send(number: int) -> None:
        words = [f"{number}.{k}" for k in range(count)]
        output_of("docker", "exec", lab.desks[number].container, "zenjun", "send", "-g", "words", *words, timeout_s=100)

    def members() -> int:
        groups = {group["name"]: group for group in status(lab.station(1))["groups"]}
        return len(groups["words"]["members"]) if "words" in groups else 0

    receivers = [threading.Thread(target=receive, args=(number,), daemon=True) for number in lab.stations]
    for thread in receivers:
        thread.start()
    wait_for(lambda: members() == len(lab.stations), "all receivers are members", 60)
    senders = [threading.Thread(target=send, args=(number,), daemon=True) for number in lab.stations]
    for thread in senders:
        thread.start()
    for thread in senders + receivers:
        thread.join(110)
    assert received.keys() == lab.stations.keys()
    first = received[1]
    assert sorted(first) == sorted(f"{number} {number}.{k}" for number in lab.stations for k in range(count))
    assert all(sequence == first for sequence in received.values())


def test_five_stations_and_all_that_runs_beside_them(
    project: Make, images: Engine, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(COMPOSE_PROFILES="traffic,capture,faults", LOSS="10%", TRAFFIC_RATE="50")
    made.up()
    with attached(images, name) as lab:
        assert sorted(lab.stations) == [1, 2, 3, 4, 5]
        open_cluster(lab)
        for number, desk in lab.desks.items():
            wait_for(partial(lambda d: d.look()["Health"]["Status"] == "healthy", desk), f"station {number} is healthy", 90)
        talk_by_commands(lab, 20)
        # What .env asks for is done by the service, also on a cable that is new.
        wait_for(lambda: all(c["lost"] for c in lab.counters().values()), "every station loses frames", 20)
        made.run("restart", "station2")
        open_cluster(lab)
        before = lab.counters()[2]
        wait_for(lambda: lab.counters()[2]["lost"] > before["lost"] + 20, "the new cable loses frames too", 60)
        rng = random.Random(name)
        with programs(lab, {"red": "preack"}) as members:
            exchange(members, [plan(member, 200, rng) for member in members])
        # The traffic generator goes on by itself while members go and come.
        text = output_of(
            "docker", "exec", lab.desks[3].container, "zenjun", "recv", "-g", "traffic", "-n", "40", "-t", "60", timeout_s=90
        )
        assert re.fullmatch(r"(tick\n|tock\n){40}", text), text
        capture = next(c["Id"] for c in images.containers([f"com.docker.compose.project={name}"]) if "capture" in c["Names"][0])
        images.act(capture, "stop", t="30")
        assert images.inspect(capture)["State"]["ExitCode"] == 0
        said = json.loads(images.log(capture).splitlines()[-1])
        assert said["frames"] > 100 and said["dropped"] == 0
        output_of("docker", "cp", f"{capture}:/captures/station-1.pcapng", tmp_path / "frames.pcapng")
        assert (tmp_path / "frames.pcapng").read_bytes().count(b"\x88\xb5") >= said["frames"] // 2


def test_fewer_stations(project: Make, images: Engine, name: str) -> None:
    made = project(STATIONS="3")
    made.up()
    with attached(images, name) as lab:
        for number in (4, 5):
            wait_for(partial(lambda n: not lab.desks[n].look()["Running"], number), f"station {number} is not needed", 30)
            assert lab.desks[number].look()["ExitCode"] == 0
        lab.wait_open(60, ids=[1, 2, 3])
        assert status(lab.station(1))["stations"] == 3
        # A second down finds nothing and is no error.
        made.down()
        made.down()


def test_down_by_the_lab_as_well(project: Make, images: Engine, name: str) -> None:
    project().up("station1", "station2")
    assert containers.take_down(images, name, files.home() / name, grace_s=2.0)
    assert not containers.take_down(images, name, files.home() / name, grace_s=2.0)


def test_prometheus_reads_every_station(project: Make, images: Engine, name: str) -> None:
    """The whole way: daemon, Unix socket, relay, Prometheus; and a station that is not there is seen as down."""
    compose.build(images, "prometheus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = project(
        STATIONS="3",
        COMPOSE_PROFILES="prometheus,traffic",
        METRICS="/run/zenjun/metrics.sock",
        PROMETHEUS_PORT=str(port),
    )
    made.up()

    def query(expression: str) -> dict[str, float]:
        """The values that Prometheus has now, by station."""
        address = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            return {}
        return {sample["metric"]["instance"]: float(sample["value"][1]) for sample in found}

    with attached(images, name) as lab:
        lab.wait_open(60, ids=[1, 2, 3])
        up = {f"station {number}": float(number <= 3) for number in range(1, 6)}
        wait_for(lambda: query("up") == up, "three stations are up, two are down", 90)
        sent = "zenjun_core_messages_sent_total > 10"
        wait_for(lambda: list(query(sent)) == ["station 1"], "the messages of the traffic generator are counted", 60)
        counted = query("zenjun_core_messages_delivered_total")
        assert sorted(counted) == ["station 1", "station 2", "station 3"]
        assert counted["station 2"] <= core(lab.station(2))["messages_delivered"]
