"""Frames of captures by what is in them: C walks the files and hands over only those that match, so that looking for a few PDUs
in a large capture costs what reading it costs. Memory is bounded by one chunk for each open file.

Several files are merged by time, each station's clock corrected if offsets are given.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from ....proto import wire
from ..native import CaptureDamage, Reader, ffi, lib
from . import files
from .pdu import decode, place
from .problem import Problem
from .sealed import Sealed, sealed

ANY_TIME: Final = (-(1 << 63), (1 << 63) - 1)
ALL: Final = (1 << 64) - 1
SEQUENCE_NUMBERS: Final = 1 << 32
MERGED_MAX: Final = 100
"""Files open at one time. If there are more, those of one station are taken one after the other, by their first times."""
Correction = Callable[[int, int], int]
"""(station, time in ns by its clock) → the common clock's time."""


class Capture(NamedTuple):
    """A file and whose capture it is; 0: not known."""

    path: str
    station: int
    own_mac: int = 0
    """Address that distinguishes sent from received frames where the file does not; 0: not needed, or not known."""

    @property
    def name(self) -> str:
        return "standard input" if self.path == "-" else self.path


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of ours, whole or not."""

    capture: Capture
    index: int
    """In its file, from 0."""
    offset: int
    """Of its record in the (unpacked) file."""
    time_ns: int | None
    """By the capturing machine's clock, corrected if that was asked for."""
    direction: int
    """0 unknown, 1 in, 2 out."""
    link: int
    """LINKTYPE_ number."""
    data: bytes
    """What was captured, from the link-layer header on."""
    wire: int
    """Bytes on the wire."""
    problem: Problem
    why: int = 0
    """For ``follow``: the ZM_IS_… numbers of native/match.h."""
    interface: int = 0

    @property
    def _payload(self) -> bytes:
        found = place(self.link, self.data)
        return b"" if found is None else self.data[found.at :]

    @property
    def sealed(self) -> Sealed | None:
        """Its envelope, if it has one."""
        return sealed(self._payload)

    @property
    def pdu(self) -> bytes:
        """The PDU with its padding, behind the envelope if there is one."""
        envelope = self.sealed
        return self._payload if envelope is None or envelope.pdu is None else envelope.pdu

    def decoded(self) -> dict[str, Any] | None:
        """All fields; None: too short for a header, or no PDU that can be read (``Problem.ASIDE``)."""
        return None if self.problem is Problem.ASIDE else decode(self.pdu)

    def at(self, time_ns: int) -> Frame:
        """The same frame at another time."""
        return replace(self, time_ns=time_ns)

    @property
    def source_mac(self) -> bytes:
        """Sender's address; empty for cooked captures."""
        return self.data[6:12] if self.link == 1 else b""


@dataclass
class Selection:
    """The conditions, which all must hold; empty sets and None: anything."""

    ethertype: int = wire.ETHERTYPE
    kinds: frozenset[int] = frozenset()
    sources: frozenset[int] = frozenset()
    since_ns: int | None = None
    until_ns: int | None = None
    """Both inclusive, by the capturing machine's clock; frames without a time are not in any span."""
    base_ns: int | None = None
    """What the two count from if ``relative``; None: the first frame of ours in each file."""
    relative: bool = False
    seqs: tuple[int, int] | None = None
    """First and last, 32 bits; may wrap."""
    incarnation: int | None = None
    instance: int | None = None
    cluster: int | None = None
    group: int | None = None
    text: bytes | None = None
    bad: bool = False
    direction: int | None = None
    numbers: tuple[int, int] | None = None
    """First and last frame in the file."""

    def c_struct(self) -> tuple[Any, Any]:
        """struct zm_filter *, and the objects that must exist as long as it."""
        out = ffi.new("struct zm_filter *")
        out.from_ns = ANY_TIME[0] if self.since_ns is None else self.since_ns
        out.to_ns = ANY_TIME[1] if self.until_ns is None else self.until_ns
        out.kinds = sum(1 << kind for kind in self.kinds) if self.kinds else ALL
        out.sources = sum(1 << source - 1 for source in self.sources) if self.sources else ALL
        out.ethertype = self.ethertype
        use = lib.ZM_RELATIVE if self.relative else 0
        if self.base_ns is not None:
            out.base_ns, out.base_known = self.base_ns, 1
        for value, flag, name in (
            (self.cluster, lib.ZM_CLUSTER, "cluster"),
            (self.incarnation, lib.ZM_INCARNATION, "incarnation"),
            (self.instance, lib.ZM_INSTANCE, "instance"),
            (self.group, lib.ZM_GROUP, "group"),
            (self.direction, lib.ZM_DIRECTION, "direction"),
        ):
            if value is not None:
                use |= flag
                setattr(out, name, value)
        if self.seqs is not None:
            use |= lib.ZM_SEQ
            out.seq_first = self.seqs[0]
            out.seq_span = min((self.seqs[1] - self.seqs[0]) % SEQUENCE_NUMBERS + 1, SEQUENCE_NUMBERS - 1)
        if self.numbers is not None:
            use |= lib.ZM_FRAMES
            out.first_frame, out.last_frame = max(0, self.numbers[0]), self.numbers[1]
        keep = None
        if self.text is not None:
            use |= lib.ZM_TEXT
            keep = ffi.from_buffer(self.text)
            out.text, out.text_size = keep, len(self.text)
        out.use = use | (lib.ZM_BAD if self.bad else 0)
        return out, keep


