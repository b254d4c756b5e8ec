"""The messages of corosync's libraries: what Debian's have written is read, and what they have understood is written."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zenjun.daemon.corosync.codec import Request, Value, answer, event, request, shutdown_asked
from zenjun.daemon.corosync.table import ANSWERS, EVENTS, MAPPED_DATA, REQUESTS, RESPONSE_HEAD, Layout, Tail
from zenjun.proto.service.corosync import results
from zenjun.proto.service.corosync.results import Code

from . import corosync_capture as capture
from .corosync_capture import CONTEXT, GROUP, JOINED, LEFT, MEMBERS, RING

CAPTURED: dict[str, Any] = json.loads((Path(__file__).parent / "corosync-captured.json").read_text())
"""Of Debian 12: libcpg 4.1.0, libquorum 5.1.0, libvotequorum 8.0.0, libcmap 4.1.0, libcfg 7.3.0, libqb 2.0.6."""
PID = CAPTURED["pid"]
GUARANTEE = 2
PART = 1_047_552
"""1 MiB - 1 KiB: above this libcpg sends parts."""


LONG = 2_100_000
"""Bytes of the message that the capture sends in parts."""


def part(size: int, number: int) -> dict[str, Value]:
    return {"guarantee": GUARANTEE, "length": LONG, "fragment": size, "part": number, "data": bytes(size)}


def whole(text: str) -> bytes:
    """A message from its hexadecimal form without the zeros at its end."""
    digits, _, length = text.partition("|")
    return bytes.fromhex(digits.ljust(2 * int(length), "0"))


ASKED: list[tuple[str, str, dict[str, Value]]] = [
    ("cpg", "join", {"group": GROUP, "pid": PID, "flags": 1}),
    ("cpg", "mcast", {"guarantee": GUARANTEE, "length": 12, "data": b"hello, world"}),
    ("cpg", "mcast_part", part(PART, 1)),
    ("cpg", "mcast_part", part(PART, 2)),
    ("cpg", "mcast_part", part(LONG - 2 * PART, 3)),
    ("cpg", "map", {"size": MAPPED_DATA + 100, "path": CAPTURED["path"].encode()}),
    ("cpg", "mcast_mapped", {"number": 76}),
    ("cpg", "unmap", {"size": MAPPED_DATA + 100, "number": 76}),
    ("cpg", "membership", {"group": GROUP}),
    ("cpg", "local_get", {}),
    ("cpg", "iteration_initialize", {"group": GROUP, "type": 2}),
    ("cpg", "iteration_next", {"iteration": 77}),
    ("cpg", "iteration_finalize", {"iteration": 77}),
    ("cpg", "leave", {"group": GROUP, "pid": PID}),
    ("cpg", "finalize", {}),
    ("quorum", "gettype", {}),
    ("quorum", "getquorate", {}),
    ("quorum", "trackstart", {"flags": 3}),
    ("quorum", "trackstop", {}),
    ("quorum", "model_gettype", {"model": 1}),
    ("quorum", "getquorate", {}),
    ("quorum", "trackstart", {"flags": 3}),
    ("quorum", "trackstop", {}),
    ("votequorum", "getinfo", {"node": 1}),
    ("votequorum", "setexpected", {"expected": 5}),
    ("votequorum", "setvotes", {"votes": 3, "node": 2}),
    ("votequorum", "trackstart", {"context": CONTEXT, "flags": 3}),
    ("votequorum", "trackstop", {}),
    ("votequorum", "qdevice_register", {"name": b"Qdevice"}),
    ("votequorum", "qdevice_unregister", {"name": b"Qdevice"}),
    ("cmap", "set_map", {"map": 1}),
    ("cmap", "set", {"key": b"a.key", "length": 6, "type": 11, "data": b"value\0"}),
    ("cmap", "get", {"key": b"a.key", "length": 256}),
    ("cmap", "adjust", {"key": b"a.number", "step": 1}),
    ("cmap", "adjust", {"key": b"a.number", "step": -1}),
    ("cmap", "iter_init", {"prefix": b"totem."}),
    ("cmap", "iter_next", {"iteration": 78}),
    ("cmap", "iter_finalize", {"iteration": 78}),
    ("cmap", "track_add", {"key": b"a.key", "flags": 7, "instance": CAPTURED["instance"]}),
    ("cmap", "track_delete", {"track": 79}),
    ("cmap", "delete", {"key": b"a.key"}),
    ("cfg", "ring_status", {}),
    ("cfg", "node_addresses", {"node": 2}),
    ("cfg", "node_status", {"node": 2, "version": 1}),
    ("cfg", "local_get", {}),
    ("cfg", "trackstart", {"flags": 0}),
    ("cfg", "reply_shutdown", {"response": 1}),
    ("cfg", "trackstop", {}),
    ("cfg", "try_shutdown", {"flags": 2}),
    ("cfg", "kill_node", {"node": 3, "reason": b"enough\0"}),
    ("cfg", "reload", {}),
    ("cfg", "reopen_logs", {}),
]
"""What the capture has called, as it must be read."""


def test_a_group_that_libcpg_has_not_set_is_no_mistake() -> None:
    """For all groups, and for the names of groups, it sends what its stack has where the group is."""
    for kind in (1, 2, 3):
        message = struct.pack("<i4xi4xI4x128sI4x", 5, 160, 0xDEADBEEF, b"\xff" * 128, kind)
        found = request("cpg", message)
        assert found is not None and found.values == {"group": b"", "type": kind}
    assert request("cpg", struct.pack("<i4xi4xI4x128s", 3, 152, 0xDEADBEEF, b"\xff" * 128)) is None


def plain(found: tuple[results.Address, ...]) -> list[list[int]]:
    return [[a.node, a.pid, int(a.reason)] for a in found]


HEARD: list[list[Any]] = [
    ["confchg", GROUP.hex(), plain(MEMBERS), 3, plain(LEFT), 2, plain(JOINED), 1],
    ["totem", list(RING), 3, [1, 2, 9]],
    ["deliver", GROUP.hex(), 2, 7, b"hello".hex(), 5],
    ["deliver", GROUP.hex(), 2, 7, b"onetwoend".hex(), 9],
    ["membership", plain(MEMBERS)],
    ["local_get", 9],
    ["iteration_next", GROUP.hex(), 2, 7],
    ["quorate", 1, 1],
    ["quorum_v0", 1, RING.seq, 3, [1, 2, 9]],
    ["quorate", 1, 1],
    ["nodelist", list(RING), 3, [1, 2, 9], 2, [2, 9], 1, [5]],
    ["quorum_v1", 1, list(RING), 3, [1, 2, 9]],
    ["info", 1, 1, 2, 3, 4, 5, 6, 7, 8, "Qdevice"],
    ["votes_nodelist", CONTEXT, list(RING), 3, [1, 2, 9]],
    ["votes_quorum", CONTEXT, 1, 4, [[1, 1], [2, 1], [5, 2], [9, 1]]],
    ["votes_expected", CONTEXT, 5],
    ["get", "value", 6, 11],
    ["iter_next", "totem.cluster_name", 6, 11],
    ["changed", 4, "a.key", [11, b"new\0".hex()], [0, ""]],
    ["changed", 2, "a.key", [11, b"newer\0".hex()], [11, b"new\0".hex()]],
    ["changed", 1, "a.key", [0, ""], [6, b"\1\0\0\0".hex()]],
    ["ring_status", 1, "10.0.0.1", "OK"],
    ["node_addresses", 1, bytes([10, 0, 0, 2]).hex()],
    ["node_status", 2, 1, 1, 0, 3, 4, 5, 1, 1, 1500, "10.0.0.1", "10.0.0.2"],
    ["local_get", 9],
    ["shutdown", 1],
]
"""What the capture has sent, as programs must hear it; the three parts of a message as one."""


def test_what_the_libraries_write_is_read() -> None:
    found = [(service, request(service, whole(text))) for service, _, text in CAPTURED["asked"]]
    assert found == [(service, Request(name, values)) for service, name, values in ASKED]


def test_what_the_libraries_understand_is_written() -> None:
    assert CAPTURED["heard"] == HEARD
    assert capture.sent() == CAPTURED["sent"]


def test_every_request_and_event_of_the_table_was_captured() -> None:
    asked = {(service, name) for service, name, _ in CAPTURED["asked"]}
    assert {(layout.service, layout.name) for layout in REQUESTS} == asked
    ids = {(layout.service, layout.id) for layout in EVENTS}
    effects = [
        (kind.split()[0], struct.unpack_from("<i", event(e, model=int(kind.endswith("V1"))))[0])
        for kind, found in capture.EFFECTS.items()
        for e in found
    ]
    effects += [("cmap", struct.unpack_from("<i", change)[0]) for change in capture.CHANGES]
    effects.append(("cfg", struct.unpack_from("<i", shutdown_asked(1))[0]))
    assert set(effects) == ids


@pytest.mark.parametrize("layout", [*REQUESTS, *ANSWERS, *EVENTS], ids=lambda found: f"{found.service}-{found.name}")
def test_fields_lie_one_behind_the_other(layout: Layout) -> None:
    end = 16 if layout in REQUESTS else RESPONSE_HEAD
    for field in layout.fields:
        size = struct.calcsize(field.type.value)
        assert end <= field.offset and field.offset % min(size, 4) == 0, field
        end = field.offset + size
    assert end <= layout.size and layout.size % 8 == 0
    if layout.tail is not Tail.NONE:
        assert end <= layout.tail_at <= layout.size
    names = [field.name for field in layout.fields]
    assert set(layout.counts) <= set(names)


def test_what_is_too_short_or_lies_about_its_size_is_refused() -> None:
    for service, name, text in CAPTURED["asked"]:
        message = whole(text)[:4096]
        layout = next(found for found in REQUESTS if (found.service, found.name) == (service, name))
        for size in range(0, layout.size, 4):
            assert request(service, message[:size]) is None
        assert request("quorum" if service == "cpg" else "cpg", struct.pack("<i", 99) + message[4:]) is None
    join = whole(CAPTURED["asked"][0][2])
    assert request("cpg", join[:16] + struct.pack("<I", 129) + join[20:]) is None, "a name has at most 128 bytes"
    mcast = whole(CAPTURED["asked"][1][2])
    assert request("cpg", mcast[:-1]) is None
    assert request("cpg", mcast[:32] + struct.pack("<I", 13) + mcast[36:]) is None, "more than there is"


@given(st.sampled_from(["cpg", "quorum", "votequorum", "cmap", "cfg"]), st.integers(-1, 20), st.binary(max_size=300))
def test_any_bytes_are_a_request_or_none(service: str, number: int, body: bytes) -> None:
    message = struct.pack("<i4xi4x", number, 16 + len(body)) + body
    found = request(service, message)
    assert found is None or found.name in {layout.name for layout in REQUESTS if layout.service == service}


def test_errors_and_what_programs_do_not_hear() -> None:
    refused = answer("cpg", "join", Code.NO_RESOURCES)
    assert struct.unpack("<i4xi4xi4x", refused) == (0, 24, 18)
    assert len(answer("cpg", "membership")) == 32 + 24 * 384
    with pytest.raises(TypeError, match="Connect"):
        event(results.Connect())
    with pytest.raises(KeyError):
        answer("cpg", "mcast")
