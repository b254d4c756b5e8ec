"""What a station keeps on disk over a restart: its incarnation and the highest instance number it has proposed or seen.

Rule M8 (docs/membership.md): a number is durable before the first frame that carries it may leave. ``persist`` is that
barrier: it writes a temporary file, syncs it, renames it over the old one and syncs the folder. A crash between any two of these
steps leaves either the old file or the new one, never a mixture. A checksum distinguishes a file that a disk or an editor has
damaged from one that is merely old; otherwise a wrong digit in a number would be believed.

*Our deviation from the papers*, which have a complete stop forget everything: a station whose state is gone takes its incarnation
from the wall clock (the only place in this project that reads it) and random bits, so that it is larger than any it used before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import itertools
import json
import os
import secrets
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..proto.changing import Stand
from .durable import sync

STATE_NAME: Final = "station.json"
LOCK_NAME: Final = "lock"
FORMAT: Final = 3
"""Of a state that holds more than the file says of the configuration. Versions that do not know it would go back to the file, and
could open beside the others; they refuse this format."""
FORMAT_OF_FILE: Final = 2
"""Of one that does not: earlier versions go on with it."""
FORMAT_UNCHECKED: Final = 1
"""The first format, without a checksum; still read, so that a station that is upgraded keeps its numbers."""
FIRST_START: Final = "there is no state yet"
"""Why an incarnation was made up, when the folder has never been used; any other reason is a loss."""
STATE_BYTES_MAX: Final = 64 * 1024
"""A state file is some 150 bytes; anything larger is not one of ours."""
INCARNATION_MAX: Final = 2**32 - 65537
"""The engine counts further up from here when an instance ends, so some room stays above."""
INSTANCE_MAX: Final = 2**32 - 1
CLOCK_EPOCH: Final = 1_704_067_200
"""2024-01-01 00:00 UTC, seconds: a clock before this is not set, and counting from here makes 32 bits last until 2058."""
RANDOM_BITS: Final = 2
"""Random low bits below the seconds: 2^30 s are 34 years. They distinguish two incarnations that lost their state in one
second."""
LOST_AHEAD_S: Final = 2
"""Amount by which the clock counts as ahead where a state is known to be lost: earlier incarnations, generated in this same
second and counted up since, then stay below."""


class StoreError(Exception):
    """The state folder cannot be used; the text is one line for the operator."""


DECIDING: Final = frozenset({"stations", "quorum", "required_stations"})
"""Options that say which stations may form an instance. With other ones of these, two parts of a cluster could be open at a time;
whatever else differs, any two parts that may be share a station."""


OTHER_CONFIGURATION: Final = frozenset({"conflict", "options", "stations"})
"""Kinds of notices that name a station with another configuration (proto/opening.py)."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The configuration of the cluster under which a station was in an instance last."""

    fingerprint: int
    """Of the options that must be equal in the whole cluster."""
    options: dict[str, str]
    """These options, as the fingerprint covers them."""

    def changes(self, fingerprint: int, options: dict[str, str]) -> dict[str, str]:
        """What another configuration changes, by option, in words for people. An option that only one of them knows is no
        change: it came or went with the software."""
        if fingerprint == self.fingerprint:
            return {}
        both = sorted(self.options.keys() & options.keys() | ({"key"} & (self.options.keys() | options.keys())))
        return {
            name: f"{name} was {self.options.get(name) or 'none'} and is {options.get(name) or 'none'}"
            for name in both
            if self.options.get(name) != options.get(name)
        }


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the folder held. ``lost`` is the reason why an incarnation had to be generated, None if the state was there."""

    incarnation: int
    """The previous incarnation (or a generated one): the new one must be larger."""
    instance: int
    """Highest instance number ever proposed or seen; 0 if none."""
    lost: str | None
    ran: Ran | None = None
    """None: it was in no instance yet, or its state was written by a version that did not note this."""
    stand: Stand | None = None
    """The configuration that was taken over while the cluster ran, and the mark; None: there was none yet."""


def fresh_incarnation(ahead_s: int = 0) -> int:
    """A number larger than any this station has used, without having remembered one: wall-clock seconds, *ahead_s* added, and
    random low bits.

    Incarnations with a state file count up by one, and a daemon does not restart four times a second for long, so the clock stays
    ahead. A clock that was never set (before 2024) gives a small number: peers that hold a larger one will name it.
    """
    seconds = max(0, int(time.time()) + ahead_s - CLOCK_EPOCH)
    return min(((seconds << RANDOM_BITS) | secrets.randbits(RANDOM_BITS)) + 1, INCARNATION_MAX - 2**17)


@dataclass(frozen=True, slots=True)
class Record:
    """The contents of a state file."""

    cluster: str
    station: int
    incarnation: int
    instance: int
    format: int = FORMAT_OF_FILE
    ran: Ran | None = None
    stand: Stand | None = None

    def encode(self) -> bytes:
        """The bytes of the file: one JSON object, for people to read, with a checksum of its values."""
        body: dict[str, Any] = {
            "format": self.format,
            "cluster": self.cluster,
            "station": self.station,
            "incarnation": self.incarnation,
            "instance": self.instance,
            "check": self._check(),
        }
        if self.ran is not None:  # versions that do not know this read the rest
            body["ran"] = {"fingerprint": f"{self.ran.fingerprint:08x}", "options": self.ran.options}
            body["ran_check"] = _check_of(body["ran"])
        if self.stand is not None:
            body["configuration"] = {
                "number": self.stand.number,
                "options": self.stand.options.decode(),
                "ballot": self.stand.ballot,
                "proposed": self.stand.proposed.decode(),
                "promise": self.stand.promise,
                "kept": self.stand.kept,
            }
            body["configuration_check"] = _check_of(body["configuration"])
        return (json.dumps(body, indent=1) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> Record:
        """From the bytes of a file. Raises ValueError if they are no record, or a damaged one. Values may be out of range; of a
        format that is not known only ``format`` means anything."""
        try:
            body = json.loads(data)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(body, dict):
            raise ValueError("no object")
        form = _whole(body.get("format"))
        if form not in (FORMAT, FORMAT_OF_FILE, FORMAT_UNCHECKED):
            return cls("", 0, 0, 0, form)
        cluster = body.get("cluster")
        if not isinstance(cluster, str):
            raise ValueError("no cluster")
        station, incarnation, instance = (_whole(body.get(name)) for name in ("station", "incarnation", "instance"))
        record = cls(cluster, station, incarnation, instance, form)
        if form != FORMAT_UNCHECKED and _whole(body.get("check")) != record._check():
            raise ValueError("wrong checksum")
        try:
            if "ran" in body:
                if body.get("ran_check") != _check_of(body["ran"]):
                    raise ValueError("wrong checksum")
                ran = Ran(int(body["ran"]["fingerprint"], 16), {str(k): str(v) for k, v in body["ran"]["options"].items()})
                record = dataclasses.replace(record, ran=ran)
            if "configuration" in body:
                told = body["configuration"]
                if body.get("configuration_check") != _check_of(told):
                    raise ValueError("wrong checksum")
                number, ballot, promise = (_whole(told[name]) for name in ("number", "ballot", "promise"))
                kept = _whole(told.get("kept", 0))  # format 2 of some versions has none
                stand = Stand(number, str(told["options"]).encode(), ballot, str(told["proposed"]).encode(), promise, kept)
                record = dataclasses.replace(record, stand=stand)
        except (TypeError, KeyError, AttributeError):
            raise ValueError("no configuration") from None
        return record

    def _check(self) -> int:
        text = f"{self.format} {self.station} {self.incarnation} {self.instance} {self.cluster}"
        return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def _check_of(value: Any) -> int:
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def _whole(value: Any) -> int:
    """An integer of JSON; true, 1.0 and "1" are none. Raises ValueError."""
    if type(value) is not int:
        raise ValueError(f"{value!r} is no integer")
    return value


class Store:
    """The state folder of one station; holds an exclusive lock on it while open."""

    def __init__(self, folder: Path, cluster: str, station: int) -> None:
        """``folder`` is created if it is missing (mode 0700); ``station`` is 1..n."""
        self._folder = folder
        self._cluster = cluster
        self._station = station
        self._lock_fd = -1
        self._used_before = False
        self._numbers = (0, 0)  # written or read last
        self.ran: Ran | None = None
        """The configuration that ``persist`` writes: the one that this station was in an instance under last."""
        self.present: Ran | None = None
        """The present one."""
        self.stand: Stand | None = None
        """As in ``Remembered``."""
        self.written = 0
        """Durable writes so far."""
        self.on_written: Callable[[int], None] = lambda began_ns: None
        """Called after each write, and after one that has failed, with its begin (monotonic)."""

    @property
    def path(self) -> Path:
        """The state file."""
        return self._folder / STATE_NAME

    def open(self) -> Remembered:
        """Lock the folder and read the state. Raises StoreError: no folder, locked by another daemon, another station's state."""
        try:
            self._make_folder()
        except OSError as exc:
            raise StoreError(f"cannot create the state folder {self._folder}: {exc.strerror}{_advice(exc)}") from exc
        self._lock()
        try:
            return self._read()
        except BaseException:
            self.close()
            raise

    def persist(self, incarnation: int, instance: int) -> None:
        """Make both numbers durable; when this returns they survive a power cut. Raises StoreError (full disk, no rights).

        On failure the previous state stays on disk, or the new one if only the folder could not be synced, and the temporary file
        is removed if possible. A caller that continued after a failure would send numbers that may be forgotten.
        """
        stand = self.stand
        is_more = stand is not None and bool(stand.number or stand.ballot or stand.promise or stand.kept)
        form = FORMAT if is_more else FORMAT_OF_FILE
        data = Record(self._cluster, self._station, incarnation, instance, form, self.ran, stand).encode()
        temporary = self._folder / (STATE_NAME + ".tmp")
        began = time.monotonic_ns()
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                self._give_away(fd)
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            temporary.rename(self.path)
            sync(self._folder)
        except OSError as exc:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StoreError(f"cannot write the state file {self.path}: {exc.strerror}{_advice(exc)}") from exc
        finally:
            self.on_written(began)
        self.written += 1
        self._numbers = (incarnation, instance)

    def explained(self, kind: str, message: str) -> str:
        """A notice for the journal. One about a station with another configuration gets what is known here of the difference:
        which of the own cluster options are others than those that this station was in an instance under last. If the other's
        fingerprint is that one, these options are what differs between the two stations."""
        if kind not in OTHER_CONFIGURATION or self.ran is None or self.present is None:
            return message
        changes = self.ran.changes(self.present.fingerprint, self.present.options)
        if not changes:
            return message
        return (
            f"{message}; this station was in an instance last under fingerprint {self.ran.fingerprint:08x}, and has"
            f" {self.present.fingerprint:08x} now: {', '.join(changes.values())}"
        )

    def note_ran(self) -> None:
        """This station is in an instance under its present configuration: durable when it returns. Writes only what is new.
        Raises StoreError."""
        if self.present is not None and self.present != self.ran:
            self.ran = self.present
            self.persist(*self._numbers)

    def keep(self, stand: Stand) -> None:
        """The configuration that was taken over, or the mark, is durable when this returns. Raises StoreError; then that of
        before counts."""
        before, self.stand = self.stand, stand
        try:
            self.persist(*self._numbers)
        except StoreError:
            self.stand = before
            raise

    def forget_ran(self) -> None:
        """The next start may be under any configuration, by the file; that there was a key stays noted, which ``forget_key``
        ends. Raises StoreError."""
        key = {} if self.ran is None else {name: value for name, value in self.ran.options.items() if name == "key"}
        self.ran = Ran(0, key) if key else None
        self.stand = None
        self.persist(*self._numbers)

    def forget_key(self) -> None:
        """The next start may be without a key; the other options stay noted. Raises StoreError."""
        if self.ran is not None:
            options = {name: value for name, value in self.ran.options.items() if name != "key"}
            self.ran = dataclasses.replace(self.ran, options=options)
            self.persist(*self._numbers)

    def close(self) -> None:
        """Give the lock up. Harmless when repeated."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # the lock goes with the descriptor, whatever close says of the pid in it
                os.close(fd)

    def _give_away(self, fd: int) -> None:
        """A file that root makes here, by a command, is the daemon's: else it could not be read at the next start."""
        folder = self._folder.stat()
        if os.geteuid() == 0 and folder.st_uid != 0:
            with contextlib.suppress(PermissionError):  # a root without that right
                os.fchown(fd, folder.st_uid, folder.st_gid)

    def _make_folder(self) -> None:
        """Make what is missing of the path, each name durable in the folder above it: else a power cut could take the state
        with the folder it is in. Raises OSError."""
        missing = [self._folder, *itertools.takewhile(lambda folder: not folder.exists(), self._folder.parents)]
        for folder in reversed(missing):
            try:
                folder.mkdir(mode=0o700 if folder is self._folder else 0o777)
            except FileExistsError:
                if not folder.is_dir():
                    raise
                continue
            with contextlib.suppress(PermissionError):  # we may write there and not read: nothing more can be done
                sync(folder.parent)

    def _lock(self) -> None:
        path = self._folder / LOCK_NAME
        try:
            self._used_before = path.exists()
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._give_away(fd)
        except OSError as exc:
            raise StoreError(f"cannot write in the state folder {self._folder}: {exc.strerror}{_advice(exc)}") from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            owner = _pid_in(fd)
            os.close(fd)
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                raise StoreError(f"cannot lock {path}: {exc.strerror}") from exc
            raise StoreError(f"the state folder {self._folder} is in use by pid {owner}: another zenjund runs on it") from None
        self._lock_fd = fd
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as exc:  # the lock holds without the number; a full disk will be reported by the first persist()
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
                self.close()
                raise StoreError(f"cannot write {path}: {exc.strerror}") from exc

    def _read(self) -> Remembered:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._made_up("the state file is gone" if self._used_before else FIRST_START)
        except OSError as exc:
            raise StoreError(f"cannot read the state file {self.path}: {exc.strerror}{_advice(exc)}") from exc
        try:
            data = os.read(fd, STATE_BYTES_MAX)
        except OSError as exc:
            raise StoreError(f"cannot read the state file {self.path}: {exc.strerror}") from exc
        finally:
            with contextlib.suppress(OSError):
                os.close(fd)
        try:
            record = Record.decode(data)
        except ValueError:  # rename made it whole once: the disk or somebody's hand damaged it
            return self._made_up("the state file is damaged")
        if record.format not in (FORMAT, FORMAT_OF_FILE, FORMAT_UNCHECKED):
            raise StoreError(f"the state file {self.path} has format {record.format}; this version reads format {FORMAT}")
        if (record.cluster, record.station) != (self._cluster, self._station):
            raise StoreError(
                f"the state in {self._folder} belongs to station {record.station} of cluster {record.cluster!r}, "
                f"not to station {self._station} of cluster {self._cluster!r}: use another state folder"
            )
        incarnation, instance = record.incarnation, record.instance
        if not (0 < incarnation < INCARNATION_MAX and 0 <= instance <= INSTANCE_MAX):
            return self._made_up("the state file holds numbers out of range")
        self._numbers, self.ran, self.stand = (incarnation, instance), record.ran, record.stand
        return Remembered(incarnation, instance, None, record.ran, record.stand)

    def _made_up(self, why: str) -> Remembered:
        return Remembered(fresh_incarnation(0 if why is FIRST_START else LOST_AHEAD_S), 0, why)


def _pid_in(fd: int) -> str:
    """The pid written in a lock file, ``unknown`` if there is none."""
    try:
        text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    except OSError:
        return "unknown"
    return text if text.isdigit() else "unknown"


def _advice(exc: OSError) -> str:
    if exc.errno in (errno.EACCES, errno.EPERM):
        return " (the folder must belong to the user that runs zenjund)"
    return ""
