"""The keys of the cluster, in one locked block of memory that C keeps (``vault.c``). Python has their places, ids and sizes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ._datapath import ffi, lib

NO_KEY: Final = int(lib.DP_VAULT_NO_KEY)
BAD_LINE: Final = int(lib.DP_VAULT_BAD_LINE)
TOO_MANY: Final = int(lib.DP_VAULT_TOO_MANY)
TWICE: Final = int(lib.DP_VAULT_TWICE)


class WrongFile(Exception):
    """What is wrong with a key file: one of the numbers above; the line, from 1, for BAD_LINE, how many keys for TOO_MANY."""

    def __init__(self, problem: int, line: int, count: int) -> None:
        super().__init__(f"problem {problem} of a key file")
        self.problem, self.line, self.count = problem, line, count


class SecretKey(NamedTuple):
    """A key that C keeps; falsy is no key at all (``None``)."""

    vault: Vault
    place: int
    size: int
    """Bytes."""
    id: int
    """``identity`` of daemon/key.py."""

    def __repr__(self) -> str:
        return f"SecretKey({self.id:08x})"


class Derived(NamedTuple):
    """What is derived of a key of 32 bytes: HKDF-SHA-256 with this info."""

    key: SecretKey
    info: bytes


class Vault:
    """One station's."""

    def __init__(self) -> None:
        """Raises MemoryError."""
        made = lib.dp_vault_new()
        if made == ffi.NULL:
            raise MemoryError("no memory for keys")
        self._vault = ffi.gc(made, lib.dp_vault_free)

    @property
    def is_locked(self) -> bool:
        """Whether the kernel keeps the block from being swapped out: RLIMIT_MEMLOCK may forbid that."""
        return bool(lib.dp_vault_locked(self._vault))

    def read(self, fd: int) -> tuple[SecretKey, ...]:
        """The keys in a file, the newest one last; they are kept until ``only``. Raises WrongFile, OSError."""
        out = ffi.new("struct dp_vault_file *")
        result = int(lib.dp_vault_read(self._vault, fd, out))
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        if result:
            raise WrongFile(result, int(out.line), int(out.count))
        return tuple(self._told(out.key[i]) for i in range(out.count))

    def put(self, secret: bytes) -> SecretKey:
        """A key that has come in another way. Raises OSError: EINVAL neither 16 nor 32 bytes, ENOSPC."""
        out = ffi.new("struct dp_vault_key *")
        result = int(lib.dp_vault_put(self._vault, secret, len(secret), out))
        if result:
            raise OSError(-result, os.strerror(-result))
        return self._told(out)

    def only(self, keys: Iterable[SecretKey]) -> None:
        """Zero all others."""
        lib.dp_vault_only(self._vault, sum({1 << key.place for key in keys}))

    def pointer(self, key: SecretKey) -> Any:
        """Where C finds it, as long as it is kept."""
        return lib.dp_vault_key(self._vault, key.place)

    @contextlib.contextmanager
    def derive(self, wanted: Sequence[Derived]) -> Iterator[Any]:
        """A pointer to what is derived, 32 bytes each, in the block, until the end of the ``with``. At most eight. Raises
        OSError: ENOTSUP libcrypto lacks what it takes."""
        try:
            for to, each in enumerate(wanted):
                result = int(lib.dp_vault_derive(self._vault, each.key.place, each.info, len(each.info), to))
                if result:
                    raise OSError(-result, os.strerror(-result))
            yield lib.dp_vault_derived(self._vault)
        finally:
            lib.dp_vault_wipe(self._vault)

    def _told(self, key: Any) -> SecretKey:
        return SecretKey(self, int(key.place), int(key.size), int(key.id))


@contextlib.contextmanager
def lent(keys: Sequence[bytes | Derived]) -> Iterator[Any]:
    """What C takes for these keys, one behind the other: all derived of one vault's, or (in tests and tools) all bytes."""
    derived = [key for key in keys if isinstance(key, Derived)]
    if derived:
        with derived[0].key.vault.derive(derived) as pointer:
            yield pointer
    else:
        yield b"".join(key for key in keys if isinstance(key, bytes))
