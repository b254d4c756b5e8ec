"""``zenjun sniff``: decoded PDUs, live from an interface or from capture files."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final

import click

from ...proto import wire
from ..capturefile import LINK_ETHERNET, LINK_LINUX_SLL, LINK_LINUX_SLL2, CaptureError, CaptureFile, Record
from .common import FAILED, TIMED_OUT, UNSUPPORTED

if TYPE_CHECKING:
    from scapy.packet import Packet

    from ..dissect import Zenjun

FRAME_BYTES_MAX: Final = 65536 + 64
BATCH_MAX: Final = 256
"""Frames taken from the socket before what they gave is written out."""
RECEIVE_BUFFER_BYTES: Final = 4 << 20

# linux/if_packet.h, linux/filter.h, linux/if_ether.h, asm-generic/socket.h; Python's socket module lacks them.
_ETH_P_ALL: Final = 0x0003
_SOL_PACKET: Final = 263
_PACKET_ADD_MEMBERSHIP: Final = 1
_PACKET_MR_MULTICAST: Final = 0
_PACKET_STATISTICS: Final = 6
_PACKET_AUXDATA: Final = 8
_TP_STATUS_VLAN_VALID: Final = 1 << 4
_TP_STATUS_VLAN_TPID_VALID: Final = 1 << 6
_SO_ATTACH_FILTER: Final = 26
_SO_TIMESTAMPNS: Final = 35
_AUXDATA: Final = struct.Struct("=IIIHHHH")
_TAG_BYTES: Final = 4
_MACS_BYTES: Final = 12


def _filter_program(ethertype: int) -> bytes:
    """Classic BPF: frames of the EtherType, plain or behind one tag that the driver has left in the frame."""
    load_half, jump_equal, accept = 0x28, 0x15, 0x06
    steps = (
        (load_half, 0, 0, 12),
        (jump_equal, 4, 0, ethertype),
        (jump_equal, 1, 0, 0x8100),
        (jump_equal, 0, 3, 0x88A8),
        (load_half, 0, 0, 16),
        (jump_equal, 0, 1, ethertype),
        (accept, 0, 0, 0xFFFFFFFF),
        (accept, 0, 0, 0),
    )
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


class Live:
    """Frames of one EtherType on one interface, the host's own among them, with the kernel's time stamps.

    Raises PermissionError without CAP_NET_RAW and OSError if there is no such interface.
    """

    def __init__(self, interface: str, ethertype: int) -> None:
        self.interface = interface
        self.stopped = ""
        index = socket.if_nametoindex(interface)
        # Protocol 0 receives nothing: no foreign frame can slip in before the filter is in place.
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            program = ctypes.create_string_buffer(_filter_program(ethertype))
            steps = (len(program) - 1) // 8
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", steps, ctypes.addressof(program)))
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            self.socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
            group = bytes.fromhex(wire.GROUP_MAC.replace(":", ""))
            member = struct.pack("=iHH8s", index, _PACKET_MR_MULTICAST, len(group), group)
            self.socket.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, member)
            self.socket.bind((interface, _ETH_P_ALL))
            self.socket.setblocking(False)
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Live:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.socket.close()

    def batches(self, timeout_s: float | None) -> Iterator[list[Record]]:
        """Non-empty batches of frames until ``timeout_s`` has passed or the interface is gone (``stopped`` then says why)."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        while True:
            left_ms = 1000.0 if deadline is None else (deadline - time.monotonic()) * 1000
            if deadline is not None and left_ms <= 0:
                return
            poller.poll(min(left_ms, 1000.0))
            batch = self._batch()
            if batch:
                yield batch
            elif not self._there():
                self.stopped = f"interface {self.interface} has gone"
                return

    def dropped(self) -> int:
        """Frames that the kernel had no room for since the last call."""
        raw = self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        return int(struct.unpack("=II", raw)[1])

    def _there(self) -> bool:
        # A deleted interface leaves the socket bound to nothing, also if another one of that name exists by now.
        try:
            return bool(self.socket.getsockname()[0]) and socket.if_nametoindex(self.interface) > 0
        except OSError:
            return False

    def _batch(self) -> list[Record]:
        batch: list[Record] = []
        while len(batch) < BATCH_MAX:
            try:
                data, extra, _, _ = self.socket.recvmsg(FRAME_BYTES_MAX, 256)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno != errno.ENETDOWN:  # told once when the link goes down; frames come again when it is up
                    raise
                break
            batch.append(self._record(data, extra))
        return batch

    def _record(self, data: bytes, extra: Sequence[tuple[int, int, bytes]]) -> Record:
        time_ns = time.time_ns()
        for level, kind, value in extra:
            if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
                seconds, nanoseconds = struct.unpack("@ll", value)
                time_ns = seconds * 1_000_000_000 + nanoseconds
            elif level == _SOL_PACKET and kind == _PACKET_AUXDATA:
                status, _, _, _, _, tag, tag_type = _AUXDATA.unpack(value[: _AUXDATA.size])
                if status & _TP_STATUS_VLAN_VALID:  # the kernel took the tag out: put it back
                    tag_type = tag_type if status & _TP_STATUS_VLAN_TPID_VALID else 0x8100
                    data = data[:_MACS_BYTES] + struct.pack(">HH", tag_type, tag) + data[_MACS_BYTES:]
        return Record(time_ns, LINK_ETHERNET, data, len(data), self.interface)


