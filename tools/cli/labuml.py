"""``zenjun lab uml``: a program under a kernel that has sch_netem (docs/lab.md)."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from .impairments import TIME


@click.command("uml", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--deadline", "deadline_ns", type=TIME, default="270s", show_default=True, help="End everything after this time.")
@click.option("--memory", type=click.IntRange(128, 16384), default=1024, show_default=True, help="Of the kernel, MiB.")
@click.option(
    "--write",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder that the program may change; all others are read-only. Repeatable.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def uml(deadline_ns: int, memory: int, write: tuple[Path, ...], command: tuple[str, ...]) -> int:
    """Run a program under the User-Mode Linux kernel, which has sch_netem, with the files of this machine.

    Needs the Debian packages user-mode-linux and kmod, no rights, and some seconds to start. Inside the program is root, in the
    same folder and environment; /tmp and /run are empty and in memory. One processor, slow system calls: for behaviour, not for
    speed.

    \b
    Examples:
      zenjun lab uml -- python -m pytest tests/netem
      zenjun lab uml -- sh -c 'zenjun lab up --delay 25ms -o cluster.fail_timeout_ms=4000 && zenjun lab status'
      zenjun lab uml --write out -- sh -c 'tc qdisc help 2>out/help'

    \b
    Exit codes: the program's own; 4 not at its end by the deadline, 6 a package is missing, 130 interrupted.
    """
    from ..lab import uml as kernel

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return kernel.run(command, deadline_s=deadline_ns / 1e9, memory_mib=memory, write=write)
