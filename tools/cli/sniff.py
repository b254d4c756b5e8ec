"""``zenjun sniff``: decoded PDUs, live from an interface or from capture files."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Final

import click

from ...daemon.rights import what_hinders
from ...proto import wire
from ...proto.errors import UsageError
from ..pcap.frames.links import records
from ..pcap.frames.pdu import LINK_ETHERNET, Record, decode, place
from ..pcap.frames.sealed import Sealed, pieces, sealed
from ..pcap.frames.text import Style, details, fold, line, seconds
from ..pcap.frames.unsealing import Unsealing
from .common import FAILED, TIMED_OUT, UNSUPPORTED, Failure, lacking_extra, plural, wait_for_news
from .pcap.options import ethertype_option, kinds_option

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
_MACS_BYTES: Final = 12


def _filter_program(ethertype: int) -> bytes:
    """Classic BPF: frames of the EtherType, plain or after one VLAN tag that the driver has left in the frame."""
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
        """Non-empty batches of frames until ``timeout_s`` has passed or the interface is gone (``stopped`` then has the
        reason)."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_ms = 1000.0 if deadline is None else (deadline - time.monotonic()) * 1000
            if deadline is not None and left_ms <= 0:
                return
            wait_for_news(self.socket.fileno(), min(left_ms, 1000.0) / 1000)
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
                if error.errno != errno.ENETDOWN:  # reported once when the link goes down; frames arrive again when it is up
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
    unsealing: Unsealing | None = None
    """With the cluster's key."""
    printed: int = 0
    ours: int = 0
    """Frames of an EtherType that is looked for, whatever the other filters say."""
    bad: int = 0
    other_links: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._style = Style.of(self.out)
        self._ethertypes = {wire.ETHERTYPE, self.ethertype}

    @property
    def done(self) -> bool:
        return self.count is not None and self.printed >= self.count

    def show(self, record: Record) -> None:
        """Print the record if it holds a PDU that the filters want."""
        found = place(record.link_type, record.data)
        if found is None:
            self.other_links[record.link_type] = self.other_links.get(record.link_type, 0) + 1
            return
        if found.ethertype not in self._ethertypes:
            return
        self.ours += 1
        frame = record.data[found.at :]
        if self.unsealing is not None and not self.unsealing.see(frame):
            frame = self.unsealing.open(frame) or frame
        sealed_frame = sealed(frame)
        if sealed_frame is not None and sealed_frame.pdu is None:
            self._show_hidden(record, sealed_frame)
            return
        plain = decode(frame if sealed_frame is None or sealed_frame.pdu is None else sealed_frame.pdu)
        if plain is None:
            self.bad += found.ethertype == self.ethertype
            return
        if self.cluster is not None and int(plain["cluster"], 16) != self.cluster:
            return
        if (self.kinds and str(plain["kind"]) not in self.kinds) or (self.stations and plain["src"] not in self.stations):
            return
        self.printed += 1
        if self.as_json:
            envelope = {} if sealed_frame is None else {"envelope": sealed_frame.envelope}
            told = {"records": [str(r) for r in records(plain)]} if "PAIR" in plain["flags"] else {}
            self.out.write(json.dumps(_about(record) | plain | told | envelope) + "\n")
            return
        self.out.write(line(seconds(record.time_ns), plain, self._style) + "\n")
        if self.verbose:
            self.out.writelines(text + "\n" for text in details(plain, self._style.width))

    def _show_hidden(self, record: Record, found: Sealed) -> None:
        """A frame of which only the envelope can be read, or a HELLO. It is of no kind."""
        envelope = found.envelope
        if self.cluster is not None and int(envelope["cluster"], 16) != self.cluster:
            return
        if self.kinds or (self.stations and envelope["tx"] not in self.stations):
            return
        self.printed += 1
        if self.as_json:
            self.out.write(json.dumps(_about(record) | found.as_dict()) + "\n")
            return
        self.out.write(fold([seconds(record.time_ns), *pieces(found)], self._style.width) + "\n")


def _unsealing(key_file: Path | None, cluster: str | None) -> Unsealing | None:
    if key_file is None:
        return None
    if cluster is None:
        raise click.UsageError("--key-file needs --cluster NAME: the name is part of every key")
    try:
        return Unsealing(key_file, cluster)
    except UsageError as error:
        raise Failure(str(error), command="sniff") from None


def _about(record: Record) -> dict[str, object]:
    return {"time_ns": record.time_ns, "interface": record.interface, "bytes": record.wire_length}


def _fail(message: str, code: int = FAILED) -> int:
    click.echo(f"zenjun sniff: {message}", err=True)
    return code


