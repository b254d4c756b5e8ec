"""The state folder: what survives, what is refused, and every point at which a crash can fall."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from zenjun.daemon import store as store_module
from zenjun.daemon.__main__ import Failure, check_key, check_ran, make_engine
from zenjun.daemon.config import load
from zenjun.daemon.config.adopted import options_of
from zenjun.daemon.observe import Journal
from zenjun.daemon.store import (
    INCARNATION_MAX,
    OTHER_CONFIGURATION,
    STATE_NAME,
    Ran,
    Remembered,
    Store,
    StoreError,
    fresh_incarnation,
)
from zenjun.proto.changing import Stand

ROOT = Path(__file__).resolve().parents[2]


class Crash(BaseException):
    """Stands for a power cut: nothing after it runs, not even error handling that catches Exception or OSError."""


def make(folder: Path, cluster: str = "lab", station: int = 2) -> Store:
    return Store(folder, cluster, station)


def remembered(folder: Path) -> tuple[int, int]:
    store = make(folder)
    state = store.open()
    store.close()
    assert state.lost is None
    return state.incarnation, state.instance


def test_remembers_what_was_persisted(tmp_path: Path) -> None:
    store = make(tmp_path / "deep" / "state")
    first = store.open()
    assert first.lost is not None and first.instance == 0 and first.incarnation > 0
    store.persist(first.incarnation + 1, 7)
    store.close()
    assert remembered(tmp_path / "deep" / "state") == (first.incarnation + 1, 7)


def test_state_folder_and_file_are_private(tmp_path: Path) -> None:
    store = make(tmp_path / "state")
    store.open()
    store.persist(1, 1)
    store.close()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / STATE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"\x00" * 200, b"[]", b'{"format": 1}', b"null", b"\xff\xfe"])
def test_damaged_state_is_lost_and_said_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATE_NAME).write_bytes(content)
    store = make(tmp_path)
    state = store.open()
    assert state.lost == "the state file is damaged"
    assert state.incarnation > 2**20, "made up from the clock"
    store.close()


def test_numbers_out_of_range_are_lost(tmp_path: Path) -> None:
    body = {"format": 1, "cluster": "lab", "station": 2, "incarnation": INCARNATION_MAX, "instance": 0}
    (tmp_path / STATE_NAME).write_text(json.dumps(body))
    store = make(tmp_path)
    assert store.open().lost is not None
    store.close()


def test_made_up_incarnation_is_larger_than_any_remembered_life(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: at)
    before = max(fresh_incarnation() for _ in range(64)) + 3  # three lives that remembered
    at += 2
    assert min(fresh_incarnation() for _ in range(64)) > before
    at = 0.0  # clock never set
    assert 0 < fresh_incarnation() <= 2**store_module.RANDOM_BITS
    at = 2.0**40  # clock far beyond the range
    assert fresh_incarnation() < INCARNATION_MAX


def test_state_lost_within_the_second_in_which_it_was_made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Seen on real frames: the highest random bits, one life more, and the loss a moment later gave the same number again."""
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.9)
    bits = iter((2**store_module.RANDOM_BITS - 1, 0))
    monkeypatch.setattr(secrets, "randbits", lambda _: next(bits))
    first = make(tmp_path)
    incarnation = first.open().incarnation
    first.persist(incarnation + 2, 1)
    first.close()
    (tmp_path / STATE_NAME).unlink()
    second = make(tmp_path)
    assert second.open().incarnation > incarnation + 2
    second.close()


