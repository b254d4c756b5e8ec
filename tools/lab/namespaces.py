"""User, network and mount namespaces through the C library (Python has unshare and setns only from 3.12).

A namespace made here has no name and no bind mount: it exists while a process is in it, so nothing is left behind on the machine
however the lab ends, and /run/netns is never touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from pathlib import Path
from typing import Final

from .errors import LabUnsupported

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG: Final = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_void_p]

_FORBIDDEN: Final = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),  # Ubuntu from 23.10 on
    ("kernel/unprivileged_userns_clone", "0", "1"),  # Debian's kernels
    ("user/max_user_namespaces", "0", "10000"),
    ("user/max_net_namespaces", "0", "10000"),
)
"""Settings of the kernel (below /proc/sys) that keep ordinary users from making namespaces: name, such a value, a better one."""


def _no_rights(why: OSError) -> LabUnsupported:
    """What keeps this process from making network namespaces, and what would help."""
    causes = []
    for name, bad, good in _FORBIDDEN:
        with contextlib.suppress(OSError):  # this kernel has no such setting
            if Path("/proc/sys", name).read_text().strip() == bad:
                causes.append(f"let ordinary users make them: sysctl {name.replace('/', '.')}={good}")
    root = os.geteuid() == 0
    if not causes:
        causes = ["a container needs the capability SYS_ADMIN and a seccomp profile that allows unshare and mount"]
        if not root:
            causes.append("in a chroot only root can")
    advice = "; ".join(causes)
    return LabUnsupported(f"network namespaces cannot be made here ({why}): {advice if root else f'run it as root, or {advice}'}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move the calling process into new namespaces. Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    _check(_libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, None), f"mount {target}")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that made it ends; for use between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def enter_network(pid: int) -> None:
    """Move the calling thread, and no other of this process, into the network namespace of process *pid*. Raises OSError."""
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(fd, CLONE_NEWNET), "setns")
    finally:
        os.close(fd)


def enter_lab() -> bool:
    """Move this single-threaded process into fresh network and mount namespaces.

    With the right to do so (root) directly, otherwise inside a new user namespace in which the caller's user is root.
    Returns whether a user namespace was made. Raises LabUnsupported with what would help.
    """
    try:
        unshare(CLONE_NEWNET | CLONE_NEWNS)
        own_user = False
    except OSError as first:
        if first.errno not in (errno.EPERM, errno.EACCES):
            raise _no_rights(first) from first
        uid, gid = os.geteuid(), os.getegid()
        try:
            unshare(CLONE_NEWUSER)
            # The kernel lets an ordinary user map groups only after setgroups has been given up.
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
            unshare(CLONE_NEWNET | CLONE_NEWNS)
        except OSError as error:
            raise _no_rights(error) from error
        own_user = True
    try:
        _settle()
    except OSError as error:
        raise _no_rights(error) from error
    return own_user


def enter_station() -> None:
    """Move this process, already inside a lab, into a network and a mount namespace of its own. Raises OSError."""
    unshare(CLONE_NEWNET | CLONE_NEWNS)
    _settle()


def _settle() -> None:
    # Mounts made from here on must not travel back to the machine. In a chroot "/" is no mount; /sys may be one, and nothing is
    # mounted elsewhere.
    try:
        _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
        _mount_sysfs()
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        with contextlib.suppress(OSError):  # no mount either: then programs in a station do without
            _mount("none", "/sys", None, _MS_REC | _MS_PRIVATE)
            _mount_sysfs()
    # No neighbour discovery, no multicast listener reports: a quiet segment shows nothing but what the test sends.
    for which in ("all", "default"):
        with contextlib.suppress(OSError):  # a kernel without IPv6, or a read-only /proc/sys
            Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6").write_text("1")


def _mount_sysfs() -> None:
    # sysfs shows the network namespace it was mounted in: without a fresh one, programs in a station would read the
    # interfaces of the machine. The control groups, a mount below it, are put back for programs that look for them.
    groups = -1
    with contextlib.suppress(OSError):
        groups = os.open("/sys/fs/cgroup", os.O_PATH | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # refused where a container masks parts of /sys; everything else still works
            _mount("sysfs", "/sys", "sysfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
            if groups >= 0:
                _mount(f"/proc/self/fd/{groups}", "/sys/fs/cgroup", None, _MS_BIND | _MS_REC)
    finally:
        if groups >= 0:
            os.close(groups)


def same_namespace(pid: int, kind: str) -> bool:
    """Whether process *pid* is in the calling process's namespace of this kind (user, net, mnt)."""
    try:
        return (Path("/proc") / str(pid) / "ns" / kind).readlink() == Path(f"/proc/self/ns/{kind}").readlink()
    except OSError:
        return False


def processes() -> list[int]:
    """Ids of all processes that /proc shows."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def kill_neighbours(deadline_s: float) -> int:
    """Kill every other process in the caller's network namespace; returns how many signals were sent.

    Repeats until none is left, since a process may fork while it is being looked for, and gives up after *deadline_s* seconds.
    """
    mine = Path("/proc/self/ns/net").readlink()
    end = time.monotonic() + deadline_s
    sent = 0
    while True:
        found = 0
        for process in processes():
            if process == os.getpid():
                continue
            try:
                # The state is the field after the name, which ends at the last parenthesis; a zombie needs no signal.
                zombie = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                if zombie or Path(f"/proc/{process}/ns/net").readlink() != mine:
                    continue
                os.kill(process, signal.SIGKILL)
            except (OSError, IndexError):
                continue
            found += 1
        if not found or time.monotonic() > end:
            return sent
        sent += found
        time.sleep(0.002)
