"""The key file: every way in which it can be wrong is one line that names the file and shows nothing of what is in it."""

from __future__ import annotations

import itertools
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from zenjun.daemon import config, key, keyring
from zenjun.proto.errors import UsageError
from zenjun.tools.cli.config import check

CONFIGURATION = '[cluster]\nname = "c"\nstations = 3\n[station]\nid = 2\ninterface = "eth0"\n'
GOOD = "00112233445566778899aabbccddeeff"


def write(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


@pytest.mark.parametrize("text", [GOOD, GOOD + "\n", f"  {GOOD.upper()}\r\n"])
def test_good_ones(tmp_path: Path, text: str) -> None:
    assert key.read(write(tmp_path / "k", text)) == (bytes.fromhex(GOOD),)


@pytest.mark.parametrize("text", ["", "\n", GOOD[:-1], GOOD + "0", GOOD[:-1] + "g", b"\xff" * 32, b"\0" * 16, GOOD * 1000])
def test_bad_ones_name_the_file_and_not_the_key(tmp_path: Path, text: str | bytes) -> None:
    path = write(tmp_path / "k", text)
    with pytest.raises(UsageError) as caught:
        key.read(path)
    assert str(caught.value) == f"the key file {path} does not hold 32 or 64 hexadecimal digits (zenjun key new makes one)"


def test_open_to_everybody_is_refused(tmp_path: Path) -> None:
    for mode in (0o604, 0o602, 0o777):
        path = write(tmp_path / "k", GOOD, mode)
        with pytest.raises(UsageError, match=rf"open to everybody \(mode {mode:04o}\): chmod 600"):
            key.read(path)
    assert key.read(write(tmp_path / "k", GOOD, 0o640))


@pytest.mark.parametrize("by_path", [False, True], ids=["", "StatByPath"])
def test_a_file_that_is_swapped_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_path: bool) -> None:
    """What is judged is what is read. Where the name is looked at once more, the key of whoever swaps the files counts."""
    path, bad, opened = tmp_path / "k", write(tmp_path / "bad", GOOD[::-1], 0o666), os.open

    def swapping(name: str | Path, *args: int) -> int:
        fd = opened(name, *args)
        write(tmp_path / "good", GOOD).rename(path)
        return fd

    bad.rename(path)
    monkeypatch.setattr(os, "open", swapping)
    if by_path:
        monkeypatch.setattr(os, "fstat", lambda fd: path.stat())
        assert key.read(path) == (bytes.fromhex(GOOD[::-1]),)
    else:
        with pytest.raises(UsageError, match="open to everybody"):
            key.read(path)


def test_without_its_check_anybody_gives_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key, "_unfit", lambda path, about, **options: "")
    assert key.read(write(tmp_path / "k", GOOD[::-1], 0o666)) == (bytes.fromhex(GOOD[::-1]),)


def test_missing_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        key.read(tmp_path / "none")
    with pytest.raises(UsageError, match="is no file"):
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
        assert [len(k) for k in key.read(write(tmp_path / "k", text))] == [key.KEY_BYTES]


def test_the_mark_and_the_fingerprint_tell_keys_apart() -> None:
    one, two = bytes(16), bytes(15) + b"\1"
    assert key.mark(one) != key.mark(two) and len(key.mark(one)) == 8
    c = config.parse(CONFIGURATION)
    assert len({c.fingerprint, c.fingerprint_with(key.mark(one)), c.fingerprint_with(key.mark(two))}) == 3
    assert c.fingerprint_with("") == c.fingerprint


def test_config_check_says_what_the_daemon_would_say_of_the_key_file(tmp_path: Path) -> None:
    """And shows nothing of the key."""
    file, path = tmp_path / "zenjund.toml", tmp_path / "k"
    file.write_text(CONFIGURATION + f'key_file = "{path}"\n')

    def checked() -> tuple[int, str]:
        result = CliRunner().invoke(check, [str(file)], standalone_mode=False)
        return int(result.return_value or 0), result.output

    for text, mode, said in (
        (None, 0, "cannot be read: No such file"),
        ("", 0o600, "does not hold 32 or 64 hexadecimal digits"),
        (GOOD[1:], 0o600, "does not hold 32 or 64 hexadecimal digits"),
        (GOOD, 0o644, "open to everybody"),
        (GOOD, 0o660, "can be changed by its group"),
    ):
        if text is not None:
            write(path, text, mode)
        code, output = checked()
        assert code == 1 and said in output and str(path) in output, output
        assert GOOD[1:] not in output
    write(path, GOOD)
    assert checked()[0] == 0


LONG = [f"{n:02x}" * 32 for n in range(1, 7)]


def test_several_keys_in_a_file(tmp_path: Path) -> None:
    text = f"# of the cluster\n{LONG[0]} first\n\n{LONG[1]}\t2026-11-30\n"
    assert key.read(write(tmp_path / "k", text)) == (bytes.fromhex(LONG[0]), bytes.fromhex(LONG[1]))
    for wrong, what in (
        ("\n".join(LONG[:5]), "holds 5 keys; expected at most 4"),
        (f"{LONG[0]}\n{LONG[0]}\n", "holds a key twice"),
        (f"{LONG[0]}\n{GOOD}\n", "line 2: expected 64 hexadecimal digits"),
        ("# nothing\n", "does not hold 32 or 64 hexadecimal digits"),
    ):
        with pytest.raises(UsageError, match=what) as caught:
            key.read(write(tmp_path / "k", wrong))
        assert not any(secret in str(caught.value) for secret in (*LONG, GOOD))


