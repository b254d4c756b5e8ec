"""``zenjun pcap dissector``."""

from __future__ import annotations

from pathlib import Path

import click

from ....proto import wire
from ...pcap.look.dissector import lua
from ..common import Failure, say
from .options import ethertype_option


@click.command(
    "dissector",
    epilog="""\b
Examples:
  zenjun pcap dissector --out ~/.local/lib/wireshark/plugins/zenjun.lua
  zenjun pcap dissector > z.lua; tshark -X lua_script:z.lua -r frames.pcapng -Y 'zenjun.kind == 3'

\b
Exit status:
  0  done
  1  the file cannot be written
  2  wrong usage""",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write it here instead of to standard output.")
@ethertype_option
def dissector(out: Path | None, ethertype: int) -> None:
    """Print a dissector for Wireshark and tshark, in Lua.

    Every field has a name to filter by (zenjun.kind, zenjun.nak.stream, zenjun.flags.poll); the checksums are verified, which a
    preference switches off.
    """
    text = lua(ethertype)
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        out.write_text(text)
    except OSError as error:
        raise Failure(f"{out}: {error.strerror or error}", command="pcap dissector") from None
    say(f"{out}: written, {len(text.splitlines())} lines for EtherType {ethertype:#06x} (default {wire.ETHERTYPE:#06x})")