def test_other_station_or_cluster_is_refused_naming_both(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    store.persist(5, 5)
    store.close()
    for cluster, station in (("lab", 3), ("other", 2)):
        with pytest.raises(StoreError, match=r"station 2 of cluster 'lab'.*station \d of cluster '(lab|other)'") as info:
            make(tmp_path, cluster, station).open()
        assert "\n" not in str(info.value)
    assert remembered(tmp_path) == (5, 5), "the refusal released the lock and changed nothing"


def test_second_daemon_is_refused_naming_the_pid(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    with pytest.raises(StoreError, match=f"in use by pid {os.getpid()}"):
        make(tmp_path).open()
    store.close()
    store.close()
    again = make(tmp_path)
    again.open()
    again.close()


def test_lock_dies_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys,os\nfrom pathlib import Path\nfrom zenjun.daemon.store import Store\n"
        "s=Store(Path(sys.argv[1]),'lab',2); s.open(); print('ready',flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        with pytest.raises(StoreError, match=f"in use by pid {child.pid}"):
            make(tmp_path).open()
        child.kill()
        child.wait(60)
        store = make(tmp_path)
        store.open()
        store.close()
    finally:
        child.kill()
        child.communicate(timeout=240)


STEPS = ("open", "write", "fsync", "close", "rename", "fsync-folder")


def crash_at(monkeypatch: pytest.MonkeyPatch, step: str, how: Callable[[], None]) -> None:
    """Let ``how`` happen instead of the named step of persist()."""
    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "close", "rename")}
    fsyncs = 0

    def trap(name: str) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal fsyncs
            if name == "fsync":
                fsyncs += 1
            here = step == name and (name != "fsync" or fsyncs == 1)
            if name == "write" and here and isinstance(args[1], memoryview):
                real["write"](args[0], args[1][: len(args[1]) // 2])  # half of it reached the file
            if here or (step == "fsync-folder" and name == "fsync" and fsyncs == 2):
                how()
            return real[name](*args, **kwargs)

        return call

    for name in real:
        monkeypatch.setattr(os, name, trap(name))


@pytest.mark.parametrize("step", STEPS)
def test_crash_at_any_step_leaves_old_or_new_state_whole(tmp_path: Path, step: str) -> None:
    store = make(tmp_path)
    store.open()
    store.persist(10, 3)

    def crash() -> None:
        raise Crash

    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, step, crash)
        with pytest.raises(Crash):
            store.persist(10, 4)
    store.close()
    assert remembered(tmp_path) == ((10, 4) if step == "fsync-folder" else (10, 3))
    after = make(tmp_path)  # and a leftover temporary file hinders nobody
    after.open()
    after.persist(11, 5)
    after.close()
    assert remembered(tmp_path) == (11, 5)


@pytest.mark.parametrize("step", [s for s in STEPS if s != "close"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_error_at_any_step_is_one_line_and_keeps_a_whole_state(tmp_path: Path, step: str, code: int) -> None:
    store = make(tmp_path)
    store.open()
    store.persist(10, 3)

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, step, fail)
        with pytest.raises(StoreError) as info:
            store.persist(10, 4)
    text = str(info.value)
    assert os.strerror(code) in text and str(tmp_path) in text and "\n" not in text
    store.close()
    assert remembered(tmp_path) in ((10, 3), (10, 4))
    assert not list(tmp_path.glob("*.tmp"))


def test_full_disk_is_one_line() -> None:
    """A real full file system, where the machine lets us mount one (root in a mount namespace of its own)."""
    script = r"""
import os, sys
from pathlib import Path
from zenjun.daemon.store import Store, StoreError
folder = Path(sys.argv[1])
store = Store(folder, "lab", 1)
store.open()
store.persist(1, 1)
try:
    with open(folder / "ballast", "wb", buffering=0) as f:
        while True:
            f.write(b"x" * 4096)
except OSError:
    pass
try:
    store.persist(1, 2)
except StoreError as exc:
    print(exc)
store.close()
os.unlink(folder / "ballast")
store = Store(folder, "lab", 1)
print(store.open().instance)
"""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=64k none "$1" && exec "$2" -c "$3" "$1"', "sh", folder,
             sys.executable, script],
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        if done.returncode and ("mount" in done.stderr or "unshare" in done.stderr):
            pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stdout + done.stderr
    assert "No space left on device" in lines[0] and lines[1] == "1"


def test_unusable_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot create the state folder"):
        make(tmp_path / "file" / "state").open()
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "lock").mkdir()
    with pytest.raises(StoreError, match="cannot write in the state folder"):
        make(tmp_path / "s").open()


