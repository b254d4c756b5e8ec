"""What frames carry besides their PDU, as a ``DataPath`` is told to make and check it (``guard.c``, ``sealed.c``)."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ._datapath import ffi, lib
from .vault import Derived, SecretKey, Vault, lent

KEY_BYTES: Final[int] = lib.DP_KEY_BYTES
SEAL_BYTES: Final[int] = lib.DP_SEAL_BYTES
"""Behind every PDU of a cluster that has a key of KEY_BYTES."""
SESSION_KEY_BYTES: Final = 32


class Sealing(NamedTuple):
    """How frames prove their sender (``struct dp_config``, guard SESSIONS)."""

    stations: int
    suite: int
    """``Suite`` of proto/envelope.py, and ``ENCRYPTED``."""
    hello_key: bytes | Derived
    """SESSION_KEY_BYTES."""
    pause_ns: int
    hello_id: int = 0
    """Of the key that ``hello_key`` is made of."""


def seal(key: bytes, pdu: bytes) -> bytes:
    """The seal that follows a PDU in a frame: SipHash-2-4 of it, SEAL_BYTES, network byte order. key: KEY_BYTES."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes, not {KEY_BYTES}")
    return int(lib.dp_seal(key, pdu, len(pdu))).to_bytes(SEAL_BYTES, "big")


def guard_overhead(key: bytes | SecretKey, sealing: Sealing | None = None) -> int:
    """Bytes of a frame besides its PDU, as a ``DataPath`` with these makes them."""
    return int(lib.dp_overhead(_guard(key, sealing)))


def _guard(key: bytes | SecretKey, sealing: Sealing | None) -> int:
    if sealing is not None:
        return int(lib.DP_GUARD_SESSIONS)
    return int(lib.DP_GUARD_SIPHASH if key else lib.DP_GUARD_NONE)


@contextlib.contextmanager
def guarded(config: Any, key: bytes | SecretKey, sealing: Sealing | None) -> Iterator[SecretKey | None]:
    """The configuration has what its guard needs until the end of the ``with``; the key must be kept as long as the data path."""
    config.guard = _guard(key, sealing)
    if key and (size := len(key) if isinstance(key, bytes) else key.size) != KEY_BYTES:
        raise OSError(errno.EINVAL, f"a key of {size} bytes, not {KEY_BYTES}")
    kept = (Vault().put(key) if isinstance(key, bytes) else key) if key else None
    if kept is not None:
        config.key = kept.vault.pointer(kept)
    if sealing is None:
        yield kept
        return
    config.stations, config.suite, config.pause_ns = sealing.stations, sealing.suite, sealing.pause_ns
    with lent([sealing.hello_key]) as pointer:
        config.hello_key = ffi.from_buffer("uint8_t[]", pointer) if isinstance(pointer, bytes) else pointer
        config.hello_id = sealing.hello_id
        yield kept
