"""An engine and the images for the tests of containers; whatever a test makes carries its own name and is gone afterwards."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from zenjun.tools.lab import LabError, LabUnsupported, compose, container_names, containers, files
from zenjun.tools.lab.containers import ContainerLab
from zenjun.tools.lab.docker_api import Engine

from ..conftest import NO_DOCKER
from ..e2e import cluster

PREFIX = f"zjt-{uuid.uuid4().hex[:6]}-"
"""Of this run's labs and networks: what others have made in the same engine is theirs."""
ZENJUN = (sys.executable, "-c", "from zenjun.tools.command import main; main()")
"""The command line of ``zenjun``."""
PLUGINS = Path(__file__).resolve().parents[2] / ".venv" / "docker"
"""Where tools/bootstrap.sh puts docker compose 2 when the machine has none."""
TIMEOUT_S = 1200
"""Of every test: the first one of a session makes the base and the images, which is minutes. The waits inside have their own."""
CALM = {"cluster": {"fail_timeout_ms": 1500}}
"""Options of stations whose tests are not about time: a busy machine keeps them from running for a while."""


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The engine that runs here, else one for the time of the tests."""
    with contextlib.ExitStack() as stack:
        if PLUGINS.exists():
            stack.enter_context(pytest.MonkeyPatch.context()).setenv("DOCKER_CONFIG", str(PLUGINS))
        try:
            found = stack.enter_context(compose.engine())
        except LabUnsupported as error:
            pytest.skip(f"{NO_DOCKER}: {error}")
        yield found
        left = [name for name in container_names.names(found) if name.startswith(PREFIX)]
        for name in left:
            containers.take_down(found, name, files.home() / name, grace_s=0.0)
        assert not left, f"the tests have left {left}"


@pytest.fixture(scope="session")
def images(engine: Engine) -> Engine:
    """The engine, with images of this checkout in it."""
    try:
        compose.build(engine, "station", "lab")
    except LabUnsupported as error:
        pytest.skip(f"{NO_DOCKER}: {error}")
    return engine


@pytest.fixture
def name(engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A name for a lab or a project, of which nothing may be left when the test has ended; commands find the engine."""
    word = f"{PREFIX}{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    monkeypatch.setenv("ZENJUN_LAB_HOME", str(tmp_path_factory.mktemp("labs")))
    monkeypatch.delenv("ZENJUN_LAB", raising=False)
    yield word
    left = leftovers(engine, word)
    containers.take_down(engine, word, files.home() / word, grace_s=0.0)
    assert not left, left


def leftovers(engine: Engine, name: str) -> list[str]:
    """What there still is of a lab or project: containers, networks, volumes, rules, files."""
    found = []
    for label in (container_names.LAB_LABEL, container_names.COMPOSE_LABEL):
        found += [f"container {c['Names']}" for c in engine.containers([f"{label}={name}"])]
        found += [f"network {net['Name']}" for net in engine.networks(f"{label}={name}")]
        volumes = engine.call("GET", "/volumes", query={"filters": {"label": [f"{label}={name}"]}})["Volumes"]
        found += [f"volume {volume['Name']}" for volume in volumes or []]
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True, timeout=10).stdout
    found += [line for line in tables.splitlines() if line.endswith(container_names.table_name(name))]
    folder = files.home() / name
    return found + ([f"folder {folder}"] if folder.exists() else [])


@pytest.fixture
def make_lab(images: Engine, name: str) -> Iterator[Callable[..., ContainerLab]]:
    """Makes a lab of containers whose cluster is open; it goes down after the test."""
    with contextlib.ExitStack() as stack:

        def make(stations: int, **settings: Any) -> ContainerLab:
            options = settings.pop("options", {})
            settings["options"] = {**CALM, **{name: {**CALM.get(name, {}), **table} for name, table in options.items()}}
            lab = stack.enter_context(ContainerLab(stations, name=name, engine=images, **settings))
            stack.enter_context(cluster.reported(lab))
            lab.start_daemons()
            lab.wait_open(60)
            return lab

        yield make


@pytest.fixture(scope="module")
def lab(images: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerLab]:
    """Three containers in one cluster, for tests that leave it as they found it: open, without faults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZENJUN_LAB_HOME", str(tmp_path_factory.mktemp("labs")))
        patch.setenv("DOCKER_HOST", images.host)
        word = f"{PREFIX}{uuid.uuid4().hex[:8]}"
        with ContainerLab(3, name=word, engine=images, options=CALM) as made, cluster.reported(made):
            made.start_daemons()
            made.wait_open(60)
            yield made
        left = leftovers(images, word)
        assert not left, left


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what every station says to the report of a failure."""
    report = yield
    if report.failed and call.when == "call" and (text := cluster.describe_live()):
        report.sections.append(("stations", text))
    return report


def output_of(*argv: str | Path, timeout_s: float = 60.0, code: int = 0) -> str:
    """What a command prints, both its outputs; the test fails unless it ends with this exit code."""
    done = subprocess.run(
        [str(word) for word in argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == code, f"{argv}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def take_interrupts() -> None:
    """For ``preexec_fn``: Ctrl-C counts, also when the tests run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def open_cluster(lab: ContainerLab, timeout_s: float = 60.0) -> int:
    """Wait until all stations are in one open instance; its number. Raises LabError."""
    instance = lab.wait_open(timeout_s)
    cluster.wait_for(
        lambda: all(cluster.status(s)["state"] == "open" for s in lab.stations.values()),
        "all stations say that they are open",
        30,
    )
    return instance


__all__ = ["CALM", "TIMEOUT_S", "ZENJUN", "LabError", "leftovers", "open_cluster", "output_of", "take_interrupts"]
