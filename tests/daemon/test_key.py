"""The key file: every way in which it can be wrong is one line that names the file and shows nothing of what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from zenjun.daemon import config, key
from zenjun.proto.errors import UsageError

CONFIGURATION = '[cluster]\nname = "c"\nstations = 3\n[station]\nid = 2\ninterface = "eth0"\n'
GOOD = "00112233445566778899aabbccddeeff"


def write(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


@pytest.mark.parametrize("text", [GOOD, GOOD + "\n", f"  {GOOD.upper()}\r\n"])
def test_good_ones(tmp_path: Path, text: str) -> None:
    assert key.read(write(tmp_path / "k", text)) == bytes.fromhex(GOOD)


@pytest.mark.parametrize("text", ["", "\n", GOOD[:-1], GOOD + "0", GOOD[:-1] + "g", b"\xff" * 32, b"\0" * 16, GOOD * 1000])
def test_bad_ones_name_the_file_and_not_the_key(tmp_path: Path, text: str | bytes) -> None:
    path = write(tmp_path / "k", text)
    with pytest.raises(UsageError) as caught:
        key.read(path)
    assert str(caught.value) == f"the key file {path} does not hold 32 or 64 hexadecimal digits (zenjun config key makes one)"


def test_open_to_everybody_is_refused(tmp_path: Path) -> None:
    for mode in (0o604, 0o602, 0o777):
        path = write(tmp_path / "k", GOOD, mode)
        with pytest.raises(UsageError, match=rf"open to everybody \(mode {mode:04o}\): chmod 600"):
            key.read(path)
    assert key.read(write(tmp_path / "k", GOOD, 0o640))


def test_missing_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        key.read(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        key.read(tmp_path)


def test_where_it_comes_from(tmp_path: Path) -> None:
    """The option goes before the credential, and no credential is no key."""
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert key.path_of("", {}) is None
    assert key.path_of("", environ) is None
    write(tmp_path / key.CREDENTIAL, "none\n")
    assert key.path_of("", environ) is None
    write(tmp_path / key.CREDENTIAL, GOOD)
    assert key.path_of("", environ) == tmp_path / "zenjun.key"
    assert key.path_of("/etc/k", environ) == Path("/etc/k")


def test_a_folder_that_is_open_or_not_there_is_not_closed(tmp_path: Path) -> None:
    """The closed one is in tests/service, where a daemon that is not root meets it."""
    assert key.closed_credentials({}) == key.closed_credentials({"CREDENTIALS_DIRECTORY": str(tmp_path / "none")}) == ""
    assert key.closed_credentials({"CREDENTIALS_DIRECTORY": str(tmp_path)}) == ""


def test_new_ones_differ_and_can_be_read(tmp_path: Path) -> None:
    made = {key.new_text() for _ in range(20)}
    assert len(made) == 20
    for text in made:
        assert len(key.read(write(tmp_path / "k", text))) == key.KEY_BYTES


def test_the_mark_and_the_fingerprint_tell_keys_apart() -> None:
    one, two = bytes(16), bytes(15) + b"\1"
    assert key.mark(one) != key.mark(two) and len(key.mark(one)) == 8
    c = config.parse(CONFIGURATION)
    assert len({c.fingerprint, c.fingerprint_with(key.mark(one)), c.fingerprint_with(key.mark(two))}) == 3
    assert c.fingerprint_with("") == c.fingerprint
