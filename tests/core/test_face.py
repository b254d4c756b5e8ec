"""The Python face of the C core: batches, partial offers, names and sizes that must fit the C side."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zenjun.proto import core as face
from zenjun.proto.core import Core, Drop, Fault, Message, Status, add_checksum, check, crc32c
from zenjun.proto.core import core as typed
from zenjun.proto.core._core import ffi, lib
from zenjun.proto.core.core import DELIVER_BYTES, DELIVER_MAX
from zenjun.proto.errors import InvariantError, UsageError
from zenjun.proto.wire import HEADER, MESSAGE_MAX, VERSION, Kind

from ..virtual.cores import Cores, config
from ..virtual.segment import MS

HEADER_FILE = Path(face.__file__).with_name("zj.h").read_text()
VIEW = 11


def alone(**changes: int) -> Core:
    """An instance of one: what is offered is delivered by the next step."""
    core = Core(**config(**changes))
    core.open(MS, 1, VIEW, (1,), 1500)
    return core


def roll(core: Core, payloads: list[bytes]) -> list[Message]:
    """Send everything, as fast as the window allows; bounded."""
    out: list[Message] = []
    waiting = list(reversed(payloads))
    for turn in range(100_000):
        while waiting and core.offer(waiting[-1], group=3, client=4):
            waiting.pop()
        core.step(2 * MS + turn * MS, True)
        core.tx()
        out += core.deliver()
        if not waiting and len(out) == len(payloads):
            return out
    raise AssertionError("does not end")


# ---- built from these sources


def test_enums_are_those_of_the_header() -> None:
    for enum, prefix in ((Status, "ZJ_S_"), (Fault, "ZJ_FAULT_"), (Drop, "ZJ_DROP_")):
        declared = set(re.findall(rf"\b{prefix}(\w+)\b", HEADER_FILE)) - {"COUNT"}
        assert {item.name for item in enum} == declared


def test_drops_have_names() -> None:
    assert len(face.DROP_NAMES) == len(Drop)
    assert "unknown" not in face.DROP_NAMES and len(set(face.DROP_NAMES)) == len(Drop)


def test_counters_have_all_fields() -> None:
    declared = re.search(r"struct zj_counters \{(.*?)\};", HEADER_FILE, re.DOTALL)
    assert declared is not None
    fields = re.sub(r"/\*.*?\*/", "", declared[1], flags=re.DOTALL)
    assert set(alone().counters()) == set(re.findall(r"\b([a-z_]+)[,;]", fields))


def test_a_module_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed, "API_VERSION", face.API_VERSION + 1)
    with pytest.raises(InvariantError, match="build it again"):
        typed._check_build()


def test_addresses_for_other_modules() -> None:
    first, second = alone(), alone()
    assert first.api_pointer == second.api_pointer != 0
    assert first.handle_pointer != second.handle_pointer
    assert first.memory_bytes > 128 * 1500


# ---- configuration


@pytest.mark.parametrize(
    "wrong",
    [
        {"stations": 0}, {"stations": 65}, {"self_index": 1}, {"window": 65}, {"window": 0}, {"slots": 100}, {"frame_max": 511},
        {"message_max": MESSAGE_MAX + 1}, {"message_max": 0}, {"cluster": 2**32}, {"seed": -1},
    ],
)  # fmt: skip
def test_values_out_of_bounds_are_a_usage_error(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Core(**config(**wrong))


# ---- messages


def test_a_message_comes_back_with_its_place() -> None:
    core = alone()
    assert core.offer(b"abc", group=7, client=9, type=1)
    assert core.offer(b"", group=8, client=2, need_ack=True)
    status = core.step(2 * MS, True)
    assert status & Status.DELIVER and status & Status.TX
    first, second = core.deliver()
    assert first == Message(b"abc", first.clock, 0, 7, 9, 0, 0, 1)
    assert second == Message(b"", first.clock, 0, 8, 2, 1, 0, 0)
    assert first.clock > 1 << 32
    assert core.deliver() == []
    core.step(3 * MS, True)
    assert core.positions() == (1, 1, 1)
    assert core.digest()[0] == 1
    assert not core.unstable


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=30))
def test_any_sizes_in_order(payloads: list[bytes]) -> None:
    assert [m.data for m in roll(alone(), payloads)] == payloads


def test_more_messages_than_a_batch_holds() -> None:
    payloads = [b"%d" % i for i in range(3 * DELIVER_MAX)]
    assert [m.data for m in roll(alone(), payloads)] == payloads


def test_messages_larger_than_the_delivery_buffer() -> None:
    payloads = [b"a" * 10, b"b" * (DELIVER_BYTES + 1), b"c" * 10, b"d" * DELIVER_BYTES, b"e" * 3_000_000, b"f"]
    assert [m.data for m in roll(alone(), payloads)] == payloads


def test_collected_messages_come_first() -> None:
    core = alone()
    core.offer(b"1", group=0, client=0)
    core.step(2 * MS, True)
    core.collect()
    core.offer(b"2", group=0, client=0)
    core.step(3 * MS, True)
    assert [m.data for m in core.deliver()] == [b"1", b"2"]


def test_a_partly_taken_message_is_to_be_offered_again() -> None:
    core = alone(window=4, slots=8)
    large = b"x" * 100_000
    assert not core.offer(large, group=1, client=1)
    with pytest.raises(UsageError, match="partly taken"):
        core.offer(b"other", group=1, client=1)
    delivered: list[Message] = []
    taken = False
    for turn in range(1000):
        core.step((2 + turn) * MS, True)
        core.tx()
        delivered += core.deliver()  # what is not delivered holds the window
        taken = taken or core.offer(large, group=1, client=1)
        if delivered:
            break
    assert [m.data for m in delivered] == [large]
    assert core.offer(b"other", group=1, client=1)


def test_a_new_instance_forgets_a_partly_taken_message() -> None:
    core = alone(window=4, slots=8)
    assert not core.offer(b"x" * 100_000, group=1, client=1)
    core.close()
    assert not core.is_open
    assert not core.offer(b"y", group=1, client=1), "in no instance nothing is taken"
    core.open(5 * MS, 2, 22, (2,), 1500)
    assert [m.data for m in roll(core, [b"y"])] == [b"y"]


def test_too_large_a_message_is_a_usage_error() -> None:
    core = alone(message_max=1000)
    assert core.offer(b"x" * 1000, group=1, client=1)
    with pytest.raises(UsageError, match="1001 bytes"):
        core.offer(b"x" * 1001, group=1, client=1)


def test_an_instance_without_everybodys_incarnation_is_a_bug() -> None:
    with pytest.raises(InvariantError):
        alone().open(MS, 2, 22, (1, 1), 1500)


# ---- frames


def test_frames_are_taken_off_in_order() -> None:
    core = alone(window=512, slots=1024)
    for i in range(300):
        assert core.offer(b"%04d" % i + bytes(1300), group=1, client=1)
    core.step(2 * MS, True)
    frames = core.tx(3 * MS)
    assert len(frames) >= 300
    assert core.tx() == []
    data = [f for f in frames if f[HEADER.offset("kind")] == Kind.DATA]
    assert [f[-1304:-1300] for f in data] == [b"%04d" % i for i in range(300)]
    assert all(check(f, 1, 1) == Drop.NONE for f in frames)
    assert core.counters()["tx_data"] + core.counters()["tx_confirm"] >= 300


def test_dropped_frames_are_counted_by_reason() -> None:
    core = alone()
    assert core.rx(MS, b"", bytes(6)) == Drop.SHORT
    assert core.rx(MS, bytes(100), bytes(6)) == Drop.CLUSTER
    assert core.drops() == {"short": 1, "cluster": 1}
    assert core.dropped(Drop.SHORT) == 1


def test_control_pdus_come_with_their_address() -> None:
    core = Core(**config(stations=2))
    core.heartbeat(MS)  # in no instance: nothing
    assert core.tx() == []
    values = {"cluster": 1, "version": VERSION, "kind": Kind.DATA, "stations": 2, "src": 2, "incarnation": 1}
    pdu = add_checksum(HEADER.struct.pack(*(values.get(f.name, 0) for f in HEADER.fields)) + bytes(8))
    assert core.rx(MS, pdu, b"\x02abcde") == Drop.CLOSED
    assert core.step(MS, True) & Status.CONTROL
    (control,) = core.control()
    assert control == (pdu, Drop.CLOSED, b"\x02abcde")
    assert core.control() == []


def test_seal_and_check() -> None:
    values = {"cluster": 5, "version": VERSION, "kind": Kind.DATA, "stations": 3, "src": 1}
    pdu = HEADER.struct.pack(*(values.get(f.name, 0) for f in HEADER.fields)) + bytes(12)
    assert check(pdu, 5, 3) == Drop.CHECK
    good = add_checksum(pdu)
    assert check(good, 5, 3) == Drop.NONE
    assert check(good, 6, 3) == Drop.CLUSTER
    assert check(good, 5, 4) == Drop.STATIONS
    for at in range(HEADER.size + 12):
        damaged = bytearray(good)
        damaged[at] ^= 0x10
        assert check(bytes(damaged), 5, 3) != Drop.NONE


def test_crc32c() -> None:
    """The check value of CRC-32C (RFC 3720, B.4 has others), and continuation."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"56789", crc32c(b"1234")) == 0xE3069283


