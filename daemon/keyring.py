"""The keys that a station has: those of its file, those that an operator hands over, less those that were retired.

The ids of retired keys are kept in the state folder, because the file with the keys is often a copy that the service manager has
made, and only the operator can take a key out of the original.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ..proto.envelope import KEYS_MAX
from ..proto.errors import UsageError
from . import key
from .datapath.vault import BAD_LINE, TOO_MANY, TWICE, SecretKey, Vault, WrongFile
from .key import LONG_KEY_BYTES, identity

_PR_SET_DUMPABLE: Final = 4
RETIRED_NAME: Final = "retired-keys"
RETIRED_MAX: Final = 1000
"""Ids kept; older ones are forgotten."""


class Keyring:
    """One station's. Keys are never shown: ids are."""

    def __init__(self, path: Path | None, folder: Path) -> None:
        """path: of the key file, None: there is none; folder: the state's. Raises UsageError: the file is wrong, or all its keys
        are retired."""
        self.path = path
        self._folder = folder
        self.retired = retired_in(folder)
        """Ids, the last one retired last."""
        self.vault = Vault()
        self.keys: dict[int, SecretKey] = {}
        """By id, the newest one last."""
        if path is not None:
            self.hold(self.read())

    @property
    def newest(self) -> SecretKey | None:
        return next(reversed(self.keys.values())) if self.keys else None

    def hold(self, keys: dict[int, SecretKey]) -> None:
        """These from now on: others that the vault has are zeroed."""
        self.keys = keys
        self.vault.only(keys.values())

    def read(self) -> dict[int, SecretKey]:
        """What the file has now and was not retired. Raises UsageError."""
        if self.path is None:
            raise UsageError("this station has no key file")
        found = {secret.id: secret for secret in self._read(self.path)}
        left = {i: secret for i, secret in found.items() if i not in self.retired}
        if not left:
            raise UsageError(f"the key file {self.path} holds retired keys only: {', '.join(f'{i:08x}' for i in found)}")
        return left

    def _read(self, path: Path) -> tuple[SecretKey, ...]:
        what = f"the key file {path}"
        with key.opened(path) as fd:
            try:
                return self.vault.read(fd)
            except WrongFile as wrong:
                why = {
                    BAD_LINE: key.bad_line(what, wrong.line),
                    TOO_MANY: key.too_many(what, wrong.count),
                    TWICE: key.twice(what),
                }.get(wrong.problem, key.no_key(what))
        self.vault.only(self.keys.values())
        raise UsageError(why)

    def with_key(self, text: str) -> dict[int, SecretKey]:
        """These keys and one more, the newest. Raises UsageError, one line without the key."""
        try:
            secret = bytes.fromhex(text)
        except ValueError:
            secret = b""
        if len(secret) != LONG_KEY_BYTES:
            raise UsageError(f"a key has {2 * LONG_KEY_BYTES} hexadecimal digits")
        if (i := identity(secret)) in self.retired:
            raise UsageError(f"key {i:08x} was retired")
        if i not in self.keys and len(self.keys) >= KEYS_MAX:
            raise UsageError(f"this station has {KEYS_MAX} keys: retire one first")
        return {**self.keys, i: self.vault.put(secret)}

    def retire(self, i: int) -> None:
        """Forget a key for good: durable when it returns. Raises OSError."""
        self.hold({known: secret for known, secret in self.keys.items() if known != i})
        self.retired = [*(known for known in self.retired if known != i), i][-RETIRED_MAX:]
        key.write(self._folder / RETIRED_NAME, "".join(f"{known:08x}\n" for known in self.retired))


def retired_in(folder: Path) -> list[int]:
    """Ids of the keys that were retired, by the state folder. Raises UsageError."""
    path = folder / RETIRED_NAME
    try:
        return [int(word, 16) for word in path.read_text("ascii").split()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}") from None


def forbid_core_dumps() -> None:
    """A core dump would have the keys in it."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def add_to(path: Path, text: str, retired: Iterable[int] = ()) -> int:
    """Append a key to a file, or make it, and remove those that are retired; returns its id. The file is replaced as a whole.
    Raises UsageError, OSError."""
    secret = key.parse(text.encode(), "what was given")
    if len(secret) != 1 or len(secret[0]) != LONG_KEY_BYTES:
        raise UsageError(f"expected one key of {2 * LONG_KEY_BYTES} hexadecimal digits")
    before = path.read_text("ascii") if path.exists() else ""
    present = key.read(path) if before else ()
    if any(len(known) != LONG_KEY_BYTES for known in present):
        raise UsageError(f"the key file {path} holds a key of 32 digits, which makes seals: stop all stations to change to 64")
    if secret[0] not in present:
        for i in {identity(known) for known in present} & set(retired):
            take_from(path, i)
        before, present = (path.read_text("ascii"), key.read(path)) if before else ("", ())
        if len(present) >= KEYS_MAX:
            raise UsageError(f"the key file {path} holds {KEYS_MAX} keys: zenjun key retire one first")
        mode, owner = (path.stat().st_mode & 0o777, path.stat()) if before else (0o600, None)
        end = "" if not before or before.endswith("\n") else "\n"
        key.write(path, before + end + secret[0].hex() + "\n", mode, owner)
    return identity(secret[0])


def take_from(path: Path, i: int) -> bool:
    """Remove a key from a file; False: it is not there, or is the only one. Raises UsageError, OSError."""
    present = key.read(path)
    if all(identity(known) != i for known in present) or len(present) == 1:
        return False
    about = path.stat()
    lines = path.read_text("ascii").splitlines(keepends=True)
    kept = [line for line in lines if not _is_key(line, i)]
    key.write(path, "".join(kept), about.st_mode & 0o777, about)
    return True


def _is_key(line: str, i: int) -> bool:
    words = line.split()
    return bool(words) and not words[0].startswith("#") and identity(bytes.fromhex(words[0])) == i
