"""Capabilities: take what is needed, give up the rest, report in one line what is missing.

The daemon needs CAP_NET_RAW (a packet socket) and, only for ``realtime``, CAP_SYS_NICE. It keeps CAP_NET_RAW while it runs, since
the socket must be opened again when the interface comes back, and gives up everything else before it reads a frame. Linux keeps
capabilities per thread: ``drop_all_but_net_raw`` must run before any other thread exists (threads inherit their maker's).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CAP_SETPCAP: Final = 8
CAP_NET_RAW: Final = 13
CAP_SYS_NICE: Final = 23
_CAP_LAST_FALLBACK: Final = 40

_VERSION_3: Final = 0x20080522
_PR_CAPBSET_READ: Final = 23
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_GET_NO_NEW_PRIVS: Final = 39
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4

HOW_TO_GRANT: Final = (
    "CAP_NET_RAW is missing: grant it with 'setcap cap_net_raw+ep {python}', "
    "or start zenjund by systemd with AmbientCapabilities=CAP_NET_RAW (or by sudo)"
)
"""The one line for a daemon without rights; ``python`` is the interpreter, because a script cannot carry capabilities."""
HOW_TO_ALLOW: Final = (
    "CAP_NET_RAW is missing and cannot be gained here, for it is not in the bounding set: start the container with "
    "--cap-add NET_RAW, or give the systemd unit CapabilityBoundingSet=CAP_NET_RAW and AmbientCapabilities=CAP_NET_RAW"
)
"""Where neither setcap nor sudo helps: what started this process has taken the right from all that it starts."""
HOW_TO_GAIN: Final = (
    "CAP_NET_RAW is missing, and no-new-privileges keeps setcap and sudo from granting it here: start the container without "
    "--security-opt no-new-privileges and with --cap-add NET_RAW, or zenjund by systemd with AmbientCapabilities=CAP_NET_RAW"
)

FAMILIES: Final = (("AF_UNIX", socket.SOCK_STREAM), ("AF_NETLINK", socket.SOCK_RAW), ("AF_PACKET", socket.SOCK_RAW))
"""Address families that a daemon cannot do without, and a type of socket that each has."""

_libc = ctypes.CDLL(None, use_errno=True)


class RightsError(Exception):
    """The daemon lacks a right that it needs; the text is one line with the way to grant it."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The three sets of the calling thread, as bit masks."""

    effective: int
    permitted: int
    inheritable: int


@dataclass(slots=True)
class Rights:
    """What the daemon asked for and what the kernel gave; shown in its status."""

    net_raw: bool = False
    realtime: bool = False
    realtime_wanted: bool = False


def capabilities() -> Capabilities:
    """The calling thread's sets. Raises OSError."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _VERSION_3, 0), 8)
    data = ctypes.create_string_buffer(24)
    _check(_libc.capget(header, data))
    low_e, low_p, low_i, high_e, high_p, high_i = struct.unpack("=6I", data.raw)
    return Capabilities(low_e | high_e << 32, low_p | high_p << 32, low_i | high_i << 32)


def take_net_raw() -> None:
    """Make CAP_NET_RAW effective. Raises RightsError with the ways to grant it."""
    have = capabilities()
    bit = 1 << CAP_NET_RAW
    if have.effective & bit:
        return
    if not have.permitted & bit:
        raise RightsError(what_hinders() or HOW_TO_GRANT.format(python=os.path.realpath("/proc/self/exe")))
    _set(Capabilities(have.effective | bit, have.permitted, have.inheritable))


def what_hinders() -> str:
    """One line if CAP_NET_RAW cannot be granted to this process, nor to what it executes, by setcap or sudo; else empty."""
    if _libc.prctl(_PR_CAPBSET_READ, CAP_NET_RAW, 0, 0, 0) == 0:
        return HOW_TO_ALLOW
    if _libc.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1:
        return HOW_TO_GAIN
    return ""


def check_families() -> None:
    """Raise RightsError if sockets of a family that the daemon needs are not to be had, naming the family and how to allow it.

    Such a refusal (EAFNOSUPPORT) comes from a filter on system calls, or from a kernel without the family; neither changes.
    """
    for name, kind in FAMILIES:
        try:
            socket.socket(getattr(socket, name), kind | socket.SOCK_CLOEXEC, 0).close()
        except OSError as exc:
            if exc.errno == errno.EAFNOSUPPORT:
                needed = " ".join(family for family, _ in FAMILIES)
                raise RightsError(
                    f"sockets of the family {name} are not allowed here, or the kernel has none: under systemd, "
                    f"RestrictAddressFamilies= must name {needed}"
                ) from exc


def take_realtime(priority: int) -> str | None:
    """Ask for SCHED_RR at ``priority`` (1..99). Returns None, or why the kernel refused: worth one warning, never an end."""
    have = capabilities()
    bit = 1 << CAP_SYS_NICE
    try:
        if have.permitted & bit and not have.effective & bit:
            _set(Capabilities(have.effective | bit, have.permitted, have.inheritable))
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except (OSError, ValueError) as exc:
        return exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    return None


def drop_all_but_net_raw() -> None:
    """Give up every capability but CAP_NET_RAW, for this process and whatever it might execute, and forbid gaining new ones.

    The bounding set can only be emptied with CAP_SETPCAP; without it NO_NEW_PRIVS already keeps an executed file from gaining
    rights. Raises OSError if the kernel refuses what every process may do.
    """
    keep = 1 << CAP_NET_RAW
    if capabilities().effective & (1 << CAP_SETPCAP):
        for cap in range(_last_capability() + 1):
            if cap != CAP_NET_RAW and _libc.prctl(_PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 and ctypes.get_errno() != errno.EINVAL:
                _check(-1)
    if _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 and ctypes.get_errno() != errno.EINVAL:
        _check(-1)
    _set(Capabilities(keep & capabilities().permitted, keep & capabilities().permitted, 0))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _set(wanted: Capabilities) -> None:
    header = ctypes.create_string_buffer(struct.pack("=Ii", _VERSION_3, 0), 8)
    low, high = 0xFFFFFFFF, 32
    data = struct.pack(
        "=6I",
        wanted.effective & low,
        wanted.permitted & low,
        wanted.inheritable & low,
        wanted.effective >> high,
        wanted.permitted >> high,
        wanted.inheritable >> high,
    )
    _check(_libc.capset(header, ctypes.create_string_buffer(data, 24)))


def _last_capability() -> int:
    try:
        return min(63, int(Path("/proc/sys/kernel/cap_last_cap").read_text()))
    except (OSError, ValueError):
        return _CAP_LAST_FALLBACK


def _check(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
