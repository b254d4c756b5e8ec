"""docker compose, version 2 or docker-compose 1.29, on the compose file of the checkout."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from .docker_api import HOST_VARIABLE, Engine, NoEngine
from .errors import LabError, LabTimeout, LabUnsupported
from .own_engine import OwnEngine

FOLDER: Final = Path(__file__).resolve().parents[2] / "docker"
BUILD_S: Final = 1500.0
_UNSUPPORTED: Final = 6
"""Exit code of docker/build when this machine lacks something."""
_UP_S: Final = 120.0
_DOWN_S: Final = 120.0


def commands() -> dict[str, list[str]]:
    """What there is: the command lines of ``docker compose`` and ``docker-compose``, by their names."""
    found = {}
    for name in ("docker compose", "docker-compose"):
        words = name.split()
        if shutil.which(words[0]) is None:
            continue
        done = subprocess.run([*words, "version"], capture_output=True, check=False, timeout=30, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            found[name] = words
    return found


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """The engine that runs here, else one of our own for as long as the block runs. Raises LabUnsupported."""
    try:
        found = Engine.find()
    except NoEngine:
        if os.environ.get(HOST_VARIABLE):
            raise
        with OwnEngine() as own:
            yield own
        return
    yield found


class Project:
    """The stations of docker/compose.yml under a project name of their own."""

    def __init__(self, engine: Engine, name: str, command: Sequence[str] | None = None, **settings: str) -> None:
        """command: which compose. settings: variables of docker/.env. Raises LabUnsupported without compose or checkout."""
        if not (FOLDER / "compose.yml").exists():
            raise LabUnsupported("the compose file is in a checkout of zenjun only: there, tools/demo --docker runs it")
        if command is None:
            command = next(iter(commands().values()), None)
        if command is None:
            raise LabUnsupported("neither docker compose nor docker-compose is installed: install the package docker-compose")
        self.name = name
        self._command = [*command, "--project-name", name, "--file", str(FOLDER / "compose.yml")]
        socket = engine.host.removeprefix("unix://")
        self._environment: Mapping[str, str] = {
            **os.environ,
            HOST_VARIABLE: engine.host,
            "DOCKER_SOCKET": socket,
            "COMPOSE_PROJECT_NAME": name,
            **settings,
        }

    def run(self, *words: str, timeout_s: float = _UP_S) -> str:
        """One compose command to its end; returns what it printed. Raises LabError with its last line, LabTimeout."""
        return _run([*self._command, *words], self._environment, timeout_s)

    def up(self, *services: str) -> None:
        """Create and start services with all they need."""
        self.run("up", "--detach", *services)

    def down(self) -> None:
        """Remove everything of the project; nothing to remove is no error."""
        self.run("down", "--volumes", "--remove-orphans", timeout_s=_DOWN_S)


def build(engine: Engine, *targets: str) -> None:
    """Make the images of this checkout with docker/build; takes a minute the first time.

    Raises LabUnsupported when there is no client of Docker or no base image can be had, LabError.
    """
    if shutil.which("docker") is None:
        raise LabUnsupported("the client of Docker is not installed: install the package docker.io or docker-cli")
    _run([str(FOLDER / "build"), *targets], {**os.environ, HOST_VARIABLE: engine.host}, BUILD_S)


def _run(argv: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> str:
    # In a session of its own: Ctrl-C is for the caller, who takes down what was half made.
    process = subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise LabTimeout(f"{argv[0]} {argv[-1]} has not ended within {timeout_s:g} s") from None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
    if process.returncode != 0:
        lines = output.strip().splitlines()
        kind = LabUnsupported if process.returncode == _UNSUPPORTED else LabError
        raise kind(f"{Path(argv[0]).name} ended with exit code {process.returncode}: {' | '.join(lines[-3:])}")
    return output