def test_a_pipe_another_users_file_and_a_group_that_may_write_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match="is no file"):
        key.read(tmp_path / "pipe")
    with pytest.raises(UsageError, match="can be changed by its group"):
        key.read(write(tmp_path / "k", GOOD, 0o660))
    path = write(tmp_path / "k", GOOD)
    about = list(path.stat())
    about[stat.ST_UID] = os.geteuid() + 4711
    assert "belongs to uid" in key._unfit(path, os.stat_result(about))


def test_a_key_is_added_and_taken_out_and_the_rest_of_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "k"
    first = keyring.add_to(path, LONG[0] + "\n")
    assert path.stat().st_mode & 0o777 == 0o600
    write(path, f"# mine\n{LONG[0]} one", 0o640)
    second = keyring.add_to(path, LONG[1])
    assert keyring.add_to(path, LONG[1]) == second, "it is there already"
    assert path.read_text() == f"# mine\n{LONG[0]} one\n{LONG[1]}\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert keyring.take_from(path, first)
    assert path.read_text() == f"# mine\n{LONG[1]}\n"
    assert not keyring.take_from(path, first) and not keyring.take_from(path, second), "the last one stays"
    for text in (LONG[2] + " " + GOOD, LONG[3], LONG[4]):
        keyring.add_to(path, text)
    with pytest.raises(UsageError, match="retire one first"):
        keyring.add_to(path, LONG[5])
    keyring.add_to(path, LONG[5], [second])
    assert len(key.read(path)) == 4 and bytes.fromhex(LONG[1]) not in key.read(path)
    with pytest.raises(UsageError, match="stop all stations"):
        keyring.add_to(write(tmp_path / "short", GOOD), LONG[0])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["k", "short"], "no temporary file is left"


STEPS = ("open", "fchmod", "fsync", "rename", "unlink")


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """A process that does this work and is killed before the given one of its calls, from 1; False: it had fewer."""
    if child := os.fork():
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    calls = itertools.count(1)

    def watched(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            if next(calls) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    for name in STEPS:
        setattr(os, name, watched(getattr(os, name)))
    try:
        work()
    finally:
        os._exit(0)


def test_a_process_that_is_killed_at_any_step_leaves_whole_files(tmp_path: Path) -> None:
    """While a key is added to the file, and while another is retired: what is there can be read, and is the old or the new."""
    texts = [key.new_text(key.LONG_KEY_BYTES) for _ in range(2)]
    old, new = map(bytes.fromhex, texts)
    seen = []
    for step in itertools.count(1):
        folder = tmp_path / str(step)
        folder.mkdir()
        path = write(folder / "zenjun.key", texts[0])

        def work(path: Path = path, folder: Path = folder) -> None:
            keyring.add_to(path, texts[1])
            keyring.Keyring(path, folder).retire(key.identity(old))

        killed = killed_at(step, work)
        keys, gone = key.read(path), keyring.retired_in(folder)
        assert keys in ((old,), (old, new)) and gone in ([], [key.identity(old)]), step
        seen.append((len(keys), len(gone)))
        assert keyring.add_to(path, texts[1], gone) == key.identity(new), "the next command finds its way"
        if not killed:
            break
    assert seen == sorted(seen) and set(seen) == {(1, 0), (2, 0), (2, 1)} and len(seen) > 8


def test_of_a_file_that_is_written_in_place_a_kill_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken variant of the above."""

    def in_place(path: Path, text: str, *_: object) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.fchmod(fd, 0o600)
        os.write(fd, text.encode())
        os.fsync(fd)
        os.close(fd)

    monkeypatch.setattr(key, "write", in_place)
    path = write(tmp_path / "zenjun.key", LONG[0])
    assert killed_at(4, lambda: keyring.add_to(path, LONG[1]))  # at fchmod; the file was opened three times
    with pytest.raises(UsageError, match="does not hold"):
        key.read(path)


def test_a_retired_key_stays_retired_though_it_is_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "k", f"{LONG[0]}\n{LONG[1]}\n")
    ring = keyring.Keyring(path, tmp_path)
    first, second = ring.keys
    ring.retire(first)
    again = keyring.Keyring(path, tmp_path)
    assert (list(again.keys), again.retired) == ([second], [first]) and again.newest is again.keys[second]
    with pytest.raises(UsageError, match="was retired"):
        again.with_key(LONG[0])
    assert list(again.with_key(LONG[2])) == [second, key.identity(bytes.fromhex(LONG[2]))]
    again.retire(second)
    with pytest.raises(UsageError, match="holds retired keys only"):
        keyring.Keyring(path, tmp_path)


def test_a_process_with_keys_leaves_no_core_dump() -> None:
    script = (
        "from zenjun.daemon.keyring import forbid_core_dumps; import ctypes, resource; forbid_core_dumps();"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "0 (0, 0)\n", done.stderr
