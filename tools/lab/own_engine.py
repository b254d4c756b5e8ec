"""A Docker Engine of one's own, and the removal of what killed ones have left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from . import namespaces
from .docker_api import Engine
from .errors import LabError, LabUnsupported

_START_S: Final = 60.0
_STOP_S: Final = 40.0
_REMOVE_S: Final = 300.0
_HOME: Final = "/var/lib"
"""Not /tmp: layers of images cannot lie on a file system that is an overlay or in memory."""
_PREFIX: Final = "zenjun-engine-"


class OwnEngine:
    """A Docker Engine of one's own, for a machine where none runs: its files in one folder, removed at the end.

    It makes no rule in the machine's firewall and no network but those asked for. It ends with this process: in order also
    when this process is killed, since the kernel then sends it SIGTERM, on which it stops its containers.
    """

    def __init__(self) -> None:
        """Nothing is started yet. Raises LabUnsupported when dockerd is not installed or the caller is not root."""
        program = shutil.which("dockerd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
        if program is None:
            raise LabUnsupported("Docker Engine is not installed: install the package docker.io")
        if os.geteuid() != 0:
            raise LabUnsupported("starting a Docker Engine needs root")
        self._program = program
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = -1

    def __enter__(self) -> Engine:
        try:
            return self._start()
        except BaseException:
            self._stop()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _start(self) -> Engine:
        _sweep()
        self._folder = folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_HOME))
        # Held by the engine and all that it starts, too: only when the last of them has ended may the folder be swept away.
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        argv = [self._program, "--host", f"unix://{folder}/docker.sock", "--data-root", f"{folder}/data"]
        argv += ["--exec-root", f"{folder}/run", "--pidfile", f"{folder}/pid", "--group", str(os.getegid())]
        argv += ["--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--log-level", "warn"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C at the terminal is for the caller to handle
                pass_fds=(self._lock,),
                preexec_fn=_end_with_parent,
            )
        engine = Engine(f"unix://{folder}/docker.sock")
        end = time.monotonic() + _START_S
        while True:
            if (code := self._process.poll()) is not None:
                raise LabUnsupported(f"Docker Engine does not start here (exit code {code}): {_last_error(folder / 'log')}")
            try:
                engine.call("GET", "/_ping", timeout_s=5.0)
                return engine
            except LabError as error:
                if time.monotonic() > end:
                    raise LabUnsupported(f"Docker Engine does not answer within {_START_S:g} s: {error}") from error
            time.sleep(0.05)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._folder is not None:
            _remove_tree(self._folder)
            self._folder = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _end_with_parent() -> None:
    namespaces.die_with_parent(signal.SIGTERM)


def _last_error(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it wrote nothing"


def _sweep() -> None:
    """Remove what engines of killed owners have left, when no process of them runs."""
    for folder in Path(_HOME).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_tree(folder)
            finally:
                os.close(fd)


def _remove_tree(folder: Path) -> None:
    # Mounts that a killed engine has left keep their folders busy; the deepest go first.
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True, timeout=10)
    # Images are a hundred thousand files: rm is several times faster at them than shutil.rmtree. The lock goes last: who is
    # interrupted here leaves what the next sweep finds.
    parts = [str(part) for part in folder.iterdir() if part.name != "lock"] if folder.is_dir() else []
    subprocess.run(["rm", "-rf", "--one-file-system", "--", *parts], capture_output=True, timeout=_REMOVE_S, check=False)
    shutil.rmtree(folder, ignore_errors=True)