# ---- reads


def test_peers_and_matrix() -> None:
    core = Core(**config(stations=3, self_index=1))
    core.open(MS, 4, 44, (5, 6, 7), 1400)
    assert [core.peer(i).incarnation for i in range(3)] == [5, 6, 7]
    assert core.peer(0).mac == bytes(6) and not core.peer(0).left
    assert core.matrix() == [[0, 0, 0]] * 3
    assert core.fence() is None
    assert core.clock == 4 << 32
    assert 0 < core.payload_max < 1400
    core.set_frame_max(600)
    assert core.payload_max < 600
    core.want_ack(True)
    assert core.nak_due_ns() == core.poll_due_ns() == core.confirm_due_ns() == 2**64 - 1
    assert core.nak(MS) == core.poll(MS) == 0


# ---- the rest of an instance that has ended


def held(stations: int, **changes: int) -> Core:
    """The first station of some. It holds five PDUs of the second one, the third and fourth of which are one message. Of a third
    station it has heard nothing, so with three it cannot put them into order."""
    one, two = (Core(**config(stations=stations, self_index=i, frame_max=512, **changes)) for i in range(2))
    for core in (one, two):
        core.open(MS, 1, VIEW, (1,) * stations, 512)
    for data in (b"a", b"b" * 300, b"c" * 600, b"d" * 300):
        assert two.offer(data, group=1, client=1)
        two.step(MS, True)
    sent = two.tx()
    assert len(sent) == 5 and all(one.rx(MS, pdu, bytes(6)) == 0 for pdu in sent)
    assert [m.data[:1] for m in one.deliver()] == ([] if stations > 2 else [b"a", b"b", b"c", b"d"])
    return one


