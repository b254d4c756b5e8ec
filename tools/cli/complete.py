"""``zenjun completion`` and ``zenjun version``."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Final

import click

from .common import COMPLETION, OK

SHELLS: Final = ("bash", "zsh", "fish")


@click.command(short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Print the script that makes SHELL complete zenjun's commands, options and group names.

    \b
    Examples:
      zenjun completion bash > ~/.local/share/bash-completion/completions/zenjun
      zenjun completion zsh > ~/.zfunc/_zenjun          (~/.zfunc must be in fpath)
      zenjun completion fish > ~/.config/fish/completions/zenjun.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    # The script of the class is used as it is: click's own check of the shell's version would start the shell.
    made = kind(click.get_current_context().find_root().command, {}, "zenjun", COMPLETION)
    click.echo(made.source_template % made.source_vars())
    return OK


def version_text() -> str:
    """Name and version of the package."""
    try:
        number = metadata.version("zenjun")
    except metadata.PackageNotFoundError:
        number = "(not installed)"
    return f"zenjun {number}"


@click.command(short_help="Print the version.")
def version() -> None:
    """Print the versions of zenjun, its protocols and Python.

    \b
    Example:
      zenjun version
    """
    from ...daemon.clientwire import VERSION as CLIENT
    from ...proto.wire import VERSION as WIRE

    click.echo(f"{version_text()} · wire protocol {WIRE} · client protocol {CLIENT} · Python {platform.python_version()}")
