"""The locked block of keys: it reads files as ``key.parse`` does, derives as Python does, and keeps nothing that has gone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zenjun.daemon import key
from zenjun.daemon.datapath import Derived, Vault
from zenjun.daemon.keyring import Keyring
from zenjun.proto.errors import UsageError

SHORT, LONG = bytes(range(16)), bytes(range(32))
HEX = st.text("0123456789abcdefABCDEF", min_size=64, max_size=64)
LINE = st.one_of(
    HEX,
    HEX.map(lambda text: f"  {text} comment"),
    st.text("0123456789abcdef", min_size=32, max_size=32),
    st.text("0123456789abcdefgG #", max_size=66),
    st.just("# comment"),
    st.just(""),
    st.just(LONG.hex()),
    st.just(SHORT.hex()),
)
ENDS = st.sampled_from(["\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x1e", "\n\n", " ", "\t", "\x1f", "\xe9", "\0"])


def by_vault(data: bytes, folder: Path) -> tuple[list[tuple[int, int]], str]:
    path = folder / "k"
    path.write_bytes(data)
    path.chmod(0o600)
    try:
        return [(secret.size, secret.id) for secret in Keyring(path, folder)._read(path)], ""
    except UsageError as error:
        return [], str(error)


def by_python(data: bytes, folder: Path) -> tuple[list[tuple[int, int]], str]:
    try:
        return [(len(secret), key.identity(secret)) for secret in key.parse(data, f"the key file {folder / 'k'}")], ""
    except UsageError as error:
        return [], str(error)


@settings(max_examples=1500, deadline=None)
@given(st.lists(st.tuples(LINE, ENDS), max_size=7))
def test_files_are_read_as_by_python(lines: list[tuple[str, str]]) -> None:
    data = "".join(line + end for line, end in lines).encode("latin-1")
    with tempfile.TemporaryDirectory() as folder:
        assert by_vault(data, Path(folder)) == by_python(data, Path(folder))


@pytest.mark.parametrize("size", [0, 4095, 4096, 4097, 9000])
def test_the_longest_file(tmp_path: Path, size: int) -> None:
    data = (LONG.hex() + "\n").encode()
    data += b"#" * max(0, size - len(data)) if size else b""
    assert by_vault(data, tmp_path) == by_python(data, tmp_path)


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=300))
def test_what_is_derived_is_what_python_derives(secret: bytes, info: bytes) -> None:
    vault = Vault()
    kept = vault.put(secret)
    with vault.derive([Derived(kept, info), Derived(kept, b"other")]) as pointer:
        made = bytes(lib_buffer(pointer, 64))
    assert made == key.hkdf(secret, info) + key.hkdf(secret, b"other")
    assert not any(lib_buffer(pointer, 64)), "zeroed afterwards"
    assert kept.id == key.identity(secret) and repr(kept) == f"SecretKey({kept.id:08x})"


def lib_buffer(pointer: object, size: int) -> bytes:
    from zenjun.daemon.datapath._datapath import ffi

    return bytes(ffi.buffer(ffi.cast("uint8_t *", pointer), size))


def test_what_is_let_go_is_zeroed_and_places_are_bounded() -> None:
    vault = Vault()
    kept = [vault.put(bytes([n]) * 32) for n in range(16)]
    assert vault.put(bytes([3]) * 32) == kept[3], "the same key has one place"
    with pytest.raises(OSError, match="No space"):
        vault.put(b"x" * 32)
    with pytest.raises(OSError, match="Invalid"):
        vault.put(b"x" * 31)
    where = vault.pointer(kept[5])
    vault.only(kept[:5])
    assert lib_buffer(where, 32) == bytes(32)
    assert lib_buffer(vault.pointer(kept[4]), 32) == bytes([4]) * 32
    with pytest.raises(OSError, match="Invalid"), vault.derive([Derived(kept[5], b"")]):
        pass
    with pytest.raises(OSError, match="Invalid"), vault.derive([Derived(vault.put(SHORT), b"")]):
        pass


def test_a_fork_does_not_inherit_keys() -> None:
    vault = Vault()
    kept = vault.put(LONG)
    child = os.fork()
    if not child:
        os._exit(int(any(lib_buffer(vault.pointer(kept) or 0, 32)) if vault.pointer(kept) else 0))
    assert os.waitpid(child, 0)[1] == 0
    assert lib_buffer(vault.pointer(kept), 32) == LONG
