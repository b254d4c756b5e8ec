"""What a program gives for state transfer: its state, snapshots of it, and a state being restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from .transferwire import UNKNOWN, Have, Place, Who

__all__ = ["Have", "Offer", "Place", "Restore", "Snapshot", "Starting", "State", "Who"]

Chunks: TypeAlias = Iterable[tuple[bytes, bytes]]
"""(key, data) of each chunk. A key is 1 to 64 bytes and comes once. Data is 0 bytes to 4 MiB."""


@dataclass(slots=True)
class Snapshot:
    """A frozen copy of the state, read in pieces while the program continues.

    chunks: read once, in turn, as the joiner fetches; a generator that reads a file keeps nothing in memory.
    read:   any chunk's data by its key, any number of times. With it a second donor can serve chunks that the first one listed;
            KeyError: there is no such chunk.
    delta:  only what has changed since the joiner's ``have``. A delta must come with a digest, else it is not used.
    digest: of the whole state (with a delta, of the state after it), 1 to 64 bytes; None: not known. Two donors whose digests
            differ at one place have diverged. A digest that takes long is given as a function: it is called in a thread while the
            program continues, so it may read only the frozen copy.
    count, size: number of chunks and of bytes, for progress; -1: not known.
    close:  called once when the snapshot is no longer needed.
    """

    chunks: Chunks
    read: Callable[[bytes], bytes] | None = None
    delta: bool = False
    digest: bytes | Callable[[], bytes | None] | None = None
    count: int = UNKNOWN
    size: int = UNKNOWN
    close: Callable[[], None] | None = None


class Offer(NamedTuple):
    """A donor's offer, for the state being restored.

    place: the state contains the group's messages up to here. delta, digest, chunks (their number), size: as in the ``Snapshot``.
    """

    place: Place
    donor: Who
    delta: bool
    digest: bytes | None
    chunks: int
    size: int


class Restore(Protocol):
    """A state being built beside the old one. The old state stays until ``commit``.

    Chunks come in any order. A chunk that comes again under the same key replaces the former one.
    """

    def kept(self) -> Iterable[tuple[bytes, bytes]]:
        """(key, BLAKE2b-128 of the data) of chunks that are here already, from a transfer that a restart has cut short."""

    def chunk(self, key: bytes, data: bytes) -> None:
        """One chunk. What it raises ends the transfer, and the join fails with it."""

    def drop(self, key: bytes) -> None:
        """The chunk ``key`` is not part of the state: an earlier donor listed it, or ``kept`` named it."""

    def end(self) -> bytes | None:
        """All chunks are here: the digest of the state that ``commit`` would make; None: not computed."""

    def commit(self, offer: Offer) -> None:
        """Replace the old state. The next message to be applied is the first one after ``offer.place``."""

    def abort(self) -> None:
        """Drop what was built; the old state stays."""


class State(Protocol):
    """A program's state. All methods are called from within the program's own calls to the library (asyncio: from its loop)."""

    def have(self) -> Have | None:
        """What the state is now; None: blank, as it is when the program runs for the first time."""

    def snapshot(self, place: Place, have: Have | None) -> Snapshot:
        """A snapshot of the state as it is now. place: of the last message that the program can have read. have: what the joiner
        has, from its ``have``."""

    def restore(self, offer: Offer) -> Restore:
        """Begin to build a state."""


@runtime_checkable
class Gated(Protocol):
    """An optional method of a state: it decides when the group may be asked for the state."""

    def may_ask(self) -> bool:
        """The library needs the state. False: not now; the program reports when (``Transfer.allow``)."""


@runtime_checkable
class Starting(Protocol):
    """An optional method of a state, called when the state becomes the group's without a transfer from another member."""

    def start(self, place: Place, members: tuple[Who, ...]) -> None:
        """A START at ``place`` has made this state the group's. members: those of the group then, the same at each of them."""
