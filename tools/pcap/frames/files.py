"""Capture files: finding them, whose they are, whether they are whole, and ranges of them that can be read apart."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ....proto import wire
from ..native import CaptureDamage, Reader, ffi, lib

SPLIT_BYTES: Final = 32 << 20
"""Bytes of a split: some tenths of a second of work, so that progress is seen and all cores end together."""
_NAME: Final = re.compile(r"\.(pcap|pcapng|cap)\d*([-.]\d+)?(\.(gz|zst|zstd))?$", re.IGNORECASE)
"""Also the suffixes of rotation: .1, -20261128."""
_HEADS: Final = frozenset({"a1b2c3d4", "d4c3b2a1", "a1b23c4d", "4d3cb2a1", "0a0d0d0a"})
"""How captures begin, packed ones aside."""
_STATION_WORD: Final = re.compile(r"(?:^|[^a-z0-9])(?:s|st|station|node)[-_ ]?0*([1-9]\d?)(?!\d)", re.IGNORECASE)
_STATION_BARE: Final = re.compile(r"^0*([1-9]\d?)(?:\.|$)")
_CENSUS_PDUS: Final = 2000
_CENSUS_BYTES: Final = 64 << 20
"""Bytes of a file that are read to find its station."""
_INT64_MAX: Final = (1 << 63) - 1
_LINKS: Final = ((1, "ethernet"), (2, "linux_sll"), (4, "linux_sll2"), (8, "other"))


_OVERLAP_NS: Final = 10_000_000
"""Files that follow each other may overlap by as much as a frame waits to be written."""

State = bytes
"""What a reader must know of the part of a file before its range (``Reader.state``)."""


class FilesError(Exception):
    """What the user named cannot be used at all; one line for people."""


@dataclass(frozen=True, slots=True)
class Split:
    """A range of a capture between two record borders, with what its reader must know of the part before it."""

    path: str
    file: int
    station: int
    number: int
    """Which split of its file, from 0."""
    start: int
    end: int | None
    """Offsets in the unpacked file; None: to the end."""
    state: bytes
    first_ns: int | None = None
    last_ns: int | None = None
    """Least and greatest time stamp in it."""


@dataclass
class Capture:
    """One capture file after the scan. Bytes are those of the file, offsets those of the unpacked one."""

    path: str
    file: int = 0
    """Its number in the tables."""
    station: int = 0
    """Whose capture it is, 1..64; 0: not known."""
    told: str = ""
    """The source of that: ``given`` (by the user), ``frames`` (outgoing ones) or ``path``."""
    remark: str | None = None
    """What speaks against it, in one line with the path."""
    own_mac: int = 0
    """Address that the station sends from; 0: not known or not needed."""
    format: str = ""
    link_types: str = ""
    frames: int = 0
    bytes: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    ours: bool = False
    """Whether there are frames of our EtherType in it."""
    cut: bool = False
    """Whether some of them are cut by the snap length."""
    several: bool = False
    """Whether those of one direction were captured on several interfaces: a bridge and its port, a bond and its slave."""
    pairs: bool = False
    """Whether there are frames of links of two stations (header flag PAIR)."""
    truncated: bool = False
    tail_bytes: int = 0
    problem: str | None = None
    """The problem, in one line with path and offset; what precedes that place is used."""
    splits: list[Split] = field(default_factory=list)
    splits_before: int = 0
    """Splits that earlier scans have given."""
    end: int = 0
    """Offset after the last whole record."""
    end_state: State = b""

    def reader(self) -> Reader:
        """Over the whole file, up to where it is good. Raises OSError."""
        return Reader(self.path, own_mac=self.own_mac)


def find(names: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The capture files among *names*: files as they are, folders searched for files called *.pcap, *.pcapng or *.cap (followed
    by a number, .gz or .zst). Each file once, sorted within its folder. Raises FilesError."""
    found: dict[Path, None] = {}
    for name in names:
        path = Path(name)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if _NAME.search(p.name) and p.is_file())
            if not inside:
                raise FilesError(f"{path}: no capture in this folder (*.pcap, *.pcapng, *.cap, also with .gz or .zst)")
            found.update(dict.fromkeys(inside))
        elif path.is_file():
            found[path] = None
        elif path.exists():
            raise FilesError(f"{path}: no regular file; captures are read more than once: save it first")
        else:
            raise FilesError(f"{path}: no such file or folder")
    if not found:
        raise FilesError("no capture given")
    return list(found)


