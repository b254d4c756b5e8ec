"""The keys of the cluster, which all stations share, in a file of their own.

With a key of 16 bytes every frame has a seal (``datapath/guard.c``), which hides nothing and can be sent again. With one of 32
bytes frames prove who sends them now (``datapath/sealed.c``), under keys that are derived here. Frames without are dropped and
counted. docs/protocol.md says what each keeps out.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ..proto.envelope import KEYS_MAX
from ..proto.errors import UsageError
from .durable import sync

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
        with found.open("rb", buffering=0) as file:
            given = file.read(len(NO_KEY) + 2) or b""  # not the whole of a key: that is the vault's to read
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


def read(path: Path) -> tuple[bytes, ...]:
    """The keys in a file, the newest one last: one of KEY_BYTES, or 1 to KEYS_MAX of LONG_KEY_BYTES, a line each, with a comment
    behind it or lines of comments (#). Raises UsageError, one line that names the file and never what is in it."""
    with opened(path) as fd, open(fd, "rb", closefd=False) as file:
        return parse(file.read(_FILE_BYTES_MAX + 1) or b"", f"the key file {path}")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """A key file's descriptor, if what it is and whose it is makes it one. Raises UsageError, also for
    an OSError in the ``with``."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is no reason to wait for ever
        about = os.fstat(fd)  # of the file that is read, whatever is there by now
        if why := _unfit(path, about):
            raise UsageError(why)
        yield fd
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be read: {error.strerror or error}") from None
    finally:
        if fd >= 0:
            os.close(fd)


def complaint(path: Path) -> tuple[str, str]:
    """What is wrong with a key file, as the daemon would say, and what could not be looked at because this process has not the
    rights; each empty: nothing. Whose the file is is looked at by the daemon alone, which may run as another user."""
    try:
        about = path.stat()
    except PermissionError:
        return "", f"the key file {path} was not looked at: its folder is closed to this user"
    except OSError as error:
        return f"the key file {path} cannot be read: {error.strerror or error}", ""
    if why := _unfit(path, about, any_owner=True):
        return why, ""
    try:
        parse(path.read_bytes()[: _FILE_BYTES_MAX + 1], f"the key file {path}")
    except PermissionError:
        return "", f"the keys in {path} were not looked at: this user may not read them"
    except (UsageError, OSError) as error:
        return str(error), ""
    return "", ""


def _unfit(path: Path, about: os.stat_result, *, any_owner: bool = False) -> str:
    """Why what a file is, whose it is, or who may open it, makes it no key file; empty: it may be one."""
    mode = stat.S_IMODE(about.st_mode)
    if not stat.S_ISREG(about.st_mode):
        return f"the key file {path} is no file"
    if not any_owner and about.st_uid not in (0, os.geteuid()):
        return f"the key file {path} belongs to uid {about.st_uid}, who could change it: chown root {path}"
    if mode & 0o007:
        return f"the key file {path} is open to everybody (mode {mode:04o}): chmod 600 {path}"
    if mode & 0o020:
        return f"the key file {path} can be changed by its group (mode {mode:04o}): chmod 640 {path}"
    return ""


def parse(data: bytes, what: str) -> tuple[bytes, ...]:
    """The keys in the bytes of a file. Raises UsageError that begins with ``what``."""
    lines = [(n, line.split()[0]) for n, line in enumerate(data.decode("ascii", "replace").splitlines(), 1) if line.strip()]
    lines = [(n, word) for n, word in lines if not word.startswith("#")]
    sizes = {2 * KEY_BYTES, 2 * LONG_KEY_BYTES} if len(lines) == 1 else {2 * LONG_KEY_BYTES}
    wrong = [n for n, word in lines if len(word) not in sizes or not set(word) <= set(string.hexdigits)]
    if len(data) > _FILE_BYTES_MAX or not lines or (wrong and len(lines) == 1):
        raise UsageError(no_key(what))
    if wrong:
        raise UsageError(bad_line(what, wrong[0]))
    keys = tuple(bytes.fromhex(word) for _, word in lines)
    if len(keys) > KEYS_MAX:
        raise UsageError(too_many(what, len(keys)))
    if len({mark(key) for key in keys}) < len(keys):
        raise UsageError(twice(what))
    return keys


def no_key(what: str) -> str:
    words = f"{2 * KEY_BYTES} or {2 * LONG_KEY_BYTES}"
    return f"{what} does not hold {words} hexadecimal digits (zenjun key new makes one)"


def bad_line(what: str, line: int) -> str:
    return f"{what}, line {line}: expected {2 * LONG_KEY_BYTES} hexadecimal digits, then a comment"


def too_many(what: str, count: int) -> str:
    return f"{what} holds {count} keys; expected at most {KEYS_MAX}"


def twice(what: str) -> str:
    return f"{what} holds a key twice"


def write(path: Path, text: str, mode: int = 0o600, owner: os.stat_result | None = None) -> None:
    """Replace a file as a whole, durably. Raises OSError; then the old one is there as before."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="ascii") as file:  # noqa: PTH123 - a descriptor
            if owner is not None and (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, owner.st_uid, owner.st_gid)
            os.fchmod(fd, mode)
            file.write(text)
            file.flush()
            os.fsync(fd)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def mark(key: bytes) -> str:
    """What may be shown of a key, eight digits: equal at stations that have the same one."""
    return hashlib.blake2s(key, digest_size=4, person=b"zenjunky").hexdigest()


def identity(key: bytes) -> int:
    """Its mark as a number: what HELLO says of it."""
    return int(mark(key), 16)


def hkdf(key: bytes, info: bytes) -> bytes:
    """HKDF-SHA-256 (RFC 5869) without salt: 32 bytes."""
    return hmac.digest(hmac.digest(bytes(32), key, "sha256"), info + b"\x01", "sha256")


def info_of(purpose: str, cluster: str, *parts: bytes) -> bytes:
    """Of HKDF for one purpose in one cluster. parts: each of a fixed length."""
    return b"\0".join((purpose.encode(), cluster.encode(), *parts))


def hello_info(cluster: str) -> bytes:
    """Of ``hello_key``."""
    return info_of("zenjun 80 hello", cluster)


def sending_info(cluster: str, session: bytes, suite: int) -> bytes:
    """Of ``sending_key``."""
    return info_of("zenjun 80 send", cluster, session, bytes([suite]))


def hello_key(key: bytes, cluster: str) -> bytes:
    """Of the tags of HELLO frames. For tools and tests, as is the next one: a daemon's vault derives them."""
    return hkdf(key, hello_info(cluster))


def sending_key(key: bytes, cluster: str, session: bytes, suite: int) -> bytes:
    """Under which the frames of a session are sealed."""
    return hkdf(key, sending_info(cluster, session, suite))