@pytest.mark.parametrize("where", ["state", "state/deeper", "state/station.json"])
def test_folder_of_another_user_is_one_line_with_advice(tmp_path: Path, where: str) -> None:
    """Made by root (a first start by hand), used by the service's user."""
    if os.geteuid():
        pytest.skip("takes root, who can be another user as well")
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    tmp_path.chmod(0o711)
    if where == "state/station.json":
        store = make(folder)
        store.open()
        store.persist(1, 1)
        store.close()
        (folder / "lock").chmod(0o666)
        folder.chmod(0o755)
        where = "state"
    code = f"""
import os
import re
from pathlib import Path
from zenjun.daemon.store import Store, StoreError
os.chdir({str(tmp_path)!r})
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    Store(Path({where!r}), "lab", 2).open()
except StoreError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1 and "Permission denied" in done.stdout
    assert "the folder must belong to the user that runs zenjund" in done.stdout


def test_a_lost_file_is_told_from_a_first_start(tmp_path: Path) -> None:
    store = make(tmp_path)
    assert store.open().lost == store_module.FIRST_START
    store.persist(1, 1)
    store.close()
    (tmp_path / STATE_NAME).unlink()
    assert store.open().lost == "the state file is gone"
    store.close()


# ---- the configuration of the last instance

OLD = Ran(0x1A2B, {"stations": "3", "quorum": "0"})
NEW = Ran(0x3C4D, {"stations": "5", "quorum": "0"})


def test_the_configuration_of_an_instance_is_remembered_and_forgotten_on_purpose(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    store.present = OLD
    store.persist(4, 1)
    assert json.loads(store.path.read_text()).get("ran") is None, "it was in no instance yet"
    store.note_ran()
    written = store.written
    store.note_ran()
    assert store.written == written, "only what is new is written"
    store.persist(5, 9)
    store.close()
    again = make(tmp_path)
    state = again.open()
    assert (state.incarnation, state.instance, state.ran, state.lost) == (5, 9, OLD, None)
    again.present = NEW
    again.persist(6, 9)
    again.close()
    third = make(tmp_path)
    assert third.open().ran == OLD, "a start alone changes nothing"
    third.forget_ran()
    third.close()
    assert remembered(tmp_path) == (6, 9)
    assert make(tmp_path).open().ran is None


def test_what_an_earlier_version_would_go_back_from_has_a_format_that_it_refuses(tmp_path: Path) -> None:
    """It would count by its file, beside the others."""
    store = make(tmp_path)
    store.open()
    store.persist(4, 1)
    formats = [json.loads(store.path.read_text())["format"]]
    file = Stand(0, b"{}")
    for stand in (
        file,
        file._replace(number=1),
        file._replace(ballot=9, proposed=b"x"),
        file._replace(promise=9),
        file._replace(kept=9),
    ):
        store.keep(stand)
        formats.append(json.loads(store.path.read_text())["format"])
        store.close()
        store = make(tmp_path)
        assert store.open().stand == stand
    store.forget_ran()
    formats.append(json.loads(store.path.read_text())["format"])
    assert formats == [2, 2, 3, 3, 3, 3, 2]
    body = json.loads(store.path.read_text())
    store.keep(file._replace(number=1))
    body = json.loads(store.path.read_text())
    del body["configuration"]["kept"]  # as versions wrote it that did not know this
    body["configuration_check"] = store_module._check_of(body["configuration"])
    body["format"] = 2
    body["check"] = store_module.Record("lab", 2, 4, 1)._check()
    store.path.write_text(json.dumps(body))
    store.close()
    assert make(tmp_path).open().stand == file._replace(number=1)


def test_that_there_was_a_key_is_not_forgotten_with_the_configuration(tmp_path: Path) -> None:
    """``--adopt`` allows other options, not a start without the key."""
    store = make(tmp_path)
    store.open()
    store.present = Ran(0x1A2B, {"stations": "3", "key": "authenticate"})
    store.persist(4, 1)
    store.note_ran()
    store.forget_ran()
    store.close()
    ran = make(tmp_path).open().ran
    assert ran is not None and ran.options == {"key": "authenticate"}
    assert not ran.changes(0x3C4D, {"stations": "5", "key": "authenticate"})


@pytest.mark.parametrize("form", [1, 2])
def test_state_of_an_earlier_version_has_no_configuration_and_is_read(tmp_path: Path, form: int) -> None:
    body = {"format": form, "cluster": "lab", "station": 2, "incarnation": 4, "instance": 3}
    if form == 2:
        body["check"] = store_module.Record("lab", 2, 4, 3, 2)._check()
    (tmp_path / STATE_NAME).write_text(json.dumps(body))
    store = make(tmp_path)
    state = store.open()
    assert (state.incarnation, state.instance, state.lost, state.ran) == (4, 3, None, None)
    store.present = OLD
    store.note_ran()
    store.close()
    assert make(tmp_path).open().ran == OLD


@pytest.mark.parametrize("wrong", [{"fingerprint": "1a2c", "options": {}}, {}, [], {"fingerprint": "x", "options": 1}])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_damaged_configuration_is_a_damaged_state(tmp_path: Path, wrong: object, sealed: bool) -> None:
    store = make(tmp_path)
    store.open()
    store.present = OLD
    store.persist(4, 1)
    store.note_ran()
    store.close()
    body = json.loads(store.path.read_text())
    body["ran"] = wrong
    if sealed:
        body["ran_check"] = store_module._check_of(wrong)
    store.path.write_text(json.dumps(body))
    state = make(tmp_path).open()
    legible = sealed and wrong == {"fingerprint": "1a2c", "options": {}}
    assert (state.lost is None) == legible


@pytest.mark.parametrize(
    ("option", "value", "starts"),
    [("stations", "5", False), ("quorum", "3", False), ("heartbeat_ms", "10", True)],
)
def test_only_another_quorum_keeps_a_station_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, option: str, value: str, starts: bool
) -> None:
    file = tmp_path / "zenjund.toml"
    file.write_text('[cluster]\nname = "c"\nstations = 3\n[station]\nid = 1\ninterface = "eth0"\n')
    config = load(file)
    before = Ran(7, {**config.agreed_with(""), option: value})
    journal = Journal(logging.getLogger("test_store"))
    if starts:
        check_ran(config, before, "", journal)
        assert f"{option} was {value} and is" in caplog.text and {r.name for r in caplog.records} == {"test_store"}
    else:
        with pytest.raises(Failure, match=f"{option} was {value} and is .*--adopt 00000007"):
            check_ran(config, before, "", journal)


def test_no_start_without_the_key_that_was_there(tmp_path: Path) -> None:
    """Rule K3: a file that lacks the key would make this station one that everybody can speak for."""
    file = tmp_path / "zenjund.toml"
    file.write_text('[cluster]\nname = "c"\nstations = 3\n[station]\nid = 1\ninterface = "eth0"\n')
    config = load(file)
    before = Ran(7, {**config.agreed_with(""), "key": "ab"})
    with pytest.raises(Failure, match=r"with a key last \(ab\), and has none now.*zenjun key forget"):
        check_key(config, before, "")
    changed = Remembered(1, 1, None, before, Stand(1, options_of(config.cluster)))  # nor when the file's options do not count
    with pytest.raises(Failure, match=r"with a key last \(ab\), and has none now.*zenjun key forget"):
        make_engine(config, changed, make(tmp_path), 1400, "", Journal(logging.getLogger("test_store")))


def test_what_was_promised_and_given_up_hides_no_file(tmp_path: Path) -> None:
    """An option that was changed in all files while all stations were stopped is the same everywhere."""
    path = tmp_path / "z.toml"
    path.write_text(
        '[cluster]\nname = "lab"\nstations = 3\nheartbeat_ms = 50\n'
        f'[station]\nid = 2\ninterface = "eth0"\nstate_dir = "{tmp_path}"\n'
    )
    config, journal = load(path), Journal(logging.getLogger("test_store"))
    found = []
    for stand in (
        None,
        Stand(0, b'{"stations": 3}', promise=7 << 32, kept=6),
        Stand(0, b'{"stations": 3}', 7 << 32, b'{"stations": 3}'),
    ):
        store = make(tmp_path)
        store.stand = stand
        engine, _, changing = make_engine(config, Remembered(1, 9, None, None, stand), store, 1400, "", journal)
        found.append((engine.config.heartbeat_ns, engine.config.number, changing.stand.promise, changing.kept))
    assert found[:2] == [(50_000_000, 0, 0, 0), (50_000_000, 0, 7 << 32, 6)]
    assert found[2][0] != 50_000_000 and found[2][1] == 1, "a mark does"


@pytest.mark.parametrize("kind", ["conflict", "options", "stations"])
def test_a_notice_about_another_configuration_names_what_has_changed_here(tmp_path: Path, kind: str) -> None:
    store = make(tmp_path)
    store.open()
    heard = "station 2 has other cluster options: fingerprint 00001a2b, not 00005e6f"
    store.present = Ran(0x5E6F, {**OLD.options, "heartbeat_ms": "100"})
    assert store.explained(kind, heard) == heard, "it was in no instance yet"
    store.ran = Ran(OLD.fingerprint, {**OLD.options, "heartbeat_ms": "200"})
    said = store.explained(kind, heard)
    assert said.startswith(f"{heard}; ")
    assert "last under fingerprint 00001a2b, and has 00005e6f now: heartbeat_ms was 200 and is 100" in said
    assert "stations was" not in said and "quorum was" not in said, "only what differs"
    assert store.explained("late", heard) == heard, "of another kind"
    store.persist(1, 1)
    store.note_ran()
    assert store.explained(kind, heard) == heard, "it is in an instance under these"
    store.close()


def test_the_notices_are_of_the_kinds_that_the_engine_gives() -> None:
    given = set(re.findall(r'self\._notices\.give\(\s*now,\s*"(\w+)"', (ROOT / "proto" / "opening.py").read_text()))
    assert given >= OTHER_CONFIGURATION, given


def test_what_another_configuration_changes() -> None:
    assert OLD.changes(NEW.fingerprint, NEW.options) == {"stations": "stations was 3 and is 5"}
    assert OLD.changes(OLD.fingerprint, OLD.options) == {}
    assert OLD.changes(7, {**OLD.options, "key": "ab"}) == {"key": "key was none and is ab"}
    assert OLD.changes(7, {**OLD.options, "new_option": "1"}) == {}, "an option that came with the software is no change"


def test_what_root_writes_is_the_daemons(tmp_path: Path) -> None:
    """``zenjun key forget`` and ``zenjund --adopt`` by root leave a state that the daemon can read and write."""
    folder = tmp_path / "state"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, 1234, 2345)
    store = make(folder)
    store.open()
    store.persist(4, 1)
    store.close()
    owner = (folder.stat().st_uid, folder.stat().st_gid)
    assert {(p.stat().st_uid, p.stat().st_gid) for p in folder.iterdir()} == {owner} and len(list(folder.iterdir())) == 2
