"""A program under the User-Mode Linux kernel: where the machine's own kernel lacks something, as sch_netem.

The kernel of Debian's package user-mode-linux runs as an ordinary process, needs no rights, and sees the files of this machine
read-only. Inside, /run, /tmp and /dev/shm are empty and in memory (Unix sockets do not work on the machine's files), the
program is root, and the modules that a lab needs are loaded. Its output and its exit code come out; with the deadline, with
Ctrl-C and with the end of the caller everything ends, and nothing is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from . import files
from .errors import LabError, LabTimeout, LabUnsupported

DEADLINE_S: Final = 270.0
MEMORY_MIB: Final = 1024
MODULES: Final = (
    *("llc", "stp", "crc-ccitt", "ipv6", "bridge", "veth", "sch_netem", "sch_tbf"),
    *("nfnetlink", "nf_tables", "nft_numgen", "nft_objref"),
    "bonding",
)
"""Modules of a lab, in the order in which they go in; one that the kernel has built in is not looked for."""
MODULES_ROOT: Final = Path("/usr/lib/uml/modules")
INSIDE: Final = "ZENJUN_UML"
"""Set to 1 in the environment of the program."""
_INSMOD_PATH: Final = "/usr/sbin:/sbin:/usr/bin:/bin"
_GRACE_S: Final = 3.0
_KILLED_S: Final = 60.0
"""What has been killed is gone at once, but on a machine with much else to do."""
_FOLDER: Final = "zenjun-uml-"
_LOCK: Final = "lock"
_OLD_S: Final = 10.0
"""A folder younger than this may not have its lock yet."""
_PR_SET_PDEATHSIG: Final = 1
_BEGIN: Final = b"---- zenjun uml: begin ----"
_END: Final = b"---- zenjun uml: end "
_OWN_MEMORY: Final = ("/tmp", "/run", "/dev/shm")
_LEFT_OUT: Final = frozenset({"ZENJUN_LAB_HOME", "ZENJUN_SOCKET", "XDG_RUNTIME_DIR", "TMPDIR", "DOCKER_HOST", "TERM"})
_INIT: Final = """#!/bin/sh
# The first process under the User-Mode Linux kernel; when it ends, the kernel does.
export PATH={path}
set -e
mount -t proc proc /proc
mount -t sysfs sys /sys
ln -sfn /proc/self/fd /dev/fd
for folder in {memory}; do
    mkdir -p "$folder"
    mount -t tmpfs -o mode=1777 tmp "$folder"
done
# Folders of the machine below those, and then those that may be written.
for folder in {hidden}; do
    mkdir -p "$folder"
    mount -r -t hostfs -o "$folder" host "$folder"
done
for folder in {shared}; do
    mkdir -p "$folder"
    mount -t hostfs -o "$folder" host "$folder"
done
mkdir /run/zenjun-uml
mount -t hostfs -o {exchange} host /run/zenjun-uml
version=$(uname -r)
for module in {modules}; do
    file=$(find "{modules_root}/$version" -name "$module.ko*" | head -n 1)
    if [ -n "$file" ]; then insmod "$file"; fi
done
set +e
# Through a pipe: the console is a terminal, on which programs write colours.
mkfifo /run/zenjun-uml.out
cat /run/zenjun-uml.out &
exec 3>/run/zenjun-uml.out
echo '{begin}' >&3
(. /run/zenjun-uml/environment; cd {folder} && exec {command}) </dev/null >&3 2>&1 3>&-
code=$?
sync
echo '{end}'$code >&3
while :; do sleep 100; done
"""


def find() -> Path:
    """The kernel. Raises LabUnsupported, naming the package, when it or what it needs is not installed."""
    program = shutil.which("linux.uml") or shutil.which("linux.uml", path="/usr/bin")
    if program is None:
        raise LabUnsupported("User-Mode Linux is not installed: install the package user-mode-linux")
    if shutil.which("insmod", path=_INSMOD_PATH) is None:
        raise LabUnsupported("loading the kernel's modules needs insmod: install the package kmod")
    return Path(program)


def _environment() -> str:
    """The caller's environment as a shell script."""
    kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT and name.isidentifier()}
    kept |= {INSIDE: "1", "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": kept.get("COLUMNS", "130")}
    kept["PATH"] = f"{kept.get('PATH', os.defpath)}:{Path(sys.executable).parent}:{_INSMOD_PATH}"
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in kept.items())


