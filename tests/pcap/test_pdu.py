"""The decoder of the printing tools against the scapy layers: the same dictionaries, whatever the bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.l2 import CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q
from zenjun.proto import wire
from zenjun.tools.dissect import Ether, Zenjun, as_dict, find
from zenjun.tools.pcap.frames import pdu as plain
from zenjun.tools.pcap.frames.pdu import decode, place

from .built import PDUS, frame


def same(data: bytes) -> None:
    layer = Zenjun(data) if len(data) >= wire.HEADER.size else None
    assert decode(data) == (None if layer is None else as_dict(layer)), data.hex()


@pytest.mark.parametrize("name", PDUS)
def test_every_kind_whole_padded_and_cut(name: str) -> None:
    data = bytes(PDUS[name])
    for padding in (b"", b"\0" * 20, b"\xaa" * 3):
        same(data + padding)
    for size in range(len(data)):
        same(data[:size])


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from(sorted(PDUS)), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), st.integers(0, 40)
)
def test_damaged(name: str, changes: list[tuple[int, int]], padding: int) -> None:
    data = bytearray(bytes(PDUS[name]) + bytes(padding))
    for at, value in changes:
        data[at % len(data)] = value
    same(bytes(data))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_anything(data: bytes) -> None:
    same(data)


def test_link_layers() -> None:
    """Case 157: where the PDU begins, behind tags and in cooked captures."""
    one = PDUS["one"]
    for lower, link in (
        (Ether(type=wire.ETHERTYPE), 1),
        (Ether(type=0x8100) / Dot1Q(vlan=5, type=wire.ETHERTYPE), 1),
        (Ether(type=0x88A8) / Dot1AD(vlan=5, type=0x8100) / Dot1Q(vlan=6, type=wire.ETHERTYPE), 1),
        (CookedLinux(proto=wire.ETHERTYPE), 113),
        (CookedLinux(proto=0x8100) / Dot1Q(type=wire.ETHERTYPE), 113),
        (CookedLinuxV2(proto=wire.ETHERTYPE), 276),
    ):
        data = bytes(lower / one)
        found = place(link, data)
        assert found is not None and found.ethertype == wire.ETHERTYPE
        again = one.__class__(bytes(one))
        assert isinstance(again, Zenjun) and decode(data[found.at :]) == as_dict(again)
    assert place(105, b"x" * 100) is None
    for link in plain.LINKS:
        for size in range(24):
            cut = place(link, frame(one)[:size])
            assert cut is not None and cut.at <= max(size, 20)


def test_a_frame_of_tags_only_ends() -> None:
    endless = bytes(12) + b"\x81\x00\x00\x01" * 1000
    found = place(1, endless)
    assert found is not None and found.at < 60
    source = random.Random(1)
    for _ in range(300):
        place(1, source.randbytes(source.randint(0, 60)))


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "HEXADECIMAL", frozenset())
    with pytest.raises(AssertionError):
        same(bytes(PDUS["one"]))
    assert find(Ether(frame(PDUS["one"]))) is not None