def station_of_path(path: str | os.PathLike[str]) -> int:
    """The station a path names (s1, station-1, node_1 in the file's name or the nearest folder's, or 1.pcapng), 0: none."""
    parts = Path(path).absolute().parts[::-1][:3]
    for part in parts:
        if word := _STATION_WORD.search(part):
            return _valid(int(word[1]))
    for part in parts[:2]:
        if bare := _STATION_BARE.search(part):
            return _valid(int(bare[1]))
    return 0


def _valid(station: int) -> int:
    return station if 1 <= station <= wire.STATIONS_MAX else 0


def look(capture: Capture, ethertype: int = wire.ETHERTYPE) -> None:
    """By its first frames: set its station, unless that is given, and own address, if directions are missing. What goes out of a
    machine decides; a path is only believed where nothing contradicts it (``remark``). Raises OSError."""
    census = ffi.new("struct zp_census *")
    with Reader(capture.path) as reader:
        while reader.offset < _CENSUS_BYTES:
            result = lib.zp_census(reader.walk, ethertype, _CENSUS_PDUS, census)
            if result != lib.ZP_MORE or not reader.fill():
                break
    sent = list(census.out)
    # DATA and votes are repeated by others, too: they identify the machine only where no other frame goes out and no path does.
    own = list(census.own)
    _decide(capture, own if any(own) or capture.station else sent, max(census.n))
    if capture.station and not any(sent) and census.weight[capture.station - 1]:
        capture.own_mac = int(census.mac[capture.station - 1]) & ((1 << 48) - 1)


def _decide(capture: Capture, sent: Sequence[int], stations_max: int) -> None:
    """sent: frames that go out, by source. stations_max: of the clusters that are heard, 0: none."""
    said, most = capture.station, max(sent)
    sender = 1 + sent.index(most) if most else 0
    if said and 2 * most <= sum(sent):
        sender = 0  # PDUs of others may be sent again for them; then it is not plain
    if capture.told == "given":
        if sender and said != sender:
            capture.remark = f"{capture.path}: was given as station {said}'s, but the frames that go out are station {sender}'s"
    elif sender:
        if said and said != sender:
            capture.remark = (
                f"{capture.path}: taken for station {sender}'s, whose frames go out, though the path seems to say station {said}"
            )
        capture.station, capture.told = sender, "frames"
    elif said and stations_max and said > stations_max:
        capture.station, capture.told = 0, ""
        capture.remark = f"{capture.path}: the path seems to say station {said}, but the cluster has {stations_max} stations"