def _sniff_live(printer: Printer, interface: str, ethertype: int, timeout_s: float | None) -> int:
    try:
        live = Live(interface, ethertype)
    except PermissionError:
        python = os.path.realpath(sys.executable)
        ways = f"run it with sudo, or once 'sudo setcap cap_net_raw+ep {python}'"
        return _fail(f"no right to open a packet socket (CAP_NET_RAW): {what_hinders() or ways}", UNSUPPORTED)
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
    """One file, whatever ``zenjun pcap`` reads; or standard input."""
    try:
        from ..pcap.frames.lookup import none_of
        from ..pcap.frames.records import Records
        from ..pcap.native import CaptureDamage
    except ImportError as error:
        raise lacking_extra(error, "sniff") from None
    shown = "standard input" if name == "-" else name
    ours, skipped = printer.ours, sum(printer.other_links.values())
    capture = Records(name, None if Path(name).is_file() else printer.out.flush)
    try:
        for record in capture:
            printer.show(record)
            if printer.done:
                return 0
    except BrokenPipeError:
        raise
    except ImportError as error:
        raise lacking_extra(error, "sniff") from None
    except CaptureDamage as error:
        return _fail(f"{shown}: offset {error.offset}: {error.reason}")
    except OSError as error:
        return _fail(f"{shown}: {error.strerror or error}")
    if capture.cut:
        click.echo(f"zenjun sniff: {shown}: {capture.cut}; all before it was read", err=True)
    if capture.count and sum(printer.other_links.values()) - skipped == capture.count:
        return FAILED  # skipped frames are reported at the end
    if printer.ours == ours:
        click.echo(f"zenjun sniff: {none_of(shown, capture.count, printer.ethertype)}", err=True)
    return 0


def _files(names: Sequence[str]) -> Iterator[str]:
    """The files that the names stand for: folders are searched. Raises Failure."""
    for name in names:
        if name == "-" or not Path(name).is_dir():
            yield name
            continue
        from ..pcap.frames.files import FilesError, find

        try:
            yield from (str(path) for path in find([name]))
        except FilesError as error:
            raise Failure(str(error), command="sniff") from None


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
  1  an interface or a file cannot be read, a file is no capture, or has only frames of link types that cannot be read
  2  wrong usage
  4  --count was given and fewer PDUs came (before --timeout, or in the files)
  6  no right to capture (CAP_NET_RAW)
  141  the reader of the output has gone (| head)""",
)
@click.argument("files", nargs=-1, type=click.Path(allow_dash=True), metavar="[FILE]...")
@click.option("-i", "--interface", metavar="IFACE", help="Capture live on this interface.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N PDUs.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Stop a live capture after this time."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per PDU, with every field.")
@kinds_option
@click.option(
    "--station",
    "stations",
    multiple=True,
    type=click.IntRange(1, wire.STATIONS_MAX),
    help="Only PDUs of this source station (may be repeated).",
)
@click.option("--cluster", metavar="NAME", help="Only PDUs of this cluster.")
@click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --cluster: read what is hidden under a key of this file, once a HELLO of its session has come (10 s at most).",
)
@ethertype_option
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
    key_file: Path | None,
    ethertype: int,
    verbose: bool,
) -> None:
    """Print decoded PDUs, live from an interface or from capture files (pcap, pcapng; gzip and zstd; - is standard input; folders
    are searched).

    To watch a segment, or one file in its own order. For captures of several stations merged by time, damaged PDUs only, times,
    messages and groups: 'zenjun pcap show'.

    A line has the time, the source station with its incarnation, the kind, its number in the stream (seq; for PDUs
    outside the stream the source's next one), instance, logical clock, ack vector, pack vector, flags, and what the kind adds.
    Every frame is shown as captured: retransmissions, foreign clusters and damaged PDUs too.
    """
    if bool(files) == bool(interface):
        raise click.UsageError("give either -i IFACE or at least one capture file")
    if files and timeout is not None:
        raise click.UsageError("--timeout is for a live capture")
    printer = Printer(
        sys.stdout,
        as_json,
        verbose,
        frozenset(kind.upper() for kind in kinds),
        frozenset(stations),
        None if cluster is None else wire.cluster_id(cluster),
        count,
        ethertype,
        _unsealing(key_file, cluster),
    )
    code, interrupted = 0, False
    try:
        if interface:
            code = _sniff_live(printer, interface, ethertype, timeout)
        for name in _files(files):
            code = max(code, _sniff_file(printer, name))
            if printer.done:
                break
        printer.out.flush()
    except KeyboardInterrupt:
        interrupted = True
    if printer.unsealing is not None and (printer.unsealing.unknown or printer.unsealing.wrong):
        unread = f"{plural(printer.unsealing.unknown, 'frame')} before a HELLO of the session, or under another key"
        click.echo(f"zenjun sniff: {unread}; {plural(printer.unsealing.wrong, 'frame')} with a wrong tag", err=True)
    if printer.bad:
        were = f"{plural(printer.bad, 'frame')} of this EtherType {'was' if printer.bad == 1 else 'were'}"
        click.echo(f"zenjun sniff: {were} too short for a PDU", err=True)
    for link_type, frames in sorted(printer.other_links.items()):
        skipped = f"{plural(frames, 'frame')} of link type {link_type} {'was' if frames == 1 else 'were'} skipped"
        click.echo(f"zenjun sniff: {skipped}: only Ethernet, Linux cooked v1 and v2 can be read", err=True)
    if code == 0 and not interrupted and count is not None and printer.printed < count:
        code = TIMED_OUT
    context.exit(code)
