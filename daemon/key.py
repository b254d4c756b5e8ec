"""The cluster's key, which all stations share, in a file of their own.

With a key of 16 bytes every frame has a seal (``datapath/guard.c``), which hides nothing and can be sent again. With one of 32
bytes frames prove who sends them now (``datapath/sealed.c``), under keys that are derived here. Frames without are dropped and
counted. docs/protocol.md says what each keeps out.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..proto.errors import UsageError

KEY_BYTES: Final = 16
"""Of a key for seals."""
LONG_KEY_BYTES: Final = 32
"""Of a key for frames that prove their sender."""
CREDENTIAL: Final = "zenjun.key"
"""Name under which a service manager hands the key over: LoadCredential= of systemd.exec(5)."""
NO_KEY: Final = "none"
"""What the units hand over where there is no key: SetCredential= makes a missing file of LoadCredential= no error."""
_FILE_BYTES_MAX: Final = 4096


def new_text(size: int = KEY_BYTES) -> str:
    """A random key of so many bytes as the line that a key file holds."""
    return secrets.token_hex(size) + "\n"


def path_of(option: str, environ: Mapping[str, str]) -> Path | None:
    """The file to read: the option's, else the credential that the manager has put into $CREDENTIALS_DIRECTORY; None: no key."""
    if option:
        return Path(option)
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        return None
    found = Path(folder) / CREDENTIAL
    try:
        with found.open("rb") as file:
            given = file.read(_FILE_BYTES_MAX)
    except (FileNotFoundError, PermissionError):  # a manager that has loaded nothing leaves the folder closed to us
        return None
    except OSError:
        return found  # read() reports the error
    return None if given.strip() == NO_KEY.encode() else found


def closed_credentials(environ: Mapping[str, str]) -> str:
    """The folder of credentials if it is there and closed to us, else "". A key in it is not in force, which nobody would see:
    systemd in a container whose mounts are not shared (mount --make-rshared /) hands over such folders."""
    folder = environ.get("CREDENTIALS_DIRECTORY", "")
    closed = os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK)  # noqa: PTH112 - Path.is_dir raises for a closed parent
    return folder if folder and closed else ""


def read(path: Path) -> bytes:
    """The key in a file. Raises UsageError, one line that names the file and never what is in it."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)  # of the file that is read, whatever is there by now
            data = file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be read: {error.strerror or error}") from None
    if mode & 0o007:
        raise UsageError(f"the key file {path} is open to everybody (mode {mode:04o}): chmod 600 {path}")
    text = data.decode("ascii", "replace").strip()
    if len(text) not in (2 * KEY_BYTES, 2 * LONG_KEY_BYTES) or not set(text) <= set(string.hexdigits):
        sizes = f"{2 * KEY_BYTES} or {2 * LONG_KEY_BYTES}"
        raise UsageError(f"the key file {path} does not hold {sizes} hexadecimal digits (zenjun config key makes one)")
    return bytes.fromhex(text)


def mark(key: bytes) -> str:
    """What may be shown of a key, eight digits: equal at stations that have the same one."""
    return hashlib.blake2s(key, digest_size=4, person=b"zenjunky").hexdigest()


def hkdf(key: bytes, info: bytes) -> bytes:
    """HKDF-SHA-256 (RFC 5869) without salt: 32 bytes."""
    return hmac.digest(hmac.digest(bytes(32), key, "sha256"), info + b"\x01", "sha256")


def derived(key: bytes, purpose: str, cluster: str, *parts: bytes) -> bytes:
    """A key of 32 bytes for one purpose in one cluster. parts: each of a fixed length."""
    return hkdf(key, b"\0".join((purpose.encode(), cluster.encode(), *parts)))


def hello_key(key: bytes, cluster: str) -> bytes:
    """Of the tags of HELLO frames."""
    return derived(key, "zenjun 80 hello", cluster)


def sending_key(key: bytes, cluster: str, session: bytes, suite: int) -> bytes:
    """Under which the frames of a session are sealed."""
    return derived(key, "zenjun 80 send", cluster, session, bytes([suite]))
