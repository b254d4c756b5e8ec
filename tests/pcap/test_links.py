"""Frames of links (header flag PAIR) in captures: they are no damage, their records are read, and no stream of all has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from zenjun.proto.multicast.codec import encode
from zenjun.proto.multicast.records import Data, Decide, Held, Id, Record, Relay, Report, Stable
from zenjun.proto.multicast.tables import EraNumber, Program
from zenjun.tools.cli.sniff import sniff
from zenjun.tools.dissect import Ether, Zenjun, ZenjunConfirm, ZenjunData, ZenjunMessage, ZenjunNak, ZenjunRange, complete, find
from zenjun.tools.pcap.frames.links import records
from zenjun.tools.pcap.frames.pdu import decode
from zenjun.tools.pcap.frames.problem import Problem

from .built import HEADER, Rec, frame, write
from .test_decode import one

ERA = EraNumber(1, 4)
MESSAGE = Data(Id(ERA, 5, 2), Program(5, 7, 3), "token", (1, 0xABCDEF01), 9, b"hello", True)
RECORDS: tuple[Record, ...] = (
    MESSAGE,
    Report(ERA, "token", 5, 2, 3, 10),
    Decide(ERA, "abcast", 5, 2, 1, 11),
    Held(ERA, "token", 4),
    Stable(ERA, "token", 4, True),
    Relay(MESSAGE),
)
TEXTS = [
    "DATA token 1.4#5.2 to 00000001,abcdef01",
    "REPORT token 1.4#5.2..4 at 10",
    "DECIDE abcast 1.4#5.2 at 11",
    "HELD token 1.4 4",
    "STABLE token 1.4 4 sent",
    "RELAY token 1.4#5.2 to 00000001,abcdef01",
]
LINK: dict[str, Any] = HEADER | {"src": 5, "target": 3, "ack": [7, 8], "flags": "PAIR+OP"}


def message(record: Record, **fields: Any) -> ZenjunMessage:
    e = encode(record)
    return ZenjunMessage(data=e.data, group=e.group, client=e.client, type=e.type, **({"mflags": "OP"} | fields))


WHOLE = Zenjun(**LINK) / ZenjunData(messages=[message(record) for record in RECORDS])


def test_records_of_a_link(tmp_path: Path) -> None:
    data = bytes(WHOLE)
    plain = decode(data)
    assert plain is not None and plain["complete"] and plain["check_ok"]
    assert [str(r) for r in records(plain)] == TEXTS and records(plain)[0].record == MESSAGE
    layer = find(Ether(frame(data)))
    assert layer is not None and complete(layer), "the scapy layers"
    row, pdu = one(frame(data), tmp_path)
    assert row["problem"] == Problem.NONE and pdu is None, "no damage, and no PDU of the streams of all"


def test_other_kinds_and_what_is_wrong(tmp_path: Path) -> None:
    good = [
        Zenjun(**{**LINK, "flags": "PAIR+PACK"}, pack=[1, 2]) / ZenjunConfirm(),
        Zenjun(**{**LINK, "flags": "PAIR+PACK"}, pack=[1, 2]) / ZenjunNak(stream=2, ranges=[ZenjunRange(first=5)]),
        Zenjun(**{**LINK, "src": 64, "target": 1}) / ZenjunData(messages=[message(RECORDS[1])]),
        Zenjun(**LINK) / ZenjunData(messages=[message(MESSAGE, mflags="FRAGMENT+OP", total=4000, offset=0)]),
    ]
    for pdu in good:
        assert one(frame(bytes(pdu)), tmp_path)[0]["problem"] == Problem.NONE
    cut = decode(bytes(good[3]))
    assert cut is not None and [str(r) for r in records(cut)] == TEXTS[:1], "the first fragment has it all"
    bad: dict[Problem, list[dict[str, Any]]] = {
        Problem.SOURCE: [{"target": 0}, {"target": 5}, {"src": 65}, {"target": 65}],
        Problem.STATIONS: [{"ack": [1, 2, 3]}],
    }
    for problem, changes in bad.items():
        for change in changes:
            pdu = Zenjun(**LINK | change) / ZenjunData(messages=[message(RECORDS[1])])
            assert one(frame(bytes(pdu)), tmp_path)[0]["problem"] == problem, change
    plain = Zenjun(**{**LINK, "flags": "OP", "src": 1, "target": 0}) / ZenjunData(messages=[message(RECORDS[1])])
    assert one(frame(bytes(plain)), tmp_path)[0]["problem"] == Problem.PAYLOAD, "records are of links only"


def test_sniff_shows_records(tmp_path: Path) -> None:
    path = write(tmp_path / "links.pcap", [Rec(0, frame(bytes(WHOLE)))])
    shown = CliRunner().invoke(sniff, [str(path)])
    assert shown.exit_code == 0 and "; ".join(TEXTS) in shown.output and "target 3" in shown.output
    assert "MALFORMED" not in shown.output
    plain = json.loads(CliRunner().invoke(sniff, [str(path), "--json"]).output)
    assert plain["records"] == TEXTS