@pytest.mark.parametrize(("upto", "out"), [(0, b""), (1, b"a"), (2, b"ab"), (3, b"ab"), (4, b"abc"), (5, b"abcd"), (99, b"abcd")])
def test_flush_delivers_what_is_held_up_to_a_place(upto: int, out: bytes) -> None:
    core = held(3)
    core.flush(VIEW, upto)
    assert not core.flushing, "an instance that goes on is not flushed"
    core.close()
    assert core.deliver() == [] and core.flushed
    core.flush(VIEW, upto)
    assert core.flushing and core.flushed == (upto == 0)
    got = core.deliver()
    assert b"".join(m.data[:1] for m in got) == out and [m.position for m in got] == [0, 1, 3, 4][: len(out)]
    assert core.flushed == (upto == 0), "its release has not been told"
    assert core.positions() == (min(upto, 5),) * 3 and core.flushed and core.deliver() == []
    assert not core.offer(b"x", group=1, client=1)
    core.open(MS, 2, VIEW + 1, (1, 1, 1), 512)
    assert not core.flushing and core.positions() == (0, 0, 0) and core.deliver() == []


def test_flush_releases_what_was_delivered_and_nothing_beyond() -> None:
    core = held(2)
    assert core.positions() == (5, 0, 0) and core.reached() == (VIEW, 0)
    core.close()
    core.flush(VIEW, 3)
    assert not core.flushed and core.deliver() == [] and core.positions() == (5, 3, 3) and core.flushed


def test_flush_goes_on_within_a_pdu() -> None:
    """The driver's batch may end within a PDU: it goes on there, unless the PDU lies beyond the place."""
    for upto, rest in ((4, [b"2", b"3"]), (0, [])):
        core = alone()
        for data in (b"1", b"2", b"3"):
            core.offer(data, group=1, client=1)
        core.step(MS, True)
        message = ffi.new("struct zj_message *")
        assert lib.zj_next(core._core, message) == 1
        core.close()
        core.flush(VIEW, upto)
        assert [m.data for m in core.deliver()] == rest


def test_behind_a_right_tag_no_checksum_is_looked_at() -> None:
    cores = Cores(2, per_core={1: {"tagged": True}})
    pdu = bytearray(cores.send(0))
    pdu[-1] ^= 1
    assert cores.give(0, 1, bytes(pdu)) == 0
    assert Cores(2).give(0, 1, bytes(pdu)) == Drop.CHECK
