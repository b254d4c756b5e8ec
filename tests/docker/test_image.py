"""The image: rights, health, configuration from the environment, end in order; what people ask about containers."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from zenjun.tools.lab import LabNotFound
from zenjun.tools.lab.containers import ContainerLab
from zenjun.tools.lab.docker_api import Engine

from ..e2e.cluster import wait_for
from ..timing import in_time
from .conftest import PREFIX, TIMEOUT_S, output_of

pytestmark = [pytest.mark.docker, pytest.mark.timeout(TIMEOUT_S)]
CAP_NET_RAW = 1 << 13
Run = Callable[..., str]


@pytest.fixture
def run(images: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Starts a container of the image with these environment variables; it is removed after the test."""
    monkeypatch.setenv("DOCKER_HOST", images.host)
    made: list[str] = []
    word = f"{PREFIX}{uuid.uuid4().hex[:8]}"
    net = images.create_network(word, {}, 1500)

    def start(*command: str, network: str = net, caps: tuple[str, ...] = ("NET_RAW",), **environment: str) -> str:
        settings = {
            "Image": "zenjun:local",
            "Env": [f"{key}={value}" for key, value in environment.items()],
            "Cmd": list(command),
            "HostConfig": {"NetworkMode": network, "CapDrop": ["ALL"], "CapAdd": list(caps), "ReadonlyRootfs": True},
        }
        made.append(images.create(f"{word}-{len(made)}", settings))
        images.act(made[-1], "start")
        return made[-1]

    yield start
    for container in made:
        images.remove(container)
        with pytest.raises(LabNotFound):
            images.inspect(container)
    images.remove_network(net)


def inside(container: str, *command: str, code: int = 0) -> str:
    return output_of("docker", "exec", container, *command, code=code)


def ended(engine: Engine, container: str) -> int:
    """Its exit code, waited for."""
    wait_for(lambda: not engine.inspect(container)["State"]["Running"], "the container ends", 30)
    return int(engine.inspect(container)["State"]["ExitCode"])


def serving(engine: Engine, container: str) -> None:
    wait_for(lambda: b"interface up" in engine.log(container), "the daemon has started", 60)


def test_rights_of_the_daemon_and_of_nobody_else_case_99(images: Engine, run: Run) -> None:
    container = run(STATION="1", STATIONS="1")
    serving(images, container)
    lines = dict(line.split(":\t", 1) for line in inside(container, "cat", "/proc/1/status").splitlines())
    assert lines["Uid"].split() == ["900"] * 4
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert int(lines[name], 16) == CAP_NET_RAW, name
    for name in ("CapInh", "CapAmb"):
        assert int(lines[name], 16) == 0, name
    assert lines["NoNewPrivs"] == "1"
    socket = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)"
    assert "not permitted" in inside(container, "python3", "-c", socket, code=1)
    inside(container, "/opt/zenjun/bin/zenjund-python", "-c", socket)


def test_healthy_while_the_daemon_answers(images: Engine, run: Run) -> None:
    container = run(STATION="1", STATIONS="1")

    def health() -> str:
        return str(images.inspect(container)["State"]["Health"]["Status"])

    wait_for(lambda: health() == "healthy", "healthy", 60)

    def status() -> tuple[int, int, str]:
        said = json.loads(inside(container, "zenjun", "status", "--json"))
        return (said["station"], said["stations"], said["state"])

    wait_for(lambda: status() == (1, 1, "open"), "it answers, and is open soon", 30)
    # A process that is stopped answers nobody; three failures at five seconds' distance, each after a wait of three.
    images.act(container, "kill", signal="SIGSTOP")
    wait_for(lambda: health() == "unhealthy", "unhealthy", 90)
    images.act(container, "kill", signal="SIGCONT")
    wait_for(lambda: health() == "healthy", "healthy again", 60)


def test_stops_in_order_case_117(images: Engine, run: Run) -> None:
    container = run(STATION="1", STATIONS="1")
    serving(images, container)
    started = time.monotonic()
    images.act(container, "stop", t="20")
    in_time(time.monotonic() - started < 15, "stopped")
    assert ended(images, container) == 0
    assert b"stopped" in images.log(container)


def test_a_station_too_many_is_no_error(images: Engine, run: Run) -> None:
    container = run(STATION="4", STATIONS="3")
    assert ended(images, container) == 0
    assert b"station 4 is not needed: the cluster has 3" in images.log(container)


def test_what_is_missing_is_named(images: Engine, run: Run) -> None:
    container = run(STATIONS="3")
    assert ended(images, container) == 2
    assert b"STATION: the number of this station" in images.log(container)


def test_a_wrong_configuration_is_exit_code_3(images: Engine, run: Run) -> None:
    container = run(ZENJUND_TOML="[cluster]\nname = 1\n")
    assert ended(images, container) == 3
    assert b"zenjund.toml" in images.log(container)


def test_more_lines_of_configuration(images: Engine, run: Run) -> None:
    container = run(STATION="1", STATIONS="1", ZENJUND_MORE="[clients]\nmax = 3\n")
    serving(images, container)
    assert "max = 3" in inside(container, "cat", "/run/zenjun/zenjund.toml")
    inside(container, "zenjun", "config", "check", "/run/zenjun/zenjund.toml")


def test_without_the_right_it_does_not_start(images: Engine, run: Run) -> None:
    """The file's capability cannot be given: the kernel refuses to run it at all, before any of our code."""
    container = run(STATION="1", STATIONS="1", caps=())
    assert ended(images, container) != 0
    assert b"not permitted" in images.log(container)


def test_alone_in_its_network_it_says_so_case_111(images: Engine, run: Run) -> None:
    container = run(STATION="1", STATIONS="2")
    wait_for(lambda: b"nobody seen" in images.log(container), "the hint that nobody is there", 60)


def test_all_containers_hear_the_default_group_address_case_107(make_lab: Callable[..., ContainerLab]) -> None:
    lab = make_lab(5)
    for station in lab.stations.values():
        wait_for(
            lambda s=station: [peer["state"] for peer in s.status(5.0)["peers"]].count("up") == 4,  # type: ignore[misc]
            "it hears all others",
            30,
        )
