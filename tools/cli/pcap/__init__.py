"""``zenjun pcap``: what captures show. One file per subcommand, loaded only when it is used."""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

import click

from ..common import Failure


class Entry(NamedTuple):
    """Where a subcommand lives, and its line in the overview, which must not cost an import."""

    module: str
    help: str


COMMANDS: Final[dict[str, Entry]] = {
    "check": Entry("check", "Judge whether the cluster kept its promises."),
    "report": Entry("report", "Write one HTML page: verdicts, time lines, latencies, losses."),
    "show": Entry("show", "Print PDUs as text, with filters."),
    "follow": Entry("follow", "Tell the life of one message at every station."),
    "compare": Entry("compare", "Compare two captures: what one has and the other has not."),
    "clocks": Entry("clocks", "Estimate the offsets between the capturing machines' clocks."),
    "ingest": Entry("ingest", "Turn captures into Parquet tables."),
    "dissector": Entry("dissector", "Print a dissector for Wireshark, in Lua."),
}
NEEDS: Final = "zenjun[spark]"


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        try:
            module = importlib.import_module(f".{entry.module}", __package__)
        except ImportError as error:
            if (error.name or "").startswith("zenjun"):
                raise Failure(f"zenjun pcap {cmd_name} is not available in this installation: {error}") from None
            raise Failure(f"zenjun pcap {cmd_name} needs {error.name}: pip install '{NEEDS}'") from None
        command = getattr(module, cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.module}.{cmd_name} is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group("pcap", cls=_Group, epilog="Tables, verdicts and how it is built: docs/captures.md.")
def pcap() -> None:
    """Analyse captures of all stations: whether the cluster kept its promises, and what it cost.

    \b
    Examples:
      zenjun lab capture --out frames --duration 5s   record a lab
      zenjun pcap check frames                        were the promises kept? exit code 1 if not
      zenjun pcap report frames --out report.html     the same, to read, with time lines and latencies
      zenjun pcap show frames/s1.pcapng               what went over the wire
    """
