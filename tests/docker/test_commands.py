"""zenjun lab and zenjun demo with containers, as people call them; ends by Ctrl-C and SIGKILL; an engine of one's own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from zenjun.tools.lab import container_names, files
from zenjun.tools.lab.docker_api import Engine

from ..e2e.cluster import wait_for
from .conftest import CALM, TIMEOUT_S, ZENJUN, leftovers, output_of, take_interrupts

pytestmark = [pytest.mark.docker, pytest.mark.timeout(TIMEOUT_S)]

CALM_WORDS = ("-o", f"cluster.fail_timeout_ms={CALM['cluster']['fail_timeout_ms']}")


def lab(*words: str, code: int = 0, timeout_s: float = 90.0) -> str:
    return output_of(*ZENJUN, "lab", *words, code=code, timeout_s=timeout_s)


def test_the_whole_life_of_a_lab(images: Engine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZENJUN_LAB", name)
    assert "3 stations up" in lab("up", "--docker", "-n", "3", "--loss", "5%", *CALM_WORDS, "-o", "cluster.window_frames=32")
    assert "up already" in lab("up", "--docker", code=1)
    said = json.loads(lab("status", "--json"))
    assert [entry["impairment"]["loss"] for entry in said["stations"]] == [0.05] * 3

    def opened() -> set[str]:
        return {entry["open"] for entry in json.loads(lab("status", "--json"))["stations"]}

    wait_for(lambda: len(opened()) == 1 and all(re.fullmatch(r"open \(\d+\)", o) for o in opened()), "one open instance", 60)
    assert f"{name} 3 containers up" in " ".join(lab("list").split())
    lab("exec", "-s", "1", "--", *ZENJUN, "send", "hello")
    lab("pause", "-s", "2")
    wait_for(lambda: "no answer" in lab("status"), "it is seen that one is paused", 30)
    lab("resume", "-s", "2")
    lab("kill", "-s", "3")
    wait_for(lambda: "ended: -9" in lab("status"), "the daemon's end is shown", 30)
    assert "station 3" in lab("log", "-s", "3")
    assert "instance" in lab("start", "-s", "3", "--wait")
    assert "instance" in lab("restart", "-s", "1", "--wait")
    lab("link", "-s", "2", "down")
    assert "eth0 down" in lab("status")
    lab("link", "-s", "2", "up")
    assert "leave out --background" in lab("capture", "--background", code=6)
    assert f"lab {name}: down" in lab("down")
    assert f"lab {name}: is not up" in lab("down")
    assert not leftovers(images, name)
    assert "there is no lab" in lab("status", code=3)


def test_no_such_image(images: Engine, name: str) -> None:
    text = lab("up", "--docker", "--name", name, "--image", "zenjun:none", code=6)
    assert "docker/build makes it" in text


def test_no_engine(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "no Docker Engine answers" in lab("up", "--docker", "--name", name, code=6)
    assert "there is no lab" in lab("status", "--name", name, code=3)
    assert "is not up" in lab("down", "--name", name)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert "on this machine" in lab("up", "--docker", "--name", name, code=6)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_while_it_comes_up_case_115(images: Engine, name: str, number: signal.Signals) -> None:
    """Ctrl-C leaves nothing. SIGKILL leaves what the next down finds by its label."""
    process = subprocess.Popen(
        [*ZENJUN, "lab", "up", "--docker", "-n", "4", "--name", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=take_interrupts,
    )
    wait_for(lambda: container_names.find(images, name), "the first container", 60)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    if number == signal.SIGINT:
        assert process.returncode == 130, output
        assert not leftovers(images, name)
        return
    assert leftovers(images, name)
    assert f"lab {name}: down" in lab("down", "--name", name)
    # A container that the engine was making for the dead process may come a moment later: then down is said once more.
    wait_for(lambda: f"lab {name}: is not up" in lab("down", "--name", name), "nothing is left", 30)


def test_all_labs_are_found_when_their_files_are_gone(images: Engine, name: str) -> None:
    lab("up", "--docker", "-n", "1", "--name", name)
    for file in (files.home() / name).glob("*.json"):
        file.unlink()
    assert f"lab {name}: down" in lab("down", "--all")


def test_the_demonstration(images: Engine, name: str) -> None:
    text = output_of(*ZENJUN, "demo", "--docker", "-n", "3", "--messages", "2000", timeout_s=400)
    assert text.count("identical at all stations") == 4
    assert "Killing the container of station 3" in text
    assert re.search(r"After \d+\.\d s the others continue without it: instance \d+ of stations 1, 2\.", text)
    assert re.search(r"It has been admitted again after \d+\.\d s: instance \d+ of stations 1, 2, 3\.", text)
    assert "losses noticed" in text
    assert not leftovers(images, "zenjun-demo")


def test_the_demonstration_interrupted(images: Engine, name: str) -> None:
    argv = [*ZENJUN, "demo", "--docker", "-n", "3"]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=take_interrupts
    )
    wait_for(lambda: len(container_names.find(images, "zenjun-demo")) == 3, "the containers", 300)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert not leftovers(images, "zenjun-demo")


def test_an_engine_of_ones_own_ends_with_its_owner(name: str) -> None:
    """Also by SIGKILL; the next one sweeps away what was left."""
    program = (
        "from zenjun.tools.lab.own_engine import OwnEngine\n"
        "import sys\n"
        "with OwnEngine() as engine:\n"
        "    print(engine.host, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    folders = []
    for number in (signal.SIGKILL, signal.SIGINT):
        owner = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=take_interrupts,
        )
        assert owner.stdout is not None and owner.stdin is not None
        host = owner.stdout.readline().strip()
        folder = Path(host.removeprefix("unix://")).parent
        folders.append(folder)
        engine = Engine(host)
        assert engine.containers([]) == []
        pid = int((folder / "pid").read_text())
        owner.send_signal(number)
        owner.communicate(timeout=120)
        wait_for(partial(lambda p: not Path(f"/proc/{p}").exists(), pid), "the engine has ended", 60)
        assert not [f for f in folders if f.exists()] or number == signal.SIGKILL
    assert not any(folder.exists() for folder in folders), "the second has swept away the first one's files"
