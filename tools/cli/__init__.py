"""``zenjun``: the command people type. One file per command, loaded only when it is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from .common import COMPLETION, FAILED, INTERRUPTED, PIPE_CLOSED, exit_code_of
from .lazy import Entry, LazyGroup

COMMANDS: Final[dict[str, Entry]] = {
    "send": Entry("send", "send", "Broadcast messages to a group."),
    "recv": Entry("recv", "recv", "Print the messages of a group, in the total order."),
    "status": Entry("status", "status", "Show what the local daemon knows: peers, positions, drops."),
    "top": Entry("top", "top", "Watch the cluster live: states, rates, latency, windows, drops."),
    "members": Entry("members", "members", "List the programs in a group, or the stations."),
    "name": Entry("name", "name", "Names that give addresses: set, get, watch, hold."),
    "sql": Entry("sql", "sql", "SQL on a replicated database, or a prompt for it.", "zenjun[db]"),
    "db": Entry("db", "db", "Replicated databases: create, list, status, check.", "zenjun[db]"),
    "corosync": Entry("corosync", "corosync", "Run corosync's programs on zenjun: enable, status, check."),
    "leave": Entry("operate", "leave", "Let this station leave the cluster; its daemon ends."),
    "expel": Entry("operate", "expel", "Remove a station from the cluster."),
    "cluster": Entry("cluster", "cluster", "Options and roster of the cluster: show, set, add, remove."),
    "key": Entry("key", "key", "Keys of the cluster: make, add, list, rotate, retire."),
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


class _Commands(LazyGroup):
    entries = COMMANDS
    package = __name__


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done · 1 failed · 2 usage · 3 daemon not reachable · 4 timeout · 5 service ended"
    " · 6 something is not installed or not allowed · 130 interrupted (docs/cli.md).",
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
    """Totally ordered broadcast on one Ethernet segment: every program receives all messages, in the same order.

    \b
    Examples:
      zenjun recv --group chat               print the messages of the group
      zenjun send --group chat hello         send a message
      zenjun status                          the state of the cluster
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
    if COMPLETION in os.environ:
        return cli.main(args=args, prog_name="zenjun", complete_var=COMPLETION)
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
