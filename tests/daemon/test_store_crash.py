"""The state folder under real deaths: SIGKILL at every step, errors at every step, and what a power cut could leave of each.

A preloaded library (``store_shim.c``) counts what a real process does to the folder, lets it die or fail at a chosen step, and
logs the steps. From that log ``Disk`` works out everything that a power cut after any of them may leave, which no test on a
living machine can show: what was written and not synced may be there, or not, or in part; a name may be the old one or the new.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from zenjun.daemon.store import FIRST_START, STATE_NAME, Record, Store, StoreError

HERE: Final = Path(__file__).resolve().parent
FIRST: Final = (11, 5)
SECOND: Final = (11, 6)
PERSISTED: Final = (FIRST, SECOND)
PROGRAM: Final = r"""
import os, sys
from pathlib import Path
from zenjun.daemon.store import Store, StoreError
folder = Path(sys.argv[1])
store = Store(folder, "lab", 2)
try:
    state = store.open()
    print("open", state.incarnation, state.instance, state.lost, flush=True)
    for text in sys.argv[2:]:
        incarnation, instance = map(int, text.split(","))
        store.persist(incarnation, instance)
        try:
            os.unlink(f"{folder}/returned-{text}")  # not there: a mark in the shim's log
        except OSError:
            pass
        print("persisted", text, flush=True)
    store.close()
    print("closed", flush=True)
