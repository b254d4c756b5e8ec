"""corosync.conf, the maps of libcmap, libcpg's bound of a list, and requests that are none."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from threading import Event
from unittest.mock import Mock

import pytest
from zenjun.daemon import config as configuration
from zenjun.daemon.config import ConfigError
from zenjun.daemon.corosync import keys
from zenjun.daemon.corosync.codec import Request, refusal
from zenjun.daemon.corosync.conf import MESSAGE_BYTES, check, load
from zenjun.daemon.corosync.groups import LIST_MAX, NAMES_ONLY, ONE_GROUP, Groups, pieces
from zenjun.daemon.corosync.ipc import Welcomed
from zenjun.daemon.corosync.mapped import DATA_MAX, FOLDER, MappedError, MappedFile, files_max
from zenjun.daemon.corosync.maps import STRING, U8, U32, VALUE_MAX, Map, Track, Type, Value
from zenjun.daemon.corosync.nodes import Nodes
from zenjun.daemon.corosync.order import LOOKS, Order
from zenjun.daemon.corosync.past import Past, PastError
from zenjun.daemon.corosync.process import Process as StandInProcess
from zenjun.daemon.corosync.process import is_silent, patience_s
from zenjun.daemon.corosync.programs import Program
from zenjun.daemon.corosync.table import MAPPED_DATA, MAPPED_LENGTH, REQUESTS
from zenjun.proto.service.corosync.cpg import Cpg, Room
from zenjun.proto.service.corosync.messages import VERSION, Process, Reason
from zenjun.proto.service.corosync.results import Address, Code, Confchg, Members
from zenjun.proto.service.corosync.ring import UnderWay

from ..rules import rule
from .corosync_alone import command

GOOD = """# a comment
totem {
  version: 2
  cluster_name: lab
  interface {
    linknumber: 1
    mcastport: 5407
  }
  interface {
    mcastport: 5405
  }
}
quorum {
  provider: corosync_votequorum
}
uidgid {
  uid: 1001
  gid: 1002
}
zenjun {
  alone_after_ms: 250
}
nodelist {
  node {
    nodeid: 10
    zenjun_station: 2
    ring0_addr: 10.0.0.2
  }
  node {
    nodeid: 7
    zenjun_station: 1
    ring0_addr: 10.0.0.1
    quorum_votes: 2
  }
}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "corosync.conf"
    path.write_text(text)
    return path


def test_a_configuration(tmp_path: Path) -> None:
    conf = load(written(tmp_path, GOOD))
    assert [(node.id, node.station, node.votes, node.address) for node in conf.nodes] == [
        (10, 2, 1, "10.0.0.2"),
        (7, 1, 2, "10.0.0.1"),
    ]
    assert (set(conf.uids), set(conf.gids)) == ({1001}, {1002})
    assert conf.alone_after_ms == 250
    assert conf.ring_nodes(2).node == 10
    assert conf.ring_nodes(2).fingerprint == conf.ring_nodes(1).fingerprint
    assert conf.quorum().votes == {10: 1, 7: 2}
    found = dict(conf.keys())
    assert found["totem.version"] == Value(U32, b"\2\0\0\0")
    assert found["totem.cluster_name"] == Value(STRING, b"lab\0")
    assert found["totem.interface.1.mcastport"] == Value(Type.U16, struct.pack("<H", 5407))
    assert found["totem.interface.0.mcastport"] == Value(Type.U16, struct.pack("<H", 5405))
    assert found["nodelist.node.1.quorum_votes"] == Value(U32, b"\2\0\0\0")
    assert found["uidgid.config.uid.1001"] == Value(U8, b"\1")
    assert not list(check(conf, 2, 1, MESSAGE_BYTES, "switched"))


