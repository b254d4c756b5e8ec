"""``zenjun lab run`` on containers: its own, and those of a lab that is up and stays."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from zenjun.tools.lab import container_names
from zenjun.tools.lab.containers import ContainerLab
from zenjun.tools.lab.docker_api import Engine

from .conftest import TIMEOUT_S, ZENJUN, open_cluster, output_of, take_interrupts

pytestmark = [pytest.mark.docker, pytest.mark.timeout(TIMEOUT_S)]

MIXED = """
about = "loss, a partition and a killed container"
stations = 3
end = "14s"

[options.cluster]
fail_timeout_ms = 1500

[[at]]
t = "1s"
do = "loss"
share = "5%"
for = "2s"

[[at]]
t = "3s"
do = "partition"
groups = [[3]]
for = "3s"

[[at]]
t = "8s"
do = "kill"
stations = 2
for = "4s"

[expect]
changes = { min = 3 }
lost = { min = 1 }
cut = { min = 1 }
"""
FREEZE = """
about = "a container is frozen and thawed"
stations = 3

[[at]]
t = "1s"
do = "pause"
stations = 2
for = "4s"

[expect]
changes = { min = 1 }
"""


def labs_of(engine: Engine, process: int) -> list[str]:
    """Labs that a command has made for itself."""
    return [name for name in container_names.names(engine) if name.startswith(f"p{process}-")]


def test_a_scenario_makes_its_own_containers(images: Engine, name: str, tmp_path: Path) -> None:
    file = tmp_path / "mixed.toml"
    file.write_text(MIXED)
    out = tmp_path / "out"
    with subprocess.Popen(
        [*ZENJUN, "lab", "run", str(file), "--docker", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        text = process.communicate(timeout=180)[0]
    assert process.returncode == 0 and "mixed: all " in text and "containers" in text, text
    assert (out / "zenjund-2.log").read_bytes() and (out / "report.txt").exists()
    assert not labs_of(images, process.pid), "its containers are gone"


def test_every_word_of_the_time_line_on_containers(images: Engine, name: str, tmp_path: Path) -> None:
    file = tmp_path / "every.toml"
    file.write_text((Path(__file__).parents[1] / "lab" / "every.toml").read_text().replace("= 1000", "= 1500"))
    text = output_of(*ZENJUN, "lab", "run", file, "--docker", "--out", tmp_path / "out", timeout_s=180)
    assert "every: all " in text, text


def test_a_scenario_in_a_lab_that_stays(make_lab: Callable[..., ContainerLab], name: str, tmp_path: Path) -> None:
    lab = make_lab(3)
    file = tmp_path / "freeze.toml"
    file.write_text(FREEZE)
    text = output_of(*ZENJUN, "lab", "run", file, "--name", name, timeout_s=180)
    assert "freeze: all " in text and f"lab {name}" in text, text
    assert open_cluster(lab) > 1


def test_interrupted_it_takes_its_containers_down(images: Engine, name: str, tmp_path: Path) -> None:
    file = tmp_path / "mixed.toml"
    file.write_text(MIXED)
    with subprocess.Popen(
        [*ZENJUN, "lab", "run", str(file), "--docker"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=take_interrupts,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "loss 5%" in line:
                break
        assert labs_of(images, process.pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    end = time.monotonic() + 10
    while (left := labs_of(images, process.pid)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left