def scan(
    path: str | os.PathLike[str],
    *,
    station: int = 0,
    told: str = "given",
    ethertype: int = wire.ETHERTYPE,
    split_bytes: int = SPLIT_BYTES,
    start: Capture | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Capture:
    """Read all record headers of a file: whether it is complete, its contents, and where it can be split. Never raises for the
    contents: see ``Capture.problem``. station, told: as in ``Capture``. start: an earlier result; only what has been added since
    is read, and only its splits are given. on_bytes: called with the bytes done since the last call."""
    capture = Capture(os.fspath(path), station=station, told=told if station else "")
    try:
        capture.bytes = Path(path).stat().st_size
        if start is None:
            look(capture, ethertype)
        else:
            capture = replace(start, bytes=capture.bytes, splits=[], truncated=False, tail_bytes=0, problem=None)
            capture.splits_before += len(start.splits)
        with Reader(path, capture.end, None, capture.end_state, own_mac=capture.own_mac) as reader:
            _scan(reader, capture, ethertype, split_bytes, on_bytes)
    except OSError as error:
        capture.problem = f"{capture.path}: {error.strerror or error}"
    return capture


def _scan(reader: Reader, capture: Capture, ethertype: int, split_bytes: int, on_bytes: Callable[[int], None] | None) -> None:
    splittable = not reader.compression
    at, state = reader.offset, reader.state()
    border, told = at + split_bytes, at
    links = 0

    def fresh(seen: Sequence[int] = (0, 0, 0)) -> Any:
        return ffi.new("struct zp_scan *", {"first_ns": _INT64_MAX, "last_ns": -_INT64_MAX - 1, "seen": list(seen)})

    totals = fresh()

    def cut() -> None:
        """What has been scanned since the last border is a split."""
        nonlocal at, state, border, totals, links
        capture.frames += int(totals.frames)
        links |= int(totals.links)
        first, last = (int(totals.first_ns), int(totals.last_ns)) if totals.timed else (None, None)
        if first is not None and last is not None:
            capture.first_ns = first if capture.first_ns is None else min(first, capture.first_ns)
            capture.last_ns = last if capture.last_ns is None else max(last, capture.last_ns)
        number = capture.splits_before + len(capture.splits)
        if reader.offset > at:
            split = Split(capture.path, capture.file, capture.station, number, at, reader.offset, state, first, last)
            capture.splits.append(split)
        at, state = reader.offset, reader.state()
        border = at + split_bytes
        totals = fresh(totals.seen)

    damage: CaptureDamage | None = None
    while True:
        result = lib.zp_scan(reader.walk, border if splittable else _INT64_MAX, ethertype, totals)
        if result == lib.ZP_BORDER:
            cut()
        elif result < 0:
            damage = reader.fail(result)
            break
        elif not reader.fill():
            break
        elif on_bytes is not None and splittable:
            on_bytes(reader.offset - told)
            told = reader.offset
    if on_bytes is not None:
        on_bytes(reader.offset - told if splittable else capture.bytes)
    cut()
    known = set(capture.link_types.split()) | {name for bit, name in _LINKS if links & bit}
    capture.link_types = " ".join(name for _, name in _LINKS if name in known)
    capture.ours = capture.ours or bool(links & 16)
    capture.cut = capture.cut or bool(links & 32)
    capture.several = capture.several or bool(links & 64)
    capture.pairs = capture.pairs or bool(links & 128)
    capture.end, capture.end_state = reader.offset, reader.state()
    kinds = {lib.ZP_PCAP: "pcap", lib.ZP_PCAPNG: "pcapng"}
    capture.format = " ".join(filter(None, (kinds.get(int(reader.walk.state.format), ""), reader.compression)))
    capture.tail_bytes = 0 if damage else reader.tail_bytes
    capture.truncated = bool(capture.tail_bytes or reader.cut)
    if damage is not None:
        capture.problem = str(damage)
    elif reader.walk.state.format == lib.ZP_UNKNOWN or not capture.end:
        size = reader.tail_bytes
        what = f"cut in the file's header, after {size} bytes" if size else "the file is empty"
        capture.problem = f"{capture.path}: offset 0: {reader.cut or what}"


def between(path: str, start: int, end: int, state: State, split_bytes: int = SPLIT_BYTES, *, own_mac: int = 0) -> list[Split]:
    """Splits of the part of a file between two record borders that an earlier scan has given. Raises OSError, CaptureDamage."""
    capture = Capture(path)
    with Reader(path, start, end, state, own_mac=own_mac) as reader:
        _scan(reader, capture, wire.ETHERTYPE, split_bytes, None)
    return capture.splits


def stations(captures: Sequence[Capture], given: Mapping[str, int]) -> None:
    """Set ``station`` from *given* (path or folder as named by the user → station), else from the path."""
    places = {Path(name).absolute(): station for name, station in given.items()}
    for capture in captures:
        path = Path(capture.path).absolute()
        chosen = [places[p] for p in (path, *path.parents) if p in places]
        capture.station = chosen[0] if chosen else station_of_path(path)
        capture.told = "given" if chosen else "path" if capture.station else ""


def gather(
    names: Iterable[str | os.PathLike[str]],
    *,
    stations_given: Mapping[str, int] | None = None,
    ethertype: int = wire.ETHERTYPE,
    split_bytes: int = SPLIT_BYTES,
    on_bytes: Callable[[int, int], None] | None = None,
) -> list[Capture]:
    """All captures of *names*, scanned, numbered from 0 by station and time of their first frame.

    stations_given: path (file or folder) → station, for files whose path does not show it. on_bytes: (done, total), from several
    threads. A file whose station is unknown, or that is damaged, has ``problem`` set. Raises FilesError."""
    captures = named(names, stations_given or {})
    return number(scan_all([(c, None) for c in captures], ethertype=ethertype, split_bytes=split_bytes, on_bytes=on_bytes))


def named(names: Iterable[str | os.PathLike[str]], given: Mapping[str, int]) -> list[Capture]:
    """The captures, not read yet, with the stations from *given* or their paths. Raises FilesError."""
    paths = find(names)
    for name, station in given.items():
        if not 1 <= station <= wire.STATIONS_MAX:
            raise FilesError(f"station {station} is not 1..{wire.STATIONS_MAX}")
        if not Path(name).exists():
            raise FilesError(f"{name}: no such file or folder")
    captures = [Capture(os.fspath(path)) for path in paths]
    stations(captures, given)
    return captures


def scan_all(
    wanted: Sequence[tuple[Capture, Capture | None]],
    *,
    ethertype: int,
    split_bytes: int = SPLIT_BYTES,
    on_bytes: Callable[[int, int], None] | None = None,
) -> list[Capture]:
    """``scan`` of several files, a few at a time; the second of each pair is an earlier result to continue from, or None."""
    sizes = [Path(c.path).stat().st_size if Path(c.path).exists() else 0 for c, _ in wanted]
    total = sum(size - (start.end if start else 0) for size, (_, start) in zip(sizes, wanted, strict=True))
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        if on_bytes is not None:
            on_bytes(min(done, total), total)

    def one(pair: tuple[Capture, Capture | None]) -> Capture:
        capture, start = pair
        return scan(
            capture.path,
            station=capture.station,
            told=capture.told,
            ethertype=ethertype,
            split_bytes=split_bytes,
            start=start,
            on_bytes=step,
        )

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(one, wanted))