except StoreError as exc:
    print("error", exc, flush=True)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preloaded library, compiled with what the C core is compiled with."""
    library = tmp_path_factory.mktemp("shim") / "store_shim.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "there is no C compiler"
    argv = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(HERE / "store_shim.c")]
    done = subprocess.run([*argv, "-ldl"], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return library


@dataclass(frozen=True)
class Life:
    """How a program that used the folder ended."""

    code: int
    lines: list[str]
    steps: list[list[str]]

    @property
    def returned(self) -> list[tuple[int, int]]:
        """What it was told to be durable."""
        pairs = [line.split()[1].split(",") for line in self.lines if line.startswith("persisted")]
        return [(int(a), int(b)) for a, b in pairs]


def live(shim: Path, base: Path, at: int | None = None, do: str = "") -> Life:
    """Let a program open ``base``/state/station and persist both states, with something happening at step ``at``."""
    log = base.with_suffix(".log")
    base.mkdir()
    env = {**os.environ, "LD_PRELOAD": str(shim), "ZJ_SHIM_FOLDER": str(base), "ZJ_SHIM_LOG": str(log)}
    if at is not None:
        env |= {"ZJ_SHIM_AT": str(at), "ZJ_SHIM_DO": do}
    words = [f"{incarnation},{instance}" for incarnation, instance in PERSISTED]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(base / "state" / "station"), *words],
        env=env, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return Life(done.returncode, done.stdout.splitlines(), [line.split() for line in log.read_text().splitlines()])


def reopened(base: Path) -> tuple[int, int] | None:
    """What the next life finds; None: no state, and it says so."""
    store = Store(base / "state" / "station", "lab", 2)
    state = store.open()
    store.close()
    if state.lost is not None:
        assert state.instance == 0 and state.incarnation > max(FIRST)
        assert "damaged" not in state.lost, "a crash never leaves half a file under the name of the state"
        return None
    return state.incarnation, state.instance


def allowed(returned: list[tuple[int, int]]) -> set[tuple[int, int] | None]:
    """After a death with so much returned: the last of it, or the one that was under way, whole."""
    states: list[tuple[int, int] | None] = [None, *PERSISTED]
    return set(states[len(returned) : len(returned) + 2])


def numbered(shim: Path, tmp_path: Path) -> Life:
    """A life to its end: how many steps there are."""
    whole = live(shim, tmp_path / "whole")
    assert whole.code == 0 and whole.lines[-1] == "closed" and whole.returned == list(PERSISTED)
    assert reopened(tmp_path / "whole") == SECOND
    return whole


def test_sigkill_at_every_step_leaves_the_old_state_or_the_new_one(shim: Path, tmp_path: Path) -> None:
    whole = numbered(shim, tmp_path)
    cases = [(at, do) for at in range(len(whole.steps)) for do in ("before", "after")]
    cases += [(at, "half") for at, step in enumerate(whole.steps) if step[0] == "write"]

    # Only the deaths side by side: a fork of another thread would hold on to a lock of ours for a moment.
    with ThreadPoolExecutor(2) as pool:
        lives = list(pool.map(lambda case: live(shim, tmp_path / f"{case[0]}-{case[1]}", *case), cases))
    seen = set()
    for case, life in zip(cases, lives, strict=True):
        base = tmp_path / f"{case[0]}-{case[1]}"
        found = reopened(base)
        # A left-over temporary file hinders nobody, and the next life goes on from there.
        store = Store(base / "state" / "station", "lab", 2)
        store.open()
        store.persist(12, 7)
        store.close()
        assert reopened(base) == (12, 7) and not list(base.rglob("*.tmp"))
        assert life.code == -signal.SIGKILL, f"{case}: it did not die there"
        assert found in allowed(life.returned), f"{case}: {life.lines} and then {found}"
        seen.add((len(life.returned), found))
    assert {(0, None), (0, FIRST), (1, FIRST), (1, SECOND), (2, SECOND)} <= seen, "deaths on both sides of each state"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_error_at_every_step_is_one_line_and_leaves_a_whole_state(shim: Path, tmp_path: Path, code: int) -> None:
    whole = numbered(shim, tmp_path)

    with ThreadPoolExecutor(2) as pool:
        lives = list(pool.map(lambda at: live(shim, tmp_path / str(at), at, str(code)), range(len(whole.steps))))
    errors = 0
    for at, life in enumerate(lives):
        found = reopened(tmp_path / str(at)) if (tmp_path / str(at) / "state").exists() else None
        step = " ".join(whole.steps[at])
        said = [line for line in life.lines if line.startswith("error")]
        assert life.code == 0 and found in allowed(life.returned), f"{step}: {life.lines} and then {found}"
        if said:
            errors += 1
            assert os.strerror(code) in said[0] and life.lines[-1] == said[0], f"{step}: {life.lines}"
        else:
            # The first reading of a lock file's or a mark's fate, and closing what is only read, may fail without harm.
            assert life.returned == list(PERSISTED), f"{step}: neither an error nor the state"
    vital = sum(step[0] in ("write", "fsync", "rename", "mkdir") for step in whole.steps)
    assert errors >= vital, "an error of whatever makes the state durable is told"


# ---- power cuts ----


@dataclass
class Inode:
    """A file: what it holds now, and everything it may hold after a power cut."""

    now: bytes = b""
    may: list[bytes] = field(default_factory=lambda: [b""])


class Disk:
    """What the steps of a log leave on a disk that forgets whatever was not synced.

    Unsynced bytes: any of the states since the last sync of the file may be found. Unsynced names: those of the last sync of the
    folder, with none, some or all of the later changes, in their order. A folder whose own name is not durable is gone.
    """

    def __init__(self) -> None:
        self._names: dict[str, Inode | None] = {}
        self._versions: dict[str, list[dict[str, Inode | None]]] = {}
        self._open: dict[str, str | Inode] = {}
        self.returned: list[tuple[int, int]] = []

    def apply(self, step: list[str]) -> None:
        kind = step[0]
        if kind == "mkdir":
            self._name(step[1], None)
        elif kind == "open":
            self._on_open(step[1], step[2], step[3])
        elif kind == "write":
            inode = self._open[step[1]]
            assert isinstance(inode, Inode)
            inode.now += bytes.fromhex(step[2])
            # Blocks may reach the disk in any number, and the length before the bytes.
            inode.may += [inode.now, inode.now[: len(inode.now) // 2], bytes(len(inode.now))]
        elif kind == "fsync":
            target = self._open[step[1]]
            if isinstance(target, Inode):
                target.may = [target.now]
            else:
                self._versions[target] = [self._names.copy()]
        elif kind == "rename":
            self._name(step[2], self._names.pop(step[1]))
        elif kind == "unlink":
            if "returned-" in step[1]:
                incarnation, instance = step[1].rpartition("-")[2].split(",")
                self.returned.append((int(incarnation), int(instance)))
        elif kind == "close":
            del self._open[step[1]]
        elif kind != "failed":
            raise AssertionError(f"a step that is not understood: {step}")

    def _on_open(self, fd: str, how: str, path: str) -> None:
        inode = self._names.get(path)
        if how == "read" and inode is None:
            self._open[fd] = path
            return
        if inode is None:
            inode = Inode()
            self._name(path, inode)
        if how == "trunc" and inode.now:
            inode.now = b""
            inode.may.append(b"")
        self._open[fd] = inode

    def _name(self, path: str, inode: Inode | None) -> None:
        self._names[path] = inode
        self._versions.setdefault(str(Path(path).parent), [{}]).append(self._names.copy())

    def after_power_cut(self, base: Path) -> Iterator[bytes | None]:
        """Everything that the state file may be: its bytes, or None if it is not there."""
        folder = base / "state" / "station"
        for above in (folder, folder.parent):
            durable = self._versions.get(str(above.parent), [{}])[0]
            if str(above) not in durable:
                yield None
        for names in self._versions.get(str(folder), [{}]):
            inode = names.get(str(folder / STATE_NAME))
            if inode is None:
                yield None
            else:
                yield from inode.may


def power_cuts(steps: list[list[str]], base: Path) -> list[str]:
    """What is wrong after power cuts at any step, empty if nothing is."""
    wrong = []
    disk = Disk()
    for number, step in enumerate(steps):
        disk.apply(step)
        for data in disk.after_power_cut(base):
            try:
                record = Record.decode(data) if data is not None else None
                found = (record.incarnation, record.instance) if record is not None else None
            except ValueError:
                wrong.append(f"after step {number} {step[:2]}: a damaged file")
                continue
            if found not in allowed(disk.returned):
                wrong.append(f"after step {number} {step[:2]}: {found}, although {disk.returned} had returned")
    assert disk.returned == list(PERSISTED), "the log has a mark for each return"
    return wrong


def kinds(steps: list[list[str]], folder: Path) -> list[str]:
    """The steps that make a state durable, as words."""
    fds: dict[str, str] = {}
    out = []
    for step in steps:
        if step[0] == "open":
            fds[step[1]] = Path(step[3]).name if Path(step[3]) != folder else "folder"
        elif step[0] in ("write", "fsync"):
            out.append(f"{step[0]} {fds[step[1]]}")
        elif step[0] == "rename":
            out.append(f"rename {Path(step[1]).name} {Path(step[2]).name}")
    return out


def test_power_cut_after_any_step_leaves_the_old_state_or_the_new_one(shim: Path, tmp_path: Path) -> None:
    base = tmp_path / "whole"
    steps = numbered(shim, tmp_path).steps
    assert not power_cuts(steps, base)
    temporary = f"{STATE_NAME}.tmp"
    each = [f"write {temporary}", f"fsync {temporary}", f"rename {temporary} {STATE_NAME}", "fsync folder"]
    durable = [word for word in kinds(steps, base / "state" / "station") if "lock" not in word]
    assert durable[-8:] == each * 2, "in this order and nothing besides"


def test_each_sync_is_needed(shim: Path, tmp_path: Path) -> None:
    """The judgement of the logs is worth something: without any one of the syncs, or with one too late, it finds the fault."""
    base = tmp_path / "whole"
    steps = numbered(shim, tmp_path).steps
    syncs = [number for number, step in enumerate(steps) if step[0] == "fsync"]
    assert len(syncs) == 6, "of two new folders' names, and of file and folder for each state"
    for number in syncs:
        assert power_cuts([step for k, step in enumerate(steps) if k != number], base), f"without step {number}"
    begin = max(number for number, step in enumerate(steps) if step[0] == "open" and step[2] == "trunc")
    opened, written, synced, closed, renamed = steps[begin : begin + 5]
    assert [step[0] for step in (written, synced, closed, renamed)] == ["write", "fsync", "close", "rename"]
    late = [[step[0], "file", *step[2:]] for step in (opened, written, synced, closed)]  # its number is free for another now
    late = [*steps[:begin], *late[:2], renamed, *late[2:], *steps[begin + 5 :]]
    assert any("damaged" in text for text in power_cuts(late, base)), "synced only after the rename"


# ---- deaths at moments nobody has chosen ----

ENDLESS: Final = r"""
import sys
from pathlib import Path
from zenjun.daemon.store import Store
store = Store(Path(sys.argv[1]), "lab", 2)
state = store.open()
incarnation, instance = (state.incarnation + 1, state.instance) if state.lost is None else (100, 0)
while True:
    instance += 1
    store.persist(incarnation, instance)
    print(incarnation, instance, flush=True)
