"""sch_netem and fifo queues, their options written as the kernel reads them.

pyroute2's own encoder of netem knows neither the Gilbert-Elliott model nor tables of distributions, and cannot say that
something is zero again: here every request names everything, so a change leaves nothing of before but the table.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import Final

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, nlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_NEWQDISC, TC_H_ROOT
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from . import distributions
from .impair import Impairment

NETEM_LIMIT: Final = 10_000
"""Frames that netem may hold for one station unless a limit is set."""
ROOT: Final = int(TC_H_ROOT)

# enum TCA_NETEM_*, enum NETEM_LOSS_* of linux/pkt_sched.h
_CORR, _DELAY_DIST, _REORDER, _CORRUPT, _LOSS = 1, 2, 3, 4, 5
_LATENCY64, _JITTER64 = 10, 11
_LOSS_GE: Final = 2
_NESTED: Final = 0x8000
_TICK_NS: Final = 64
_ONE: Final = 0xFFFFFFFF
_HEADER: Final = 16
_REPLY_S: Final = 5.0


class _Message(nlmsg):  # type: ignore[misc]
    """A request whose options are bytes; not a kind of ``tcmsg``, which hands its map of attributes down."""

    prefix = tcmsg.prefix
    fields = tcmsg.fields
    nla_map = (("TCA_UNSPEC", "none"), ("TCA_KIND", "asciiz"), ("TCA_OPTIONS", "cdata"))


def _attribute(kind: int, payload: bytes) -> bytes:
    length = 4 + len(payload)
    return struct.pack("=HH", length, kind) + payload + bytes(-length % 4)


def _u32(shares: Iterable[float]) -> bytes:
    """Fractions 0..1 as 32-bit numbers; one above zero stays so."""
    numbers = [max(round(share * _ONE), 1) if share > 0 else 0 for share in shares]
    return struct.pack(f"={len(numbers)}I", *numbers)


def netem_options(wanted: Impairment) -> bytes:
    """``struct tc_netem_qopt`` and all attributes."""
    gap = max(1, wanted.reorder_gap) if wanted.reorder else 0
    ticks = [min(time_ns // _TICK_NS, _ONE) for time_ns in (wanted.delay_ns, wanted.jitter_ns)]
    model = wanted.all_burst
    head = struct.pack("=II", ticks[0], wanted.limit or NETEM_LIMIT)
    head += (
        _u32([0.0 if model else wanted.loss]) + struct.pack("=I", gap) + _u32([wanted.duplicate]) + struct.pack("=I", ticks[1])
    )
    attributes = [
        _attribute(_CORR, bytes(12)),
        _attribute(_REORDER, _u32([wanted.reorder, wanted.reorder_correlation])),
        _attribute(_CORRUPT, _u32([wanted.corrupt, 0.0])),
        _attribute(_LATENCY64, struct.pack("=q", wanted.delay_ns)),
        _attribute(_JITTER64, struct.pack("=q", wanted.jitter_ns)),
    ]
    if model:
        p, r, bad, good = model
        attributes.append(_attribute(_LOSS | _NESTED, _attribute(_LOSS_GE, _u32([p, r, 1 - bad, good]))))
    if table := distributions.table(wanted.jitter_distribution):
        attributes.append(_attribute(_DELAY_DIST, struct.pack(f"={len(table)}h", *table)))
    return head + b"".join(attributes)


def fifo_options(frames: int) -> bytes:
    """``struct tc_fifo_qopt`` of a pfifo."""
    return struct.pack("=I", frames)


def put(index: int, kind: str, handle: int, options: bytes, *, parent: int = ROOT, change: bool = False) -> None:
    """Add a queueing discipline to an interface of this namespace, or change the one there is. Raises NetlinkError.

    pyroute2 encodes the request; the socket is a plain one, because how pyroute2 sends what it did not make differs between
    its versions.
    """
    message = _Message()
    message["index"] = index
    message["handle"] = handle
    message["parent"] = parent
    message["attrs"] = [("TCA_KIND", kind), ("TCA_OPTIONS", options)]
    message["header"]["type"] = RTM_NEWQDISC
    message["header"]["flags"] = NLM_F_REQUEST | NLM_F_ACK | (0 if change else NLM_F_CREATE | NLM_F_EXCL)
    message["header"]["sequence_number"] = 1
    message.encode()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as sock:
        sock.settimeout(_REPLY_S)
        sock.sendto(bytes(message.data), (0, 0))
        (code,) = struct.unpack_from("=i", sock.recv(65536), _HEADER)  # the only reply: struct nlmsgerr
    if code:
        raise NetlinkError(-code)
