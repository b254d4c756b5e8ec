"""``zenjun pcap``: what captures show. One file per subcommand, loaded only when it is used."""

from __future__ import annotations

from typing import Final

import click

from ..common import EXTRA as NEEDS
from ..lazy import Entry, LazyGroup

COMMANDS: Final[dict[str, Entry]] = {
    "check": Entry("check", "check", "Judge whether the cluster kept its guarantees.", NEEDS),
    "report": Entry("report", "report", "Write one HTML page: verdicts, time lines, latencies, losses.", NEEDS),
    "show": Entry("show", "show", "Print PDUs as text, with filters.", NEEDS),
    "follow": Entry("follow", "follow", "Show what happened to one message at every station.", NEEDS),
    "compare": Entry("compare", "compare", "Compare two captures: what one has and the other has not.", NEEDS),
    "clocks": Entry("clocks", "clocks", "Estimate the offsets between the capturing machines' clocks.", NEEDS),
    "ingest": Entry("ingest", "ingest", "Turn captures into Parquet tables.", NEEDS),
    "unseal": Entry("unseal", "unseal", "Make encrypted PDUs readable, with the cluster's key.", NEEDS),
    "dissector": Entry("dissector", "dissector", "Print a dissector for Wireshark, in Lua.", NEEDS),
}


class _Commands(LazyGroup):
    entries = COMMANDS
    package = __name__
    prefix = "zenjun pcap"


@click.group("pcap", cls=_Commands, epilog="Tables, verdicts and how it is built: docs/captures.md.")
def pcap() -> None:
    """Analyse captures of all stations: whether the cluster kept its guarantees, and what it cost.

    \b
    Examples:
      zenjun lab capture --out frames --duration 5s   record a lab
      zenjun pcap check frames                        were the guarantees kept? exit code 1 if not
      zenjun pcap report frames --out report.html     the same, to read, with time lines and latencies
      zenjun pcap show frames/s1.pcapng               what went over the wire
    """