"""


def test_sigkill_at_random_moments_never_takes_a_number_back(tmp_path: Path) -> None:
    """One life after the other on one folder, each killed while it counts: what was told to be durable is found, or the next."""
    rng = random.Random(20)
    told = (99, 0)
    lives = 0
    for _ in range(20):
        child = subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        try:
            lines = [child.stdout.readline()]
            for _ in range(rng.randrange(40)):
                lines.append(child.stdout.readline())
        finally:
            child.kill()
            child.wait(60)
            rest = child.stdout.read()  # not communicate(): it would pass over what readline() has read ahead
            child.stdout.close()
        numbers = [tuple(map(int, line.split())) for line in [*lines, *rest.splitlines(keepends=True)] if line.endswith("\n")]
        assert numbers, "it lived long enough to say something"
        assert numbers[0] > told and all(a < b for a, b in itertools.pairwise(numbers))
        incarnation, instance = numbers[-1]
        store = Store(tmp_path, "lab", 2)
        state = store.open()
        store.close()
        assert state.lost is None and state.incarnation == incarnation and state.instance in (instance, instance + 1)
        assert told == (99, 0) or numbers[0] == (told[0] + 1, told[1] + 1), "a life goes on where the last one ended"
        told = (state.incarnation, state.instance)
        lives += 1
    assert lives == 20


# ---- what a disk, or somebody's hand, can do to the file ----


def a_record() -> Record:
    return Record("lab", 2, 4711, 815)


def found_in(folder: Path, data: bytes) -> str | tuple[int, int]:
    """What the next life makes of a state file with these bytes."""
    (folder / STATE_NAME).write_bytes(data)
    store = Store(folder, "lab", 2)
    try:
        state = store.open()
    except StoreError as exc:
        return str(exc)
    finally:
        store.close()
    return state.lost or (state.incarnation, state.instance)


def test_a_file_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    data = a_record().encode()
    for size in range(len(data) - 1):
        assert found_in(tmp_path, data[:size]) == "the state file is damaged", size
    assert found_in(tmp_path, data[:-1]) == (4711, 815), "only the last newline is missing"
    assert found_in(tmp_path, data) == (4711, 815)


def test_a_flipped_bit_is_never_believed(tmp_path: Path) -> None:
    data = a_record().encode()
    for at in range(len(data)):
        for bit in range(8):
            damaged = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            fate = found_in(tmp_path, damaged)
            assert isinstance(fate, str) and ("damaged" in fate or "has format" in fate), (at, bit, fate)


@pytest.mark.parametrize(
    "text",
    [
        '{"format": 1, "cluster": "lab", "station": 2, "incarnation": 1e999, "instance": 0}',
        '{"format": 1, "cluster": "lab", "station": 2, "incarnation": NaN, "instance": 0}',
        '{"format": 1, "cluster": "lab", "station": 2, "incarnation": true, "instance": 0}',
        '{"format": 1, "cluster": "lab", "station": 2, "incarnation": "7", "instance": 0}',
        '{"format": 1, "cluster": "lab", "station": 2, "incarnation": 7.5, "instance": 0}',
        '{"format": 1, "cluster": null, "station": 2, "incarnation": 7, "instance": 0}',
        '{"format": 2, "cluster": "lab", "station": 2, "incarnation": 7, "instance": 0}',
        '{"format": 2, "cluster": "lab", "station": 2, "incarnation": 7, "instance": 0, "check": 1}',
        '{"format": [], "cluster": "lab"}',
        "[" * 60_000,
        "9" * 60_000,
        " " * 70_000 + "{}",
    ],
)
def test_what_is_no_record_is_damaged(tmp_path: Path, text: str) -> None:
    assert found_in(tmp_path, text.encode()) == "the state file is damaged"


def test_random_bytes_are_damaged(tmp_path: Path) -> None:
    rng = random.Random(3)
    for _ in range(300):
        assert found_in(tmp_path, rng.randbytes(rng.randrange(400))) == "the state file is damaged"


def test_first_format_is_read_and_a_later_one_is_refused(tmp_path: Path) -> None:
    text = '{"format": 1, "cluster": "lab", "station": 2, "incarnation": 7, "instance": 3}'
    assert found_in(tmp_path, text.encode()) == (7, 3)
    fate = found_in(tmp_path, b'{"format": 4, "anything": "else"}')
    assert isinstance(fate, str) and "has format 4; this version reads format 3" in fate


def test_a_record_goes_through_bytes_unchanged() -> None:
    for cluster in ("lab", "", "ä\U0001f40c", 'quote " and \\', "\n"):
        record = Record(cluster, 64, 2**32 - 1, 2**32 - 1)
        assert Record.decode(record.encode()) == record


def test_state_that_is_a_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / STATE_NAME).mkdir()
    store = Store(tmp_path, "lab", 2)
    with pytest.raises(StoreError, match="cannot read the state file") as info:
        store.open()
    assert "\n" not in str(info.value)


# ---- file systems that refuse ----

READ_ONLY: Final = r"""
import os, subprocess, sys
from pathlib import Path
from zenjun.daemon.store import Store, StoreError
folder = Path(sys.argv[1])
store = Store(folder, "lab", 1)
store.open()
store.persist(1, 1)
store.close()
subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True, timeout=240)
try:
    Store(folder, "lab", 1).open()
