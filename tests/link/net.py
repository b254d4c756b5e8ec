"""Interfaces for the link tests: a forked child with a user and network namespace of its own, which goes away with it."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import socket
import struct
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from .rig import CLUSTER, ETHERTYPE, GROUP_MAC, Bench, grown

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
CHILD_S = 250
"""Longest life of such a child: a machine with other things to do needs long for what waits for the kernel's grace periods."""
SENTINEL = 0x88B7
SOL_PACKET, PACKET_STATISTICS = 263, 6
MAC_A, MAC_B = bytes.fromhex("025a4a00000a"), bytes.fromhex("025a4a00000b")


def isolated(test: Callable[..., None]) -> Callable[..., None]:
    """Run the test in such a child; its failure is the test's. The kernel must allow one of the two ways into a namespace."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            status, text = 1, ""
            try:
                signal.alarm(CHILD_S)
                # Frames sent from one processor come out in their order; those sent from several need not.
                os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
                enter_namespace()
                test(*args, **kwargs)
                status = 0
            except BaseException:
                text = traceback.format_exc()
            finally:
                os.write(writer, text.encode()[-60_000:])
                os._exit(status)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read().decode()
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            fail(text or f"the child ended with {code} (a signal, if negative)")

    marked: Callable[..., None] = pytest.mark.lab(run)
    return marked


def fail(text: str) -> None:
    """A wait that was in vain is an AssertionError here, too: of real interfaces `tools/test` takes that for chance, once."""
    last = text.strip().rpartition("\n")[2]
    prefix = "AssertionError: not within"
    if last.startswith(prefix):
        print(text)
        raise AssertionError(last.removeprefix("AssertionError: "))
    pytest.fail(text, pytrace=False)


def enter_namespace() -> None:
    """A network namespace: as root directly, else inside a user namespace in which we are root."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET) == 0:
        return
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "these tests need root or unprivileged user namespaces")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


class Wire:
    """A veth pair: ``a`` is the data path's end, ``b`` the tests'. Both are up."""

    def __init__(self, a: str = "za", b: str = "zb", *, mtu: int = 1500, mac: bytes = MAC_A) -> None:
        """mac: of ``a``."""
        self.ip = IPRoute()
        self.a, self.b, self.mac = a, b, mac
        self.add(mtu)

    def add(self, mtu: int = 1500) -> None:
        peer = {"ifname": self.b, "address": MAC_B.hex(":"), "mtu": mtu}
        self.ip.link("add", ifname=self.a, kind="veth", address=self.mac.hex(":"), mtu=mtu, peer=peer)
        self.up(self.a, self.b)

    def index(self, name: str) -> int:
        return socket.if_nametoindex(name)

    def up(self, *names: str) -> None:
        for name in names:
            self.ip.link("set", index=self.index(name), state="up")

    def down(self, *names: str) -> None:
        for name in names:
            self.ip.link("set", index=self.index(name), state="down")

    def set_mtu(self, mtu: int) -> None:
        for name in (self.a, self.b):
            self.ip.link("set", index=self.index(name), mtu=mtu)

    def delete(self) -> None:
        self.ip.link("del", index=self.index(self.a))


class Tap:
    """Tells when what the peer has sent has come out of the wire: a kernel with other things to do hands frames on later."""

    def __init__(self, wire: Wire, peer: Peer) -> None:
        self.peer = peer
        self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.sock.bind((wire.a, SENTINEL))
        self.sock.settimeout(20)

    def wait(self) -> None:
        """Everything sent by now is where it belongs."""
        self.peer.send(ethernet(bytes(46), ethertype=SENTINEL))
        self.sock.recv(100)


class Peer:
    """A raw socket at the wire's other end."""

    def __init__(self, name: str, *, receive: bool = False) -> None:
        self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.sock.bind((name, ETHERTYPE if receive else 0))
        self.sock.setblocking(False)

    def send(self, frame: bytes) -> None:
        self.sock.send(frame)

    def statistics(self) -> str:
        """What the kernel had for this socket, and what it threw away for want of memory (packet(7), PACKET_STATISTICS)."""
        packets, drops = struct.unpack("II", self.sock.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        return f"kernel: {packets} frames, {drops} of them dropped"

    def receive(self) -> list[bytes]:
        out = []
        while True:
            try:
                out.append(self.sock.recv(65536))
            except BlockingIOError:
                return out


def pdu(mark: int, size: int = 46, *, cluster: int = CLUSTER) -> bytes:
    """Cluster, then a number in bytes 4..11, then filler."""
    return (struct.pack(">I", cluster) + struct.pack("=Q", mark)).ljust(size, b"\xaa")


def ethernet(
    payload: bytes, *, to: bytes = GROUP_MAC, source: bytes = MAC_B, ethertype: int = ETHERTYPE, tag: int | None = None
) -> bytes:
    """tag: the 16 bits of an 802.1Q tag."""
    tags = b"" if tag is None else struct.pack(">HH", 0x8100, tag)
    return to + source + tags + struct.pack(">H", ethertype) + payload


# ---- what has come


def marks(bench: Bench) -> list[int]:
    """Numbers of the PDUs that the core was given."""
    return list(bench.core.c.rx_marks[0 : min(bench.core.c.rx_frames, 65536)])


def sizes(bench: Bench) -> list[int]:
    return list(bench.core.c.rx_sizes[0 : min(bench.core.c.rx_frames, 65536)])


def received(bench: Bench, listener: Peer, count: int) -> list[bytes]:
    """The frames that have come out at the other end, once there are so many."""
    got: list[bytes] = []
    try:
        bench.until(lambda: grown(got, listener.receive()) >= count)
    except AssertionError as error:
        raise AssertionError(f"{error}; {len(got)} of {count} frames at the other end, {listener.statistics()}") from None
    return got
