"""Python that reads bytes from the wire: any bytes, no exception (cases 133, 137, 139 and 163)."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.packet import Padding
from zenjun.proto import wire
from zenjun.proto.core import add_checksum, check
from zenjun.proto.openpdu import NO_PAST, OpenPdu, OpenProposal, Past, decode_open, encode_open
from zenjun.tools.dissect import Dot1Q, Ether, Zenjun, as_dict, complete, find

CLUSTER = wire.cluster_id("fuzz")
ETHERTYPE = struct.pack(">H", wire.ETHERTYPE)


def whole(layout: wire.Layout, **values: Any) -> st.SearchStrategy[bytes]:
    """Bytes of a layout; each field any value, small ones often, unless a strategy or a value is given for it."""

    def number(field: wire.Field) -> st.SearchStrategy[int]:
        given = values.get(field.name)
        if isinstance(given, int):
            return st.just(given)
        if given is not None:
            assert isinstance(given, st.SearchStrategy)
            return given
        return st.one_of(st.integers(0, 5), st.integers(0, 256**field.width - 1))

    return st.tuples(*(number(field) for field in layout.fields)).map(lambda numbers: layout.struct.pack(*numbers))


def payloads() -> st.SearchStrategy[bytes]:
    def join(*parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
        return st.tuples(*parts).map(b"".join)

    def many(part: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
        return st.lists(part, max_size=6).map(b"".join)

    message = join(whole(wire.MESSAGE, size=st.integers(0, 12), mflags=st.integers(0, 3)), st.binary(max_size=16))
    return st.one_of(
        many(message),
        whole(wire.CONFIRM),
        join(whole(wire.NAK), many(whole(wire.RANGE))),
        join(whole(wire.OPEN), many(whole(wire.MEMBER)), st.binary(max_size=12)),
        st.binary(max_size=80),
    )


@st.composite
def pdus(draw: st.DrawFn) -> bytes:
    """PDUs that are right, or wrong in any field, cut anywhere, with anything behind."""
    stations = draw(st.integers(0, 6))
    flags = draw(st.integers(0, 31))
    header = draw(
        whole(
            wire.HEADER,
            cluster=CLUSTER,
            version=1,
            kind=st.integers(0, 12),
            flags=flags,
            stations=st.one_of(st.just(stations), st.integers(0, 255)),
            length=st.one_of(st.integers(0, 120), st.integers(0, 65535)),
        )
    )
    vectors = draw(st.binary(min_size=4 * stations, max_size=4 * stations)) * (2 if flags & wire.Flag.PACK else 1)
    pdu = header + vectors + draw(payloads())
    if draw(st.booleans()):
        pdu = add_checksum(pdu)
    if draw(st.booleans()):
        pdu = pdu[: draw(st.integers(0, len(pdu)))]
    return pdu + draw(st.binary(max_size=8))


@settings(max_examples=300, deadline=None)
@given(st.one_of(pdus(), st.binary(max_size=200)), st.booleans())
def test_dissecting_never_raises_and_gives_the_bytes_back(pdu: bytes, tagged: bool) -> None:
    tag = b"\x81\x00\x00\x07" if tagged else b""
    frame = bytes(12) + tag + ETHERTYPE + pdu
    dissected = Ether(frame)
    assert bytes(dissected) == frame
    dissected.clear_cache()
    assert bytes(dissected) == frame  # built anew from the fields
    layer = find(dissected)
    assert (layer is not None) == (len(pdu) >= wire.HEADER.size)
    assert dissected.haslayer(Dot1Q) == tagged
    if layer is not None:
        assert layer.check_ok in (True, False, None)
        plain = as_dict(layer)
        assert plain["complete"] == complete(layer)
        layer.show(dump=True)
        layer.summary()


@settings(max_examples=300, deadline=None)
@given(pdus())
def test_what_the_core_takes_the_dissector_understands(pdu: bytes) -> None:
    """Two readers of one table, one judgement: whatever passes the C codec is complete, with the right checksum, for scapy."""
    stations = pdu[wire.HEADER.offset("stations")] if len(pdu) >= wire.HEADER.size else 1
    if not 1 <= stations <= wire.STATIONS_MAX or check(pdu, CLUSTER, stations) != 0:
        return
    layer = Zenjun(pdu)
    assert layer.check_ok is True
    assert complete(layer)
    assert len(layer) - (len(layer[Padding]) if Padding in layer else 0) <= len(pdu)


@settings(max_examples=300, deadline=None)
@given(st.one_of(pdus(), st.binary(max_size=200)), st.integers(1, 6))
def test_decoding_an_open_never_raises(pdu: bytes, stations: int) -> None:
    decoded = decode_open(pdu, stations)
    assert decoded is None or 1 <= decoded.src <= stations


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_open_both_ways(data: st.DataObject) -> None:
    """The engine's OPEN is what the C codec passes and the scapy layer shows."""
    stations = data.draw(st.integers(1, 8))
    src = data.draw(st.integers(1, stations))
    life = st.integers(1, 2**31)
    others = data.draw(st.sets(st.integers(1, stations)))
    members = tuple((number, data.draw(life)) for number in sorted(others | {src}))
    number = data.draw(st.integers(1, 2**29))
    pasts = [(s, data.draw(st.integers(0, number - 1)), data.draw(st.integers(0, 2**64 - 1))) for s, _ in members]
    pasts = [past for past in pasts if past[1]]
    proposal = data.draw(st.sampled_from([None, OpenProposal(number, members, tuple(pasts))]))
    sent = OpenPdu(
        src=src,
        incarnation=dict(members)[src],
        frame_max=data.draw(st.integers(512, 65535)),
        proposal=proposal,
        highest=number + data.draw(st.integers(0, 5)),
        fingerprint=data.draw(st.integers(0, 2**32 - 1)),
        age_ms=data.draw(st.integers(0, 2**32 - 1)),
        boot=data.draw(st.integers(0, 2**64 - 1)),
        started=proposal is not None and data.draw(st.booleans()),
        host=data.draw(st.text(st.characters(categories=["L", "N"]), max_size=20)),
        past=next((Past(*rest) for s, *rest in pasts if s == src), NO_PAST),
    )
    pdu = encode_open(sent, cluster=CLUSTER, stations=stations, checksum=add_checksum)
    assert check(pdu, CLUSTER, stations) == 0
    got = decode_open(pdu, stations)
    if len(sent.host.encode()) <= wire.OPEN_NAME_MAX:
        assert got == sent
    layer = Zenjun(pdu)
    assert layer.check_ok and complete(layer)
    assert layer.src == src and layer.payload.boot == sent.boot
    lives = [(m.station, m.member_incarnation) for m in layer.payload.proposed]
    assert lives == list(members if proposal else [(src, sent.incarnation)])
    shown = [(m.station, m.past, m.reached) for m in layer.payload.proposed if m.past]
    assert shown == (pasts if proposal else [past for past in pasts if past[0] == src])
