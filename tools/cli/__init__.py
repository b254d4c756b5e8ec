"""``zenjun``: the command people type. One file per command, loaded only when it is used."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import click

from .common import FAILED, INTERRUPTED, PIPE_CLOSED, Failure, exit_code_of


class Entry(NamedTuple):
    """Where a command lives, and its line in the overview, which must not cost an import."""

    module: str
    attribute: str
    help: str
    extra: str = ""
    """What to install if the module cannot be imported."""


COMMANDS: Final[dict[str, Entry]] = {
    "send": Entry("send", "send", "Broadcast messages to a group."),
    "recv": Entry("recv", "recv", "Print the messages of a group, in the total order."),
    "status": Entry("status", "status", "Show what the local daemon knows: peers, positions, drops."),
    "top": Entry("top", "top", "Watch the cluster live: states, rates, latency, windows, drops."),
    "members": Entry("members", "members", "List the programs in a group, or the stations."),
    "leave": Entry("operate", "leave", "Let this station leave the cluster; its daemon ends."),
    "expel": Entry("operate", "expel", "Remove a station from the cluster."),
    "config": Entry("config", "config", "Check a configuration file, or print an example."),
    "lab": Entry("lab", "lab", "Run a test network on this machine."),
    "demo": Entry("demo", "demo", "Show total order in a lab with loss."),
    "bench": Entry("bench", "bench", "Measure throughput, latency and failover, side by side with others."),
    "evaluate": Entry("evaluate", "evaluate", "Measure what the papers claim, from captures."),
    "sniff": Entry("sniff", "sniff", "Decode PDUs, live or from capture files."),
    "pcap": Entry("pcap", "pcap", "Judge, show and measure captures of a cluster."),
    "completion": Entry("complete", "completion", "Print the completion script for a shell."),
    "version": Entry("complete", "version", "Print the version."),
}


VARIABLE: Final = "_ZENJUN_COMPLETE"
"""Set by the completion scripts."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called for, so that ``zenjun send`` does not pay for the laboratory."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        try:
            module = importlib.import_module(f".{entry.module}", __package__)
        except ImportError as error:
            raise Failure(_missing(cmd_name, entry, error)) from None
        command = getattr(module, entry.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.module}.{entry.attribute} is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        import difflib

        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            close = difflib.get_close_matches(name, COMMANDS, n=1)
            ctx.fail(
                f"no such command {name!r}"
                + (f"; did you mean {close[0]!r}?" if close else f"; commands are {', '.join(COMMANDS)}")
            )
        return super().resolve_command(ctx, args)


def _missing(name: str, entry: Entry, error: ImportError) -> str:
    if entry.extra and not (error.name or "").startswith("zenjun"):
        return f"zenjun {name} needs {error.name}: pip install '{entry.extra}'"
    return f"zenjun {name} is not available in this installation: {error}"


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done · 1 failed · 2 usage · 3 daemon not reachable · 4 timeout · 5 service ended (docs/cli.md).",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, _, on: _version(ctx, on),
    help="Print the version.",
)
def cli() -> None:
    """Totally ordered broadcast on one Ethernet segment: what one program sends, all receive, in the same order.

    \b
    Examples:
      zenjun recv --group chat               print what is said in the group
      zenjun send --group chat hello         say something
      zenjun status                          how the cluster is
      zenjun config example > zenjund.toml   start a configuration
      zenjun lab up -n 3 --loss 5%           try it without a network
    """


def _version(ctx: click.Context, on: bool) -> None:
    if on:
        from .complete import version_text

        click.echo(version_text())
        ctx.exit(0)


def _invoke(args: list[str]) -> Any:
    """As ``cli.main`` does, but for its ways with Ctrl-C (an empty line) and closed pipes (exit code 1)."""
    if VARIABLE in os.environ:
        return cli.main(args=args, prog_name="zenjun", complete_var=VARIABLE)
    with cli.make_context("zenjun", args) as ctx:
        return cli.invoke(ctx)


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line (None: the process's own) and return its exit code; what went wrong is one line on standard error."""
    from ...daemon.client.errors import ClientError

    try:
        result = _invoke(sys.argv[1:] if args is None else list(args))
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ClientError as error:
        click.echo(f"zenjun: {error}", err=True)
        return exit_code_of(error)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Only standard output can raise it here (sockets' errors have types of their own). Nothing more can be written, and the
        # interpreter must not try at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        click.echo(f"zenjun: {error.filename + ': ' if error.filename else ''}{error.strerror or error}", err=True)
        return FAILED


def main(args: Sequence[str] | None = None) -> Any:
    """Entry point of the ``zenjun`` script."""
    sys.exit(run(args))