def test_a_folder_beside_it_names_users(tmp_path: Path) -> None:
    (tmp_path / "uidgid.d").mkdir()
    (tmp_path / "uidgid.d" / "one").write_text("uidgid {\n  uid: 0\n  gid: root\n}\n")
    (tmp_path / "uidgid.d" / ".hidden").write_text("nonsense")
    conf = load(written(tmp_path, GOOD))
    assert (set(conf.uids), set(conf.gids)) == ({0, 1001}, {0, 1002})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    nodeid: 10\n", "", "24: node without nodeid"),
        ("nodeid: 7", "nodeid: 10", "29: nodeid 10 is there twice"),
        ("zenjun_station: 1", "zenjun_station: 2", "29: station 2 is there twice"),
        ("    ring0_addr: 10.0.0.2\n", "", "24: node 10 has no ring0_addr"),
        ("nodeid: 7", "nodeid: seven", "30: nodeid: expected a number, not 'seven'"),
        ("nodeid: 7", "nodeid: ²", "30: nodeid: expected a number, not '²'"),
        ("nodeid: 7", f"nodeid: {2**32}", f"30: nodeid: expected at most {2**32 - 1}"),
        ("quorum_votes: 2", "quorum_votes: 67108864", "33: quorum_votes: expected at most 67108863"),
        ("zenjun_station: 1", f"zenjun_station: {'9' * 5000}", "31: zenjun_station: expected at most 64"),
        ("corosync_votequorum", "other", "14: quorum.provider: expected corosync_votequorum"),
        ("provider", "allow_downscale: 1\n  provider", "14: quorum.allow_downscale is not supported here"),
        ("quorum {", "quorum {\n  device {\n    model: net\n  }", "15: quorum.device is not supported here"),
        ("alone_after_ms: 250", "alone_after_ms: -1", "21: alone_after_ms: expected a number"),
        ("uid: 1001", "uid: no such user", "17: there is no user 'no such user'"),
        ("uid: 1001", "uid: a\0b", "17: there is no user 'a\\x00b'"),
        ("uid: 1001", f"uid: {2**32}", f"17: uid: expected at most {2**32 - 1}"),
        ("gid: 1002", "gid: ²", "18: gid: expected a number, not '²'"),
        ("version: 2", "version 2", "3: expected 'key: value', 'section {' or '}'"),
        ("nodelist {", "}\nnodelist {", "23: a closing brace without an opening one"),
        ("nodelist {", "nodelist {\n{", "23: section 'nodelist' is not closed"),
        ("nodelist {", "zenjun {\nnodelist {", "23: section 'zenjun' is not closed"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as error:
        load(written(tmp_path, GOOD.replace(old, new)))
    assert said in str(error.value)


def test_what_is_wrong_beside_it_is_named_with_that_file(tmp_path: Path) -> None:
    (tmp_path / "uidgid.d").mkdir()
    file = tmp_path / "uidgid.d" / "one"
    for text, said in (
        ("uidgid {\n  uid: 0\n", f"{file}:1: section 'uidgid'"),
        ("\nuidgid {\n  ud: 0\n}\n", f"{file}:3: expected uid"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError) as error:
            load(written(tmp_path, GOOD))
        assert str(error.value).startswith(said)


def test_keys_that_no_program_could_take_are_left_out(tmp_path: Path) -> None:
    """libcmap copies names and values into buffers of the largest size."""
    more = f"cluster_name: lab\n  {'k' * 300}: 1\n  two words: 2\n  large: {'x' * VALUE_MAX}\n  right: {'x' * 1000}\n"
    node = f"    nodeid: 7\n    {'n' * 300}: 3\n"
    text = GOOD.replace("cluster_name: lab\n", more).replace("    nodeid: 7\n", node)
    found = dict(load(written(tmp_path, text)).keys())
    assert "totem.right" in found and "totem.large" not in found and "totem.two words" not in found
    assert max(map(len, found)) < 256 and "nodelist.node.1.nodeid" in found


def test_what_does_not_fit_zenjund(tmp_path: Path) -> None:
    conf = load(written(tmp_path, GOOD))
    said = [problem.message for problem in check(conf, 1, 3, 1000, "bus")]
    assert "node 10 is station 2, but zenjund's cluster has stations 1 to 1" in said
    assert "no node of the nodelist is at this station, 3 (nodeid, or zenjun_station)" in said
    assert f"zenjund's cluster.message_max is 1000, expected at least {MESSAGE_BYTES}" in said
    assert "zenjund's cluster.medium is bus, expected switched" in said


def test_what_works_otherwise_than_in_corosync_is_a_warning(tmp_path: Path) -> None:
    text = GOOD.replace("    ring0_addr: 10.0.0.2\n", "    ring0_addr: 10.0.0.2\n    ring4_addr: 10.1.0.2\n")
    assert load(written(tmp_path, text)).warnings == [(28, "ring4_addr is not used: zenjund has at most 4 links")]
    third = "  node {\n    nodeid: 9\n    zenjun_station: 3\n    ring0_addr: 10.0.0.3\n  }\n}\n"
    text = GOOD.replace("quorum_votes: 2", "quorum_votes: 5")[:-2] + third
    (warning,) = load(written(tmp_path, text)).warnings
    assert warning[1].startswith("a minority of stations has the majority of votes")


def test_other_options_of_quorum_are_another_fingerprint(tmp_path: Path) -> None:
    """Nodes of one ring must come to the same; votes may be set, so they do not count."""
    first = load(written(tmp_path, GOOD)).ring_nodes(1).fingerprint
    more_votes = load(written(tmp_path, GOOD.replace("quorum_votes: 2", "quorum_votes: 3"))).ring_nodes(1).fingerprint
    two_node = load(written(tmp_path, GOOD.replace("  provider", "  two_node: 1\n  provider"))).ring_nodes(1).fingerprint
    assert first == more_votes != two_node


@rule("Y2")
def test_another_version_is_another_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins that do not read each other's messages would go different ways in one ring, and nobody would hear of it."""
    conf = load(written(tmp_path, GOOD))
    here = conf.ring_nodes(1).fingerprint
    monkeypatch.setattr("zenjun.daemon.corosync.conf.VERSION", VERSION - 1)
    assert conf.ring_nodes(1).fingerprint != here


def test_users_by_the_keys_of_programs() -> None:
    values = Map()
    for key, number in (
        ("uidgid.gid.5", 1),
        ("uidgid.uid.6", 0),
        ("uidgid.config.uid.7", 1),
        ("uidgid.gid.x", 1),
        ("uidgid.z", 1),
    ):
        values.put(key, U8.pack(number))
    values.put("uidgid.gid.99999999999", U8.pack(1))
    assert keys.users(values) == ([7], [5])


def test_numbers_wrap_and_trackers_hear_of_what_they_want() -> None:
    values, heard = Map(), list[tuple[bytes, Track]]()
    values.track(b"a.", Track.ADD | Track.DELETE | Track.PREFIX, lambda key, event, new, old: heard.append((key, event)))
    assert values.set(b"a.number", Type.U8, b"\xff") is Code.OK
    assert values.adjust(b"a.number", 1) is Code.OK
    assert values.get(b"a.number") == Value(U8, b"\0")
    assert values.adjust(b"a.number", -1) is Code.OK
    assert values.get(b"a.number") == Value(U8, b"\xff")
    assert values.delete(b"a.number") is Code.OK
    assert heard == [(b"a.number", Track.ADD), (b"a.number", Track.DELETE)]
    assert values.track(b"", 7, lambda *_: None) == 0, "all keys, without the flag for it"


def test_what_programs_set_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, the bytes of their values, those that name users, and who wants to hear of changes."""
    monkeypatch.setattr("zenjun.daemon.corosync.maps.VALUES_MAX", 3 * VALUE_MAX)
    monkeypatch.setattr("zenjun.daemon.corosync.maps.USERS_MAX", 2)
    monkeypatch.setattr("zenjun.daemon.corosync.maps.TRACKERS_ALL", 3)
    values, large = Map(), bytes(VALUE_MAX)
    keys_of = [b"large.%d" % k for k in range(4)]
    assert [values.set(key, Type.BINARY, large) for key in keys_of] == [Code.OK] * 3 + [Code.NO_MEMORY]
    assert values.set(keys_of[0], Type.BINARY, large[1:] + b"x") is Code.OK, "in place of another one"
    assert values.set(keys_of[0], Type.BINARY, b"") is Code.OK
    assert values.set(keys_of[3], Type.BINARY, large) is Code.OK
    assert values.delete(keys_of[3]) is Code.OK and values.delete(keys_of[3]) is Code.NOT_EXIST
    assert [values.set(b"uidgid.gid.%d" % k, Type.U8, b"\1") for k in range(3)] == [Code.OK, Code.OK, Code.NO_MEMORY]
    assert values.set(b"uidgid.gid.1", Type.U8, b"\0") is Code.OK
    numbers = [values.track(b"large.1", 7, lambda *_: None) for _ in range(3)]
    assert not values.has_room
    values.untrack(numbers[1])
    values.untrack(numbers[1])
    assert values.has_room


def test_keys_are_listed_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration keeps no copy of the keys, which may be a hundred thousand: what comes or goes in front of it counts."""
    values = Map()
    for name in (b"b.2", b"a.1", b"b.1", b"c.1", b"b.3"):
        values.set(name, Type.U8, b"\1")
    over = values.below(b"b.")
    assert next(over) == b"b.1"
    values.delete(b"b.1")
    values.delete(b"b.2")
    values.set(b"b.25", Type.U8, b"\1")
    assert list(over) == [b"b.25", b"b.3"] and list(values.below(b"")) == [b"a.1", b"b.25", b"b.3", b"c.1"]
    assert (values.count(b"b."), values.count(b"x"), values.count(b"")) == (2, 0, 4)
    heard = list[int]()
    for number, (key, flags) in enumerate(((b"b.", 15), (b"b.25", 7), (b"", 15), (b"c.", 15), (b"b.25", 1), (b"b.25", 15))):
        values.track(key, flags, lambda *_, number=number: heard.append(number))
    values.set(b"b.25", Type.U8, b"\2")
    assert heard == [0, 1, 2, 5], "in the order in which they came"


def test_iterations_of_one_time_share_what_they_list() -> None:
    """A program may have many, of a thousand processes each."""
    ring = Mock(id=(1, 1), members=(1,), table={1: {Process(b"b", 7), Process(b"a", 9)}, 2: {Process(b"a", 8)}}, node=1)
    cpg = Cpg(ring)
    first = cpg.everybody()
    assert first == ((b"a", Address(1, 9)), (b"a", Address(2, 8)), (b"b", Address(1, 7))) and cpg.everybody() is first
    service = Groups(Mock(**{"standin.cpg": cpg}))
    names = service._found(NAMES_ONLY, b"")
    assert names is not None
    ring.table[2].clear()
    list(cpg.on_members(Members(b"a", (), (), ())))
    assert [name for name, _ in names] == [b"a", b"b"], "as of its beginning"
    one = service._found(ONE_GROUP, b"a")
    assert one is not None and list(one) == [(b"a", Address(1, 9))]
    assert service._found(99, b"") is None


@pytest.mark.parametrize(("limit", "files"), [(1024, 256), (4096, 2048), (524_288, 16_384), (-1, 16_384)])
def test_files_leave_descriptors_for_connections(monkeypatch: pytest.MonkeyPatch, limit: int, files: int) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (limit, limit))
    assert files_max() == files


def test_files_of_all_programs_are_bounded(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has many connections uses up no more descriptors than one."""
    monkeypatch.setattr("zenjun.daemon.corosync.groups.files_max", lambda: 3)
    host = Mock()
    service, programs = Groups(host), [Program(k, "cpg", 1, os.getuid()) for k in (1, 2)]

    def given(program: Program, name: str, **values: int | bytes) -> Code:
        shared.write_bytes(bytes(4096))
        service.asked(program, Request(name, values))
        code = host.answer.call_args.args[2]
        assert isinstance(code, Code)
        return code

    path = os.fsencode(shared)
    assert [given(programs[k % 2], "map", path=path) for k in range(4)] == [Code.OK] * 3 + [Code.NO_RESOURCES]
    assert given(programs[0], "unmap", number=99) is Code.INVALID_PARAM
    assert given(programs[0], "map", path=path) is Code.NO_RESOURCES
    assert given(programs[0], "unmap", number=1) is Code.OK
    assert [given(programs[1], "map", path=path) for _ in range(2)] == [Code.OK, Code.NO_RESOURCES]
    service.closed(programs[1])
    assert [given(programs[0], "map", path=path) for _ in range(3)] == [Code.OK, Code.OK, Code.NO_RESOURCES]
    service.closed(programs[0])


def test_a_reload_does_not_wait_for_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What resolves them may hang for longer than a stand-in may. The addresses of before are given meanwhile, and the last
    reload decides, whichever ends first."""
    asked, release = Queue[str](), {name: Event() for name in ("one", "two")}

    def resolve(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.put(name)
        assert release[name].wait(60)
        return [(2, 2, 0, "", (f"10.0.0.{len(name)}{name.count('w')}", 0))]

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    host = Mock(**{"conf.nodes": [Mock(id=1, address="10.0.0.1")]})

    async def run() -> None:
        nodes = Nodes(host)
        for name in ("one", "two"):
            host.conf.nodes = [Mock(id=1, address=name)]
            nodes.resolve_later()
            assert await asyncio.to_thread(asked.get, timeout=60) == name
        assert nodes._addresses == {1: (2, bytes([10, 0, 0, 1]))}
        for name in ("two", "one"):
            release[name].set()
            while any(thread.name == f"addresses of reload {1 + (name == 'two')}" for thread in threading.enumerate()):
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        assert nodes._addresses == {1: (2, bytes([10, 0, 0, 31]))}

    asyncio.run(asyncio.wait_for(run(), 120))


def addresses(count: int, node: int, reason: Reason = Reason.NONE) -> tuple[Address, ...]:
    return tuple(Address(node, pid, reason) for pid in range(1, count + 1))


def test_a_change_is_cut_to_what_libcpg_can_take() -> None:
    """The library copies each list into an array of 128 entries."""
    here, come = addresses(100, 1), addresses(200, 2, Reason.NODEUP)
    members = here + addresses(200, 2)
    found = pieces(Confchg(0, b"g", members, (), come), (2, 200))
    assert [len(piece.joined) for piece in found] == [128, 72]
    assert tuple(a for piece in found for a in piece.joined) == come
    assert all(len(piece.members) == LIST_MAX for piece in found)
    assert Address(2, 200) not in found[0].members, "it has not joined yet"
    assert found[-1].members == (*here, *addresses(27, 2), Address(2, 200)), "the program itself is always in it"
    gone = addresses(200, 2, Reason.NODEDOWN)
    found = pieces(Confchg(0, b"g", here, gone, ()), (1, 1))
    assert [(len(piece.left), len(piece.members)) for piece in found] == [(128, LIST_MAX), (72, 100)]
    small = Confchg(0, b"g", here, gone[:128], ())
    assert pieces(small, (1, 1)) == [small]


def test_a_join_in_a_group_that_is_too_large() -> None:
    """One process joins: one change, with the list cut."""
    change = Confchg(0, b"g", addresses(130, 1), (), (Address(1, 130, Reason.JOIN),))
    (found,) = pieces(change, (1, 129))
    assert found.joined == change.joined
    assert found.members == (*addresses(127, 1), Address(1, 129))


def test_a_request_that_is_in_no_table_is_answered() -> None:
    """With a header, from which the libraries take the error; libcpg waits for no answer to a message."""
    said = refusal(struct.pack("<i4xi4x", 9, 16), Code.NOT_SUPPORTED)
    assert struct.unpack("<i4xi4xi4x", said) == (9, 24, Code.NOT_SUPPORTED)
    assert len(refusal(b"", Code.NOT_SUPPORTED)) == 24
    assert is_silent("cpg", struct.pack("<i", 2)) and not is_silent("cmap", struct.pack("<i", 2))


class Clock:
    """Time for what waits: a list of calls that are due."""

    def __init__(self) -> None:
        self.waits: list[tuple[float, Callable[[], None]]] = []
        self.ends = 0

    def after(self, seconds: float, call: Callable[[], None]) -> Clock:
        self.waits.append((seconds, call))
        return self

    def cancel(self) -> None:
        self.ends += 1
        self.waits.clear()

    def pass_on(self) -> float:
        ((seconds, call),) = self.waits
        self.waits.clear()
        call()
        return seconds


@rule("Y21")
def test_a_zenjund_that_does_not_answer_is_lost() -> None:
    """Not one that has answered late, nor when this process itself was stopped: one look finds nothing, and the next one does."""
    server, ring, clock = Mock(heard=0, **{"open.return_value": "", "join.return_value": ""}), Mock(), Clock()
    order = Order("/zenjund.sock", server, ring, 0.4, clock.after)
    order.open()
    assert not clock.waits, "before there is a connection nobody answers"
    order.on_item(Welcomed(1, (1, 1), 1500, MESSAGE_BYTES))
    waited = 0.0
    for _ in range(20):
        for _ in range(LOOKS - 1):
            waited += clock.pass_on()
        server.heard += 1
        clock.pass_on()
    assert not ring.on_lost.called and server.ask.call_count == 1 + 20 * LOOKS and waited > 0
    waited = 0.0
    while clock.waits:
        waited += clock.pass_on()
    assert 0.4 <= waited + 0.001 <= 0.5, waited
    assert "zenjund does not answer" in ring.on_lost.call_args.args[0]
    order.open()
    order.on_item(Welcomed(2, (1, 2), 1500, MESSAGE_BYTES))
    order.close()
    assert clock.ends and not clock.waits


def test_the_patience_with_zenjund() -> None:
    """As long as the others have, but for a cluster that gives its nodes time to stop."""
    times = {(400, 150): 0.4, (1000, 0): 1.0, (2700, 150): 1.0, (10_000, 0): 1.0, (9000, 3000): 3.0}
    for (fail, quorum), wanted in times.items():
        assert patience_s(Mock(fail_timeout_ms=fail, quorum_timeout_ms=quorum)) == wanted, (fail, quorum)


def wanted_key(key: bytes) -> bytes:
    """libcmap's request for a key."""
    layout = next(layout for layout in REQUESTS if (layout.service, layout.name) == ("cmap", "get"))
    out = bytearray(layout.size)
    struct.pack_into("<i4xi", out, 0, layout.id, len(out))
    at = next(field.offset for field in layout.fields if field.name == "key")
    struct.pack_into("<H6x256s", out, at, len(key), key)
    struct.pack_into("<Q", out, next(field.offset for field in layout.fields if field.name == "length"), 100)
    return bytes(out)


def test_a_ring_is_shown_when_somebody_asks_or_a_moment_later(tmp_path: Path) -> None:
    """Programs that have been told of it do not wait for the journal and libcmap, and never see the keys of before."""
    command(tmp_path)
    config, journal, ready = configuration.load(tmp_path / "z.toml"), Mock(), os.eventfd(0)

    async def run() -> None:
        server = Mock(**{"under_way.return_value": UnderWay(), "room.return_value": Room(), "fileno.return_value": ready})
        process = StandInProcess(config, load(tmp_path / "corosync.conf"), Past(tmp_path), server, journal)
        process.start()
        assert not journal.info.called
        program = process.programs[1] = Program(1, "cmap", 1, 0)
        process._ask(program, wanted_key(b"runtime.members.1.status"), said=False)
        assert b"joined" in server.answer.call_args.args[1] and "ring 1." in journal.info.call_args.args[1]
        ring = process.standin.ring
        for count in (2, 3):
            process._input(lambda _: ring._make_alone(()))
            assert journal.info.call_count == count - 1, "the last one is not shown yet"
            if count == 2:
                while journal.info.call_count < count:
                    await asyncio.sleep(0.001)
        await process.close()
        assert journal.info.call_count == 3 and f"ring 1.{ring.id.seq:x} " in journal.info.call_args.args[1]

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        os.close(ready)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A file as libcpg makes it."""
    path = Path(f"{os.fsdecode(FOLDER)}zenjun-test-{os.getpid()}")
    path.write_bytes(bytes(4096))
    yield path
    for found in (path, path.with_suffix(".link")):
        found.unlink(missing_ok=True)


def test_a_file_for_messages(shared: Path) -> None:
    """It is read, not mapped, so it may become shorter; it has no name any more, and can be given once."""
    mine = shared.open("r+b")
    file = MappedFile(os.fsencode(shared), os.getuid(), 77)
    assert not shared.exists()
    mine.seek(0)
    assert mine.read(16) == struct.pack("<QQ", 0, 77)
    with pytest.raises(MappedError, match="No such file"):
        MappedFile(os.fsencode(shared), os.getuid(), 78)
    for length, wanted in ((0, b""), (3, b"one"), (4096 - MAPPED_DATA, b"one".ljust(4096 - MAPPED_DATA, b"\0"))):
        os.pwrite(mine.fileno(), struct.pack("<Q", length) + b"one", MAPPED_LENGTH)
        assert file.message() == wanted
    for length in (4096 - MAPPED_DATA + 1, DATA_MAX + 1, 0xFFFFFFFF):
        os.pwrite(mine.fileno(), struct.pack("<Q", length), MAPPED_LENGTH)
        with pytest.raises(MappedError, match="not there"):
            file.message()
    for size in (MAPPED_DATA - 1, MAPPED_LENGTH + 1, 0):
        os.pwrite(mine.fileno(), struct.pack("<Q", 8), MAPPED_LENGTH)
        os.ftruncate(mine.fileno(), size)
        with pytest.raises(MappedError, match="not there"):
            file.message()
    file.close()


def test_a_file_that_is_not_the_programs(shared: Path) -> None:
    """The stand-in is root: it must not take away, or write into, what the program could not."""
    whole = shared.read_bytes()
    link = shared.with_suffix(".link")
    with pytest.raises(MappedError, match="is not a file of user"):
        MappedFile(os.fsencode(shared), os.getuid() + 1, 1)
    link.hardlink_to(shared)
    with pytest.raises(MappedError, match="is not a file of user"):
        MappedFile(os.fsencode(shared), os.getuid(), 1)
    link.unlink()
    link.symlink_to(shared)
    for path in (link, Path("/etc/hostname"), FOLDER, FOLDER + b"../etc/hostname", FOLDER + b"a/b", b"", FOLDER + b"none"):
        with pytest.raises(MappedError):
            MappedFile(path if isinstance(path, bytes) else os.fsencode(path), os.getuid(), 1)
    assert link.is_symlink() and shared.read_bytes() == whole


def test_what_is_kept(tmp_path: Path) -> None:
    past = Past(tmp_path)
    assert past.read() == b""
    past.write(b"some bytes")
    assert Past(tmp_path).read() == b"some bytes"
    whole = past.path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:20], whole.replace(b"some", b"same"), whole + b"x"):
        past.path.write_bytes(damaged)
        with pytest.raises(PastError, match="is damaged"):
            past.read()
