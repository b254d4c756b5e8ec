"""``zenjun pcap unseal``."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import click

from ....proto.errors import UsageError
from ...pcap.frames.pdu import LINK_ETHERNET, place
from ...pcap.frames.records import Records
from ...pcap.frames.unsealing import Unsealing
from ...pcap.native import CaptureDamage
from ..common import FAILED, OK, Failure, plural, say

_FILE: Final = struct.Struct("<IHHiIII")
_FRAME: Final = struct.Struct("<IIII")
_NANOSECOND_MAGIC: Final = 0xA1B23C4D


@click.command(
    "unseal",
    epilog="""\b
Example:
  zenjun pcap unseal --key-file zenjund.key --cluster mill s1.pcapng s1.plain.pcap && zenjun pcap show s1.plain.pcap

\b
Exit status:
  0  all frames could be read
  1  a file cannot be read or written, or some frames stay hidden
  2  wrong usage""",
)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--key-file", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The cluster's keys.")
@click.option("--cluster", required=True, metavar="NAME", help="The cluster's name: it is part of every key.")
def unseal(source: Path, target: Path, key_file: Path, cluster: str) -> int:
    """Write the capture SOURCE to TARGET with every encrypted PDU readable, for all other tools.

    A frame is read by the HELLO of its session, wherever in the capture that is; a station says HELLO every 10 s. Tags are
    checked. Frames that stay hidden are copied as they are and counted. TARGET has mode 600: it shows what was hidden.
    """
    try:
        unsealing = Unsealing(key_file, cluster)
        for record in Records(str(source), None):
            if (found := place(record.link_type, record.data)) is not None:
                unsealing.see(record.data[found.at :])
        frames = _write(source, target, unsealing)
    except UsageError as error:
        raise Failure(str(error), FAILED, "pcap unseal") from None
    except CaptureDamage as error:
        raise Failure(f"{source}: offset {error.offset}: {error.reason}", FAILED, "pcap unseal") from None
    except OSError as error:
        raise Failure(f"{error.filename or target}: {error.strerror or error}", FAILED, "pcap unseal") from None
    say(
        f"{target}: {plural(frames, 'frame')}; {unsealing.unknown} without a HELLO of their session, or under another key; "
        f"{unsealing.wrong} with a wrong tag"
    )
    return FAILED if unsealing.unknown or unsealing.wrong else OK


def _write(source: Path, target: Path, unsealing: Unsealing) -> int:
    """As a capture of Ethernet frames with nanoseconds; frames of other link types are left out. Returns how many there are."""
    frames = 0
    with target.open("xb") as out:
        target.chmod(0o600)
        out.write(_FILE.pack(_NANOSECOND_MAGIC, 2, 4, 0, 0, 1 << 18, LINK_ETHERNET))
        for record in Records(str(source), None):
            if record.link_type != LINK_ETHERNET:
                continue
            found, data = place(record.link_type, record.data), record.data
            if found is not None and not unsealing.see(data[found.at :]):
                data = data[: found.at] + (unsealing.open(data[found.at :]) or data[found.at :])
            seconds, nanoseconds = divmod(record.time_ns, 1_000_000_000)
            out.write(_FRAME.pack(seconds, nanoseconds, len(data), record.wire_length) + data)
            frames += 1
    return frames
