"""Frames with an envelope, for who has the cluster's key: tags are checked, and what is hidden is read.

A session's key is made of the cluster's key and of the session, which HELLO has: a frame can be read once a HELLO of its session
has been seen. libcrypto is used by ctypes, as only files and screens wait for it.
"""

from __future__ import annotations

import ctypes
import hmac
from functools import cache
from pathlib import Path
from typing import Any, Final

from ....daemon.key import hello_key, identity, read, sending_key
from ....proto.envelope import ENCRYPTED, ENVELOPE, SESSION_BYTES, TAG_BYTES, VERSION, Envelope, Hello, Suite, What
from ....proto.errors import UsageError

_SET_TAG: Final = 0x11
_IV_BYTES: Final = 12
_LIBRARIES: Final = ("libcrypto.so.3", "libcrypto.so")
SESSIONS_MAX: Final = 10_000
"""Sessions that are remembered; more are no cluster's."""


class Unsealing:
    """The keys of a cluster, and the sessions that have been seen."""

    def __init__(self, path: Path, cluster: str) -> None:
        """path: of a key file; cluster: its name, which goes into the keys of sessions. Raises UsageError."""
        keys = {identity(key): key for key in read(path)}
        if any(len(key) != SESSION_BYTES for key in keys.values()):
            raise UsageError(f"the key file {path} holds a key of 32 digits: frames under it are not hidden")
        self._cluster = cluster
        self._keys = keys
        self._hello_keys = {i: hello_key(key, cluster) for i, key in keys.items()}
        self._sessions: dict[tuple[int, bytes, int], bytes] = {}
        self.crypto = _libcrypto()
        self.wrong = 0
        """Frames whose tag is wrong."""
        self.unknown = 0
        """Frames of a session whose HELLO has not been seen, or is under none of the keys."""

    def see(self, frame: bytes) -> bool:
        """Learn a session from a HELLO; False: it is none, or under none of the keys."""
        envelope = Envelope.read(frame)
        if envelope is None or envelope.version != VERSION or envelope.what != What.HELLO:
            return False
        end = ENVELOPE.size + envelope.length
        hello = Hello.read(envelope, frame[ENVELOPE.size : end])
        key = self._hello_keys.get(hello.key) if hello is not None else None
        if hello is None or key is None or hmac.digest(key, frame[:end], "sha256")[:TAG_BYTES] != frame[end : end + TAG_BYTES]:
            return False
        if len(self._sessions) < SESSIONS_MAX:
            secret = self._keys[hello.key]
            self._sessions.setdefault(
                (hello.tx, hello.session[:4], hello.suite), sending_key(secret, self._cluster, hello.session, hello.suite)
            )
        return True

    def open(self, frame: bytes) -> bytes | None:
        """The frame with a readable body, as an authenticated one has it; None: it is not sealed, of no known session, or its tag
        is wrong."""
        envelope = Envelope.read(frame)
        if envelope is None or envelope.version != VERSION or envelope.what not in (What.PDU, What.LINKS, What.PROBE, What.PIECE):
            return None
        end = ENVELOPE.size + envelope.length
        key = self._sessions.get((envelope.tx, envelope.session, envelope.suite))
        if key is None or end + TAG_BYTES > len(frame):
            self.unknown += 1
            return None
        is_hidden = bool(envelope.suite & ENCRYPTED)
        head, body, tag = frame[: ENVELOPE.size], frame[ENVELOPE.size : end], frame[end : end + TAG_BYTES]
        plain = self._decrypt(key, envelope.number, head if is_hidden else head + body, body if is_hidden else b"", tag)
        if plain is None:
            self.wrong += 1
            return None
        readable = bytearray(frame)
        readable[ENVELOPE.offset("suite")] = Suite.AES_256_GCM
        if is_hidden:
            readable[ENVELOPE.size : end] = plain
        return bytes(readable)

    def _decrypt(self, key: bytes, number: int, open_part: bytes, hidden: bytes, tag: bytes) -> bytes | None:
        """AES-256-GCM; None: the tag is wrong."""
        c, size = self.crypto, ctypes.c_int(0)
        context = c.EVP_CIPHER_CTX_new()
        out = ctypes.create_string_buffer(len(hidden) + TAG_BYTES)
        nonce = bytes(_IV_BYTES - 8) + number.to_bytes(8, "big")
        try:
            done = (
                c.EVP_DecryptInit_ex(context, c.EVP_aes_256_gcm(), None, key, nonce) == 1
                and c.EVP_DecryptUpdate(context, None, ctypes.byref(size), open_part, len(open_part)) == 1
                and (not hidden or c.EVP_DecryptUpdate(context, out, ctypes.byref(size), hidden, len(hidden)) == 1)
                and c.EVP_CIPHER_CTX_ctrl(context, _SET_TAG, TAG_BYTES, tag) == 1
                and c.EVP_DecryptFinal_ex(context, ctypes.create_string_buffer(TAG_BYTES), ctypes.byref(size)) == 1
            )
        finally:
            c.EVP_CIPHER_CTX_free(context)
        return out.raw[: len(hidden)] if done else None


@cache
def _libcrypto() -> Any:
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        for function in ("EVP_CIPHER_CTX_new", "EVP_aes_256_gcm"):
            getattr(library, function).restype = ctypes.c_void_p
        pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
        library.EVP_DecryptInit_ex.argtypes = [pointer, pointer, pointer, text, text]
        library.EVP_DecryptUpdate.argtypes = [pointer, pointer, pointer, text, number]
        library.EVP_CIPHER_CTX_ctrl.argtypes = [pointer, number, number, text]
        library.EVP_DecryptFinal_ex.argtypes = [pointer, pointer, pointer]
        library.EVP_CIPHER_CTX_free.argtypes = [pointer]
        return library
    raise UsageError("OpenSSL's libcrypto, version 3, is not installed")