@dataclass
class Track:
    """The PDU that is followed; one for each capture."""

    cluster: int
    src: int
    incarnation: int
    instance: int
    seq: int
    ethertype: int = wire.ETHERTYPE

    def c_struct(self) -> Any:
        return ffi.new(
            "struct zm_track *",
            {name: getattr(self, name) for name in ("ethertype", "cluster", "incarnation", "instance", "seq", "src")},
        )


def none_of(name: str, count: int, ethertype: int) -> str:
    """The message about a file of this number of frames, none of them zenjun's."""
    return f"{name}: 0 PDUs of EtherType {ethertype:#06x} in {count} {'frame' if count == 1 else 'frames'}"


def unreadable(name: str, count: int, link: int) -> CaptureDamage:
    """Of a file that has frames, but of a link layer that cannot be read."""
    frames = "its only frame" if count == 1 else f"all {count} frames"
    return CaptureDamage(name, 0, f"{frames} of link type {link}; only Ethernet, Linux cooked v1 and v2 can be read")


@dataclass
class Notes:
    """What went wrong with files that were read as far as possible; lines for people."""

    lines: list[str] = field(default_factory=list)
    damaged: int = 0
    """Files that could not be read to their end."""

    def damage(self, error: Exception) -> None:
        self.damaged += 1
        self.lines.append(str(error))

    def none(self, capture: Capture, ethertype: int, count: int, hit: Any) -> None:
        """There was no zenjun frame in a file of this number of frames; hit: the ``struct zm_hit`` that has looked for them."""
        if hit.unread and hit.unread == count:
            self.damage(unreadable(capture.name, count, int(hit.unread_link)))
            return
        self.lines.append(none_of(capture.name, count, ethertype))


def captures(
    paths: Sequence[str],
    stations: Mapping[str, int] | None = None,
    ethertype: int = wire.ETHERTYPE,
    *,
    pipes: bool = False,
    remarks: list[str] | None = None,
) -> list[Capture]:
    """The captures among files, folders and "-", with their stations: as given, else by their paths, else by what is in
    them. pipes: files that can be read once only will do. remarks: is given a line for each whose path says another. Raises
    FilesError for names that lead nowhere."""
    out: list[Capture] = []
    given = {str(Path(path)): number for path, number in (stations or {}).items()}
    for path in paths:
        once = path == "-" or (pipes and Path(path).exists() and not Path(path).is_dir() and not Path(path).is_file())
        for found in [path] if once else [str(p) for p in files.find([path])]:
            about = files.Capture(found, station=given.get(found) or (0 if once else files.station_of_path(found)))
            about.told = "given" if given.get(found) else "path" if about.station else ""
            if not once:
                with contextlib.suppress(OSError):
                    files.look(about, ethertype)
            if about.remark is not None and remarks is not None:
                remarks.append(about.remark)
            if not any(found == c.path for c in out):
                out.append(Capture(found, about.station, about.own_mac))
    for path in given:
        if not any(path == c.path for c in out):
            raise files.FilesError(f"{path}: --station names it, and it is not among the captures")
    return out