# ---- text ----


def _numbers(values: Iterable[int]) -> str:
    return ",".join(str(value) for value in values)


def _body(pdu: Zenjun, plain: dict[str, Any]) -> str:
    """What the kind adds to the line."""
    if pdu.kind == wire.Kind.DATA and "messages" in plain:
        messages = plain["messages"]
        size = sum(message["size"] for message in messages)
        pieces = [
            f"{message['offset']}+{message['size']}/{message['total']}" for message in messages if "FRAGMENT" in message["mflags"]
        ]
        plural = "" if len(messages) == 1 else "s"
        return f"{len(messages)} message{plural} {size} B" + (f"  fragment {' '.join(pieces)}" if pieces else "")
    if pdu.kind == wire.Kind.CONFIRM and "digest" in plain:
        return f"position {plain['position']}  digest {plain['digest']}"
    if pdu.kind == wire.Kind.NAK and "ranges" in plain:
        ranges = (
            str(r["first"]) if r["span"] == 1 else f"{r['first']}..{r['first'] + r['span'] - 1 & 0xFFFFFFFF}"
            for r in plain["ranges"]
        )
        return f"asks station {pdu.target} for stream {plain['stream']}: {' '.join(ranges)}"
    if pdu.kind == wire.Kind.OPEN and "proposed" in plain:
        members = _numbers(member["station"] for member in plain["proposed"])
        started = "started " if "STARTED" in plain["oflags"] else ""
        return f"{started}instance {plain['proposal']} of {members or 'nobody yet'}  host {plain['host']!r}"
    return ""