except StoreError as exc:
    print("open:", exc)
subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True, timeout=240)
store = Store(folder, "lab", 1)
store.open()
os.close(store._lock_fd)  # or the file system stays writable
subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True, timeout=240)
try:
    store.persist(1, 2)
except StoreError as exc:
    print("persist:", exc)
subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True, timeout=240)
store._lock_fd = -1
state = Store(folder, "lab", 1).open()
print("found:", state.incarnation, state.instance)
"""


def test_read_only_file_system_is_one_line_and_keeps_the_state(tmp_path: Path) -> None:
    """A real one, mounted in a namespace of its own."""
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs none "$1" && exec "$2" -c "$3" "$1"', "sh", str(tmp_path),
         sys.executable, READ_ONLY],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 3, done.stdout + done.stderr
    assert lines[0].startswith("open: cannot write in the state folder") and "Read-only file system" in lines[0]
    assert lines[1].startswith("persist: cannot write the state file") and "Read-only file system" in lines[1]
    assert lines[2] == "found: 1 1"


def test_folder_without_write_permission_names_the_remedy(tmp_path: Path) -> None:
    """As an ordinary user, whom permissions bind."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    folder.chmod(0o555)
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom zenjun.daemon.store import Store, StoreError\n"
        "if os.getuid() == 0:\n    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n    Store(Path(sys.argv[1]), 'lab', 1).open()\nexcept StoreError as exc:\n    print(exc)\n"
    )
    for above in (tmp_path, *tmp_path.parents):  # pytest's folders are closed to others
        if above.owner() == folder.owner() and above.is_relative_to(tmp_path.parent.parent):
            above.chmod(above.stat().st_mode | 0o055)
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"cannot write in the state folder {folder}: Permission denied (the folder must belong to the user that runs zenjund)\n"
    )


def test_a_new_folder_says_it_is_new(tmp_path: Path) -> None:
    """Nothing tells a lost folder from one that was never there; it is said either way, and the number is from the clock."""
    for _ in range(2):
        store = Store(tmp_path / "state", "lab", 2)
        assert store.open().lost == FIRST_START
        store.persist(5, 5)
        store.close()
        shutil.rmtree(tmp_path / "state")