def no_capture(reader: Reader, capture: Capture) -> CaptureDamage | None:
    """The problem of a file that ended before its format was known."""
    if reader.walk.state.format != lib.ZP_UNKNOWN:
        return None
    what = "too short for a capture" if reader.tail_bytes else "the file is empty"
    return CaptureDamage(capture.name, 0, reader.cut or what)


def frames(
    capture: Capture, wanted: Selection | Track, notes: Notes, waiting: Callable[[], None] | None = None
) -> Iterator[Frame]:
    """Frames of one file that match, in its order. Damage, and a cut at the end, go to ``notes``. ``waiting`` is called before
    more of a pipe is read, which may take long. Raises OSError."""
    if isinstance(wanted, Selection):
        state, keep = wanted.c_struct()
        step = lib.zm_next
    else:
        state, keep, step = wanted.c_struct(), None, lib.zm_follow
    hit = ffi.new("struct zm_hit *")
    matched = 0
    with Reader(capture.path, own_mac=capture.own_mac) as reader:
        while True:
            result = step(reader.walk, state, hit)
            if result == lib.ZP_MORE:
                if waiting is not None:
                    waiting()
                if not reader.fill():
                    break
            elif result == lib.ZP_FULL:
                return
            elif result < 0:
                notes.damage(reader.fail(result))
                return
            else:
                matched += 1
                yield _frame(capture, hit)
        del keep
        if (nothing := no_capture(reader, capture)) is not None:
            notes.damage(nothing)
        elif reader.cut or reader.tail_bytes:
            why = reader.cut or "the last record is cut"
            notes.lines.append(f"{capture.name}: offset {reader.offset}: {why}; all before it was read")
        if nothing is None and not matched and not hit.skipped:
            notes.none(capture, wanted.ethertype, int(reader.walk.state.frame), hit)


def first_time(captures: Iterable[Capture], ethertype: int) -> int | None:
    """The earliest of the first time stamps in the files (not of pipes: reading them cannot be undone)."""
    times = []
    for capture in captures:
        if capture.path != "-" and Path(capture.path).is_file():
            first = next((f.time_ns for f in frames(capture, Selection(ethertype), Notes()) if f.time_ns is not None), None)
            times += [] if first is None else [first]
    return min(times, default=None)


def _frame(capture: Capture, hit: Any) -> Frame:
    f = hit.frame
    return Frame(
        capture,
        int(f.index),
        int(f.offset),
        int(f.time_ns) if f.has_time else None,
        int(hit.link.direction),
        int(f.link),
        bytes(ffi.buffer(f.data, f.captured)),
        int(f.wire),
        Problem(int(hit.problem)),
        int(hit.why),
        int(f.interface),
    )


def _timed(source: Iterable[Frame], correct: Correction | None, position: int) -> Iterator[tuple[int, int, int, Frame]]:
    last = ANY_TIME[0]
    for number, frame in enumerate(source):
        if frame.time_ns is not None:
            if correct is not None:
                frame = frame.at(correct(frame.capture.station, frame.time_ns))
            last = frame.time_ns if frame.time_ns is not None else last
        yield last, position, number, frame


def _in_order(sources: Sequence[Capture], ethertype: int) -> list[list[Capture]]:
    """The files of each station by their first times."""
    begins = {capture: first_time([capture], ethertype) or 0 for capture in sources}
    ordered = sorted(sources, key=lambda c: (c.station, begins[c], c.path))
    return [list(group) for _, group in itertools.groupby(ordered, key=lambda c: c.station)]


def merged(
    sources: Sequence[Capture],
    wanted: Selection | Track,
    notes: Notes,
    correct: Correction | None = None,
    waiting: Callable[[], None] | None = None,
) -> Iterator[Frame]:
    """Frames of all files by time; those without one follow the one before them in their file."""
    groups = [[capture] for capture in sources]
    if len(sources) > MERGED_MAX:
        groups = _in_order(sources, wanted.ethertype)
    streams = [
        _timed(itertools.chain.from_iterable(frames(c, wanted, notes, waiting) for c in group), correct, k)
        for k, group in enumerate(groups)
    ]
    for *_, frame in heapq.merge(*streams, key=lambda entry: entry[:3]):
        yield frame