def line(record: Record, pdu: Zenjun, plain: dict[str, Any]) -> str:
    """One PDU as one line: time, station, kind, flags, seq, clock, vectors and what the kind adds."""
    when = datetime.fromtimestamp(record.time_ns // 1_000_000_000).strftime("%H:%M:%S")
    parts = [
        f"{when}.{record.time_ns % 1_000_000_000:09d}",
        f"station {pdu.src}.{pdu.incarnation}",
        f"{plain['kind']!s:8}",
        f"{'seq' if pdu.kind in wire.SEQUENCED else 'next'} {pdu.seq}",
        f"instance {pdu.instance}",
        f"clock {pdu.clock}",
        f"ack {_numbers(plain['ack'])}",
    ]
    if "pack" in plain:
        parts.append(f"pack {_numbers(plain['pack'])}")
    flags = [flag for flag in plain["flags"] if flag != "PACK"]
    if flags:
        parts.append("+".join(flags))
    if body := _body(pdu, plain):
        parts.append(body)
    if plain["check_ok"] is False:
        parts.append("BAD CHECKSUM")
    if not plain["complete"]:
        parts.append("CUT" if plain["check_ok"] is None else "MALFORMED")
    return "  ".join(parts)


def details(plain: dict[str, Any]) -> Iterator[str]:
    """All fields of a PDU, one line each."""
    for name, value in plain.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for item in value:
                yield f"    {name:20} " + "  ".join(f"{key} {_value(entry)}" for key, entry in item.items())
        else:
            yield f"    {name:20} {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(str(entry) for entry in value) or "-"
    return str(value)


# ---- the command ----


@dataclass
class Printer:
    """Decodes frames, filters, prints; ``printed`` counts PDUs shown."""

    out: IO[str]
    as_json: bool
    verbose: bool
    kinds: frozenset[str]
    stations: frozenset[int]
    cluster: int | None
    count: int | None
    ethertype: int
    printed: int = 0
    bad: int = 0
    other_links: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from scapy.layers.l2 import CookedLinux, CookedLinuxV2

        from .. import dissect

        self._dissect = dissect
        self._layers: dict[int, type[Packet]] = {
            LINK_ETHERNET: dissect.Ether,
            LINK_LINUX_SLL: CookedLinux,
            LINK_LINUX_SLL2: CookedLinuxV2,
        }

    @property
    def done(self) -> bool:
        return self.count is not None and self.printed >= self.count

    def show(self, record: Record) -> None:
        """Print the record if it holds a PDU that the filters want."""
        layer = self._layers.get(record.link_type)
        if layer is None:
            self.other_links[record.link_type] = self.other_links.get(record.link_type, 0) + 1
            return
        pdu = self._dissect.find(layer(record.data))
        if pdu is None:
            self.bad += self._ours(layer(record.data))
            return
        if self.cluster is not None and pdu.cluster != self.cluster:
            return
        plain = self._dissect.as_dict(pdu)
        if (self.kinds and str(plain["kind"]) not in self.kinds) or (self.stations and pdu.src not in self.stations):
            return
        self.printed += 1
        if self.as_json:
            about = {"time_ns": record.time_ns, "interface": record.interface, "bytes": record.wire_length}
            self.out.write(json.dumps(about | plain) + "\n")
            return
        self.out.write(line(record, pdu, plain) + "\n")
        if self.verbose:
            self.out.writelines(text + "\n" for text in details(plain))

    def _ours(self, frame: Any) -> bool:
        """Whether a frame without a zenjun layer is of our EtherType, that is, too short for a header."""
        below = frame.lastlayer().underlayer
        return below is not None and self.ethertype in (below.fields.get("type"), below.fields.get("proto"))


def _ethertype(_context: click.Context, _option: click.Parameter, text: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number; write it like 0x88b5") from None
    if not 0x0600 <= value <= 0xFFFF:
        raise click.BadParameter(f"{text} is not in 0x0600..0xffff")
    return value


def _fail(message: str, code: int = FAILED) -> int:
    click.echo(f"zenjun sniff: {message}", err=True)
    return code


def _sniff_live(printer: Printer, interface: str, ethertype: int, timeout_s: float | None) -> int:
    try:
        live = Live(interface, ethertype)
    except PermissionError:
        python = os.path.realpath(sys.executable)
        return _fail(
            f"no right to open a packet socket (CAP_NET_RAW): run it with sudo, or once 'sudo setcap cap_net_raw+ep {python}'",
            UNSUPPORTED,
        )
    except OSError as error:
        return _fail(f"cannot capture on {interface}: {error.strerror or error}")
    with live:
        try:
            for batch in live.batches(timeout_s):
                for record in batch:
                    printer.show(record)
                    if printer.done:
                        break
                printer.out.flush()
                if printer.done:
                    break
        except BrokenPipeError:
            raise
        except OSError as error:
            return _fail(f"capture on {interface} failed: {error.strerror or error}")
        finally:
            if dropped := live.dropped():
                click.echo(f"zenjun sniff: {dropped} frames lost, the kernel's buffer was full", err=True)
        return _fail(live.stopped) if live.stopped else 0


def _sniff_file(printer: Printer, name: str) -> int:
    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as stream:
            capture = CaptureFile(stream)
            for record in capture:
                printer.show(record)
                if printer.done:
                    break
    except BrokenPipeError:
        raise
    except (OSError, CaptureError) as error:
        return _fail(f"{name}: {(error.strerror if isinstance(error, OSError) else None) or error}")
    if capture.truncated:
        click.echo(f"zenjun sniff: {name}: the last record is cut; all before it were read", err=True)
    return 0


@click.command(
    "sniff",
    epilog="""\b
Examples:
  sudo zenjun sniff -i eth0                         follow a segment
  sudo zenjun sniff -i eth0 --kind NAK --json       who misses what, for a program
  zenjun sniff station1.pcapng --station 2 -v       every field of what station 2 sent
  tcpdump -r big.pcap -w - ether proto 0x88b5 | zenjun sniff -

\b
Exit status:
  0  all was printed: files read, --count reached, --timeout over, or Ctrl-C
  1  an interface or a file cannot be read, a file is no capture, or scapy is missing
  2  wrong usage
  4  --count was given and fewer PDUs came (before --timeout, or in the files)
  6  no right to capture (CAP_NET_RAW)""",
)
@click.argument("files", nargs=-1, type=click.Path(allow_dash=True), metavar="[FILE]...")
@click.option("-i", "--interface", metavar="IFACE", help="Capture live on this interface.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N PDUs.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Stop a live capture after so long."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per PDU, with every field.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.name for kind in wire.Kind], case_sensitive=False),
    help="Only this kind of PDU (may be repeated).",
)
@click.option(
    "--station",
    "stations",
    multiple=True,
    type=click.IntRange(1, wire.STATIONS_MAX),
    help="Only PDUs of this source station (may be repeated).",
)
@click.option("--cluster", metavar="NAME", help="Only PDUs of this cluster.")
@click.option(
    "--ethertype",
    metavar="NUMBER",
    default=f"{wire.ETHERTYPE:#06x}",
    show_default=True,
    callback=_ethertype,
    help="EtherType of the PDUs.",
)
@click.option("-v", "--verbose", is_flag=True, help="All fields of every PDU, one line each.")
@click.pass_context
def sniff(
    context: click.Context,
    files: tuple[str, ...],
    interface: str | None,
    count: int | None,
    timeout: float | None,
    as_json: bool,
    kinds: tuple[str, ...],
    stations: tuple[int, ...],
    cluster: str | None,
    ethertype: int,
    verbose: bool,
) -> None:
    """Print decoded PDUs, live from an interface or from capture files (pcap, pcapng; - is standard input).

    A line has the time, the source station with its incarnation, the kind, its number in the stream (seq; for PDUs
    outside the stream the source's next one), instance, logical clock, ack vector, pack vector, flags, and what the kind adds.
    Every frame is shown as captured: retransmissions, foreign clusters and damaged PDUs too.
    """
    if bool(files) == bool(interface):
        raise click.UsageError("give either -i IFACE or at least one capture file")
    if files and timeout is not None:
        raise click.UsageError("--timeout is for a live capture")
    try:
        from .. import dissect
    except ImportError as error:
        context.exit(_fail(str(error)))
    dissect.bind(ethertype)
    printer = Printer(
        sys.stdout,
        as_json,
        verbose,
        frozenset(kind.upper() for kind in kinds),
        frozenset(stations),
        None if cluster is None else wire.cluster_id(cluster),
        count,
        ethertype,
    )
    code, interrupted = 0, False
    try:
        if interface:
            code = _sniff_live(printer, interface, ethertype, timeout)
        for name in files:
            code = max(code, _sniff_file(printer, name))
            if printer.done:
                break
        printer.out.flush()
    except KeyboardInterrupt:
        interrupted = True
    except BrokenPipeError:
        # The reader of our output has gone: an ordinary end. Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        context.exit(0)
    if printer.bad:
        click.echo(f"zenjun sniff: {printer.bad} frames of this EtherType were too short for a PDU", err=True)
    for link_type, frames in sorted(printer.other_links.items()):
        click.echo(f"zenjun sniff: {frames} frames of link type {link_type} were skipped", err=True)
    if code == 0 and not interrupted and count is not None and printer.printed < count:
        code = TIMED_OUT
    context.exit(code)
