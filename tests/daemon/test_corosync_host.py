"""corosync.conf, the maps of libcmap, libcpg's bound of a list, and requests that are none."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from zenjun.daemon.config import ConfigError
from zenjun.daemon.corosync import keys
from zenjun.daemon.corosync.codec import refusal
from zenjun.daemon.corosync.conf import MESSAGE_BYTES, check, load
from zenjun.daemon.corosync.groups import LIST_MAX, pieces
from zenjun.daemon.corosync.maps import STRING, U8, U32, Map, Track, Type, Value
from zenjun.daemon.corosync.past import Past, PastError
from zenjun.daemon.corosync.process import is_silent
from zenjun.proto.service.corosync.messages import VERSION, Reason
from zenjun.proto.service.corosync.results import Address, Code, Confchg

from ..rules import rule

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
        ("corosync_votequorum", "other", "14: quorum.provider: expected corosync_votequorum"),
        ("provider", "allow_downscale: 1\n  provider", "14: quorum.allow_downscale is not supported here"),
        ("quorum {", "quorum {\n  device {\n    model: net\n  }", "15: quorum.device is not supported here"),
        ("alone_after_ms: 250", "alone_after_ms: -1", "21: alone_after_ms: expected a number"),
        ("uid: 1001", "uid: no such user", "17: there is no user 'no such user'"),
        ("version: 2", "version 2", "3: expected 'key: value', 'section {' or '}'"),
        ("nodelist {", "}\nnodelist {", "23: a closing brace without an opening one"),
        ("nodelist {", "nodelist {\n{", "section 'nodelist' is not closed"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as error:
        load(written(tmp_path, GOOD.replace(old, new)))
    assert said in str(error.value)


def test_what_does_not_fit_zenjund(tmp_path: Path) -> None:
    conf = load(written(tmp_path, GOOD))
    said = [problem.message for problem in check(conf, 1, 3, 1000, "bus")]
    assert "node 10 is station 2, but zenjund's cluster has stations 1 to 1" in said
    assert "no node of the nodelist is at this station, 3 (nodeid, or zenjun_station)" in said
    assert f"zenjund's cluster.message_max is 1000, expected at least {MESSAGE_BYTES}" in said
    assert "zenjund's cluster.medium is bus, expected switched" in said


def test_what_works_otherwise_than_in_corosync_is_a_warning(tmp_path: Path) -> None:
    text = GOOD.replace("    ring0_addr: 10.0.0.2\n", "    ring0_addr: 10.0.0.2\n    ring1_addr: 10.1.0.2\n")
    assert load(written(tmp_path, text)).warnings == [(28, "ring1_addr is not used: zenjund has one interface (take a bond)")]
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