def number(captures: Sequence[Capture], first: int = 0) -> list[Capture]:
    """In the order of the tables, with file numbers from *first* on; files without a station are reported."""
    ordered = sorted(captures, key=lambda c: (c.station, c.first_ns if c.first_ns is not None else _INT64_MAX, c.path))
    for index, capture in enumerate(ordered, first):
        capture.file = index
        if not capture.station and capture.problem is None and capture.remark is not None:
            capture.problem, capture.remark = f"{capture.remark}: name it --station N={capture.path}", None
        if not capture.station and capture.problem is None:
            capture.problem = (
                f"{capture.path}: cannot tell which station's capture this is: name it --station N={capture.path}"
                if capture.ours
                else f"{capture.path}: none of its {capture.frames} frames is of this protocol, and its name says no station"
            )
        usable = bool(capture.station)
        capture.splits = [replace(s, file=index, station=capture.station) for s in capture.splits] if usable else []
    return ordered


def by_station(captures: Iterable[Capture]) -> dict[int, list[Capture]]:
    """Those whose station is known, by that, in the order of their first time stamps."""
    out: dict[int, list[Capture]] = {}
    for capture in sorted(captures, key=lambda c: (c.station, c.first_ns is None, c.first_ns or 0, c.path)):
        if capture.station:
            out.setdefault(capture.station, []).append(capture)
    return out


def remarks(captures: Sequence[Capture]) -> list[str]:
    """What people should know of whose captures these were taken for; one line each."""
    out = [c.remark for c in captures if c.remark is not None]
    out += [
        f"{c.path}: PDUs were captured on several interfaces (-i any?), so one transmission may be there several times: what is"
        " counted of it (sent again, lost) is too much; record on the station's interface alone"
        for c in captures
        if c.several and c.station
    ]
    for station, mine in by_station(captures).items():
        timed = [c for c in mine if c.first_ns is not None and c.last_ns is not None]
        for before, after in itertools.pairwise(timed):
            common = min(before.last_ns or 0, after.last_ns or 0) - (after.first_ns or 0)
            shorter = min((c.last_ns or 0) - (c.first_ns or 0) for c in (before, after))
            if common > min(_OVERLAP_NS, shorter // 2):
                out.append(
                    f"{before.path} and {after.path} are taken for one capture of station {station}, but they overlap in time:"
                    " frames in both count twice; if one is another station's, say so by --station N=FILE"
                )
    return out
