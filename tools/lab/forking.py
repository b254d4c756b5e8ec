"""Daemons of a lab as forks of its holder, which has loaded their modules once for all of them.

An interpreter takes several tenths of a second of processor time to import all that a daemon needs, a fork next to nothing.
Whoever makes hundreds of labs one after the other, as the tests do, sets ``ZENJUN_LAB_FORK=1``. Such a daemon is the same program
in a process of its own, but for three things: its command line is the holder's, the stations of a lab hash strings alike, and
it has the holder's modules loaded as well. By default every daemon is a program that is started anew.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Final, NoReturn

from . import namespaces

VARIABLE: Final = "ZENJUN_LAB_FORK"
MODULES: Final = ("zenjun.daemon", "zenjun.daemon.directory", "zenjun.daemon.database")
"""What can be started so: packages with a ``__main__`` that has ``main()``."""
AT_START: Final = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OPENSSL", "ASAN_", "LC_", "LANG")
"""How variables begin that count when an interpreter or a library is loaded, not later."""


def is_wanted() -> bool:
    """By the environment."""
    return os.environ.get(VARIABLE) == "1"


def load() -> None:
    """What daemons import, into this process, whose forks start them."""
    import_module(f"{MODULES[0]}.__main__")
    gc.collect()
    gc.freeze()  # a fork that collects garbage would write to, and so copy, all of it


def can_start(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a fork of this process comes to the same as the program *argv* under *env*."""
    loaded = f"{MODULES[0]}.__main__" in sys.modules
    if not loaded or len(argv) < 3 or argv[0] != sys.executable or argv[1] != "-m" or argv[2] not in MODULES:
        return False
    return _at_start(env) == _at_start(os.environ)


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(AT_START)}


class Forked:
    """A fork that runs such a program; the part of ``subprocess.Popen`` that an agent needs."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, log: IO[bytes]) -> None:
        """argv: as ``can_start`` accepts it. log: takes what it says. Raises OSError."""
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(argv[2], list(argv[3:]), env, cwd, log.fileno())

    def poll(self) -> int | None:
        """The exit code (negative: the signal that killed it), or None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _become(module: str, arguments: list[str], env: Mapping[str, str], cwd: str, log: int) -> NoReturn:
    """In the fork: what a process begins with, and the program. The frames below stay: what they hold keeps the numbers of its
    descriptors, which are closed, and must not be collected while others have them."""
    code = 1
    try:
        os.setsid()
        namespaces.die_with_parent()
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        os.closerange(3, max(int(entry.name) for entry in Path("/proc/self/fd").iterdir()) + 1)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        program = import_module(f"{module}.__main__")
        sys.argv = [str(program.__file__), *arguments]
        code = _run(program.main)
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def _run(main: Callable[[], object]) -> int:
    """The exit code, as the interpreter makes it of what ``sys.exit`` is given."""
    try:
        result = main()
    except SystemExit as end:
        result = end.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        result = 1  # not reached
    if result is None or isinstance(result, int):
        return result or 0
    print(result, file=sys.stderr)
    return 1


def _leave(code: int) -> NoReturn:
    """As at the end of an interpreter: threads end, then what was registered for the end is done."""
    try:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)