def _init(command: Sequence[str], folder: Path, exchange: Path, write: Sequence[Path]) -> str:
    seen = [folder, *(Path(p) for p in {sys.prefix, sys.base_prefix}), Path(__file__).resolve().parents[2]]
    hidden = [path for path in seen if any(path.is_relative_to(own) for own in _OWN_MEMORY)]

    def words(paths: Iterable[Path]) -> str:
        return " ".join(shlex.quote(str(path)) for path in dict.fromkeys(path.absolute() for path in paths))

    return _INIT.format(
        path=_INSMOD_PATH,
        memory=" ".join(_OWN_MEMORY),
        hidden=words(path for path in sorted(hidden) if path not in write),
        shared=words(write),
        exchange=shlex.quote(str(exchange)),
        modules=" ".join(MODULES),
        modules_root=MODULES_ROOT,
        begin=_BEGIN.decode(),
        end=_END.decode(),
        folder=shlex.quote(str(folder)),
        command=shlex.join(command),
    )


def _memory_folder(memory_mib: int) -> str:
    """Where the kernel's memory, a file without a name, has room."""
    for folder in ("/dev/shm", tempfile.gettempdir(), "/var/tmp"):
        try:
            room = os.statvfs(folder)
        except OSError:
            continue
        if room.f_bavail * room.f_frsize >= memory_mib << 20:
            return folder
    raise LabUnsupported(f"neither /dev/shm nor {tempfile.gettempdir()} has {memory_mib} MiB of room for the kernel's memory")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def _exchange() -> Iterator[Path]:
    """A folder for the files of one run; those of runs whose caller was killed are removed, too."""
    for old in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError):
            lock_stat = (old / _LOCK).stat()
            if lock_stat.st_uid == os.getuid() and time.time() - lock_stat.st_mtime > _OLD_S and not files.in_use(old):
                shutil.rmtree(old)
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as name:
        lock = os.open(Path(name) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(lock)


def _lines(process: subprocess.Popen[bytes], end: float) -> Iterator[bytes]:
    """Lines of the console until it is closed. Raises LabTimeout."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, end - time.monotonic())):
                raise LabTimeout("the deadline is over")
            if not (data := os.read(descriptor, 65536)):
                break
            *lines, pending = (pending + data).split(b"\n")
            yield from (line.rstrip(b"\r") for line in lines)
    if pending:
        yield pending.rstrip(b"\r")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the kernel with all its processes, which are its process group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    # What runs inside are processes of this machine, too; the kernel ends them unless it was killed itself.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_KILLED_S)


def run(
    command: Sequence[str],
    *,
    deadline_s: float = DEADLINE_S,
    memory_mib: int = MEMORY_MIB,
    write: Sequence[Path] = (),
    say: Callable[[bytes], None] | None = None,
) -> int:
    """Run a command under the User-Mode Linux kernel, in the current folder; returns its exit code.

    deadline_s: for all of it, with the start. memory_mib: of the kernel. write: folders of this machine that the command may
    change; all others are read-only. say: gets each line of output (default: standard output).

    Raises LabUnsupported when the kernel is not installed, LabTimeout when the deadline is over, LabError with what the
    kernel said when it did not get as far as the end of the command.
    """
    kernel = find()
    say = say or _say
    end = time.monotonic() + deadline_s
    with _exchange() as exchange:
        (exchange / "environment").write_text(_environment())
        init = exchange / "init"
        init.write_text(_init(command, Path.cwd(), exchange, [path.absolute() for path in write]))
        init.chmod(0o700)
        arguments = [f"mem={memory_mib}M", "rootfstype=hostfs", "ro", f"init={init}", "quiet", "loglevel=3", "panic=-1"]
        arguments += [f"uml_dir={exchange}", "umid=kernel", "con=null", "con0=null,fd:1"]
        process = subprocess.Popen(
            [str(kernel), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": os.defpath, "HOME": str(exchange), "TMPDIR": _memory_folder(memory_mib)},
            start_new_session=True,  # Ctrl-C at the terminal is for this process to handle
            preexec_fn=_die_with_parent,
        )
        try:
            return _follow(_lines(process, end), say)
        except LabTimeout:
            raise LabTimeout(f"not at its end after {deadline_s:g} s under User-Mode Linux: {shlex.join(command)}") from None
        finally:
            _end(process)


def _follow(lines: Iterator[bytes], say: Callable[[bytes], None]) -> int:
    """Hand on what the program writes until it has ended; its exit code."""
    said: list[bytes] = []
    for line in lines:
        if line == _BEGIN:
            break
        said.append(line)
    for line in lines:
        text, end, code = line.rpartition(_END)
        if end and code.isdigit():
            if text:
                say(text)
            return int(code)
        say(line)
    words = b"\n".join(line for line in said if not line.startswith(b" [<"))[-3000:].decode(errors="replace")
    raise LabError(f"the User-Mode Linux kernel ended before the program did; at its start it said:\n{words}")


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
