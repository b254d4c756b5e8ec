"""The Wireshark dissector against the scapy layers: every field of every PDU alike, cut and damaged ones too.

tshark has to be there: without it nothing here could fail."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scapy.layers.l2 import CookedLinuxV2, Dot1Q
from zenjun.proto import wire
from zenjun.tools import dissect
from zenjun.tools.cli.pcap.dissector import dissector as command
from zenjun.tools.dissect import Ether, Zenjun, as_dict, find
from zenjun.tools.pcap.look.dissector import FLAGS, ON_WIRE, field_name, flag_names, lua, names

from ..capturefile import CaptureFile
from .built import ACK, HEADER, PDUS, Rec, frame, message, pcap
from .recorded import captures

Values = dict[str, list[Any]]
LISTS = {
    "messages": "message",
    "ranges": "range",
    "proposed": "member",
    "changed_stations": "change",
    "configuration": "configuration",
}
TEXTS = ("host", "options", "proposed_options")
MESSAGE_PART = {f.name: field_name(layout, f) for layout in (wire.MESSAGE, wire.FRAGMENT) for f in layout.fields}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lua") / "zenjun.lua"
    path.write_text(lua())
    return path


def tshark(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("tshark")
    assert program, "tshark is not here: apt-get install tshark (tools/bootstrap.sh does)"
    done = subprocess.run([program, "-X", f"lua_script:{script}", *arguments], capture_output=True, text=True, timeout=700)
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr and "lua" not in done.stderr, done.stderr
    return done


def by_tshark(script: Path, capture: Path, *options: str, fields: Iterable[str] | None = None) -> list[Values]:
    """Values of our fields of every frame, in their order within it."""
    wanted = list(fields or names())
    arguments = [part for name in wanted for part in ("-e", name)]
    text = tshark(
        script, "-r", str(capture), "-T", "fields", "-E", "separator=/t", "-E", "aggregator=;", *arguments, *options
    ).stdout
    out = []
    for row in text.split("\n")[:-1]:
        cells = row.split("\t")
        out.append(
            {name: [cell] if name.endswith(TEXTS) else cell.split(";") for name, cell in zip(wanted, cells, strict=True) if cell}
        )
    return [{name: [_value(name, text) for text in texts] for name, texts in row.items()} for row in out]


def _value(name: str, text: str) -> Any:
    if name.endswith(TEXTS):
        return text
    if name in ("zenjun.message.data", "zenjun.rest", "zenjun.padding"):
        return text.replace(":", "")
    return {"True": 1, "False": 0}.get(text) if text in ("True", "False") else int(text, 0)


def _number(name: str, value: Any) -> Any:
    """The value that a JSON of ours says in words."""
    if name in FLAGS:
        return sum(FLAGS[name][flag] if not flag.startswith("bit") else 1 << int(flag[3:]) for flag in value)
    if name == "kind":
        return wire.Kind[value] if isinstance(value, str) else value
    if name == "type":
        return wire.MessageType[value] if isinstance(value, str) else value
    if isinstance(value, str) and name not in ("data", "rest", *TEXTS):
        return int(value, 16)
    return int(value) if isinstance(value, int) else value


def by_scapy(pdu: Zenjun) -> Values:
    """What tshark should say of it, from the scapy layers."""
    plain = as_dict(pdu)
    out: Values = {}

    def add(name: str, key: str, value: Any) -> None:
        if value == "":
            return  # nothing to show
        number = _number(key, value)
        out.setdefault(name, []).append(number)
        for flag in FLAGS.get(key, ()):
            out.setdefault(f"{name}.{(flag.name or '').lower()}", []).append(int(bool(number & flag)))

    layouts = wire.PAYLOAD.get(pdu.kind, ())
    own = {f.name: field_name(layout, f) for layout in reversed(layouts[:1]) for f in layout.fields}
    for key, value in plain.items():
        if key in ("ack", "pack"):
            out[f"zenjun.{key}"] = list(value)
        elif key in LISTS:
            for item in value:
                for part, entry in item.items():
                    name = "zenjun.message.data" if part == "data" else MESSAGE_PART.get(part, f"zenjun.{LISTS[key]}.{part}")
                    add(name if key == "messages" or part == "data" else f"zenjun.{LISTS[key]}.{part}", part, entry)
        elif key == "host":
            add("zenjun.open.host", key, value)
        elif key in ("check_ok", "complete", "rest"):
            if value is not None:
                add(f"zenjun.{key}", key, value)
        elif key in (f.name for f in wire.HEADER.fields):
            add(f"zenjun.{key}", key, value)
        else:
            add(own[key], key, value)
    return {name: values for name, values in out.items() if values}


def expected(layer: Zenjun) -> Values:
    """Wireshark ends a text at a zero byte and has a sign of its own for what is no UTF-8."""
    out = by_scapy(layer)
    if "zenjun.open.host" in out:
        out["zenjun.open.host"] = [_shown(layer.payload.host)]
    for told in getattr(layer.payload, "configuration", None) or ():
        for name in TEXTS[1:]:
            if f"zenjun.configuration.{name}" in out:
                out[f"zenjun.configuration.{name}"] = [_shown(getattr(told, name))]
    return out


def _shown(text: bytes) -> str:
    return bytes(text).partition(b"\0")[0].decode(errors="replace")


def compare(script: Path, capture: Path) -> int:
    """Every frame of the capture; how many there were with a PDU."""
    seen = by_tshark(script, capture)
    with capture.open("rb") as file:
        records = list(CaptureFile(file))
    assert len(seen) == len(records)
    pdus = 0
    for number, (record, said) in enumerate(zip(records, seen, strict=True), 1):
        layer = find(Ether(record.data))
        said.pop("zenjun.padding", None)
        if layer is not None:
            for name in set(expected(layer)) - set(said):  # a text that begins with a zero byte
                assert name.endswith(TEXTS), name
                said[name] = [""]
        if layer is None:
            assert set(said) <= {"zenjun.rest"}, f"frame {number}"
            continue
        pdus += 1
        assert said == expected(layer), f"frame {number}: {record.data.hex()}"
    return pdus


def save(path: Path, records: Iterable[Rec]) -> Path:
    path.write_bytes(pcap(records))
    return path


# ---- the same as scapy ----


def test_every_kind(script: Path, tmp_path: Path) -> None:
    frames = [frame(pdu) for pdu in PDUS.values()]
    frames += [frame(bytes(pdu) + b"\xaa" * 7) for pdu in PDUS.values()]
    kinds = {Zenjun(bytes(pdu)).kind for pdu in PDUS.values()}
    assert kinds == set(wire.Kind), "one of every kind"
    assert compare(script, save(tmp_path / "all.pcap", [Rec(0, data) for data in frames])) == 2 * len(PDUS)


def test_cut_at_every_byte(script: Path, tmp_path: Path) -> None:
    """By the snap length, and as frames that are so short."""
    records = []
    for pdu in PDUS.values():
        data = frame(pdu)
        step = 1 if len(data) < 300 else 13
        records += [Rec(0, data[:size], 0, wire) for size in range(14, len(data), step) for wire in (0, len(data))]
    assert compare(script, save(tmp_path / "cut.pcap", records)) > 1000


def test_damaged_at_random(script: Path, tmp_path: Path) -> None:
    """Whatever the bytes say: no error of Lua, and the same reading."""
    source = random.Random(20)
    records = []
    for _ in range(3000):
        data = bytearray(frame(source.choice(list(PDUS.values()))))
        for _ in range(source.randint(1, 3)):
            # Mostly where counts, lengths and flags are.
            places = [range(14, len(data)), range(18, 26), range(min(62, len(data) - 1), min(120, len(data)))]
            at = source.choice(source.choice(places))
            data[at] = source.choice((0, 1, 2, 255, source.randrange(256)))
        records.append(Rec(0, bytes(data)))
    records += [Rec(0, frame(source.randbytes(source.randint(0, 200)))) for _ in range(300)]
    assert compare(script, save(tmp_path / "damaged.pcap", records)) > 2500


@pytest.mark.lab
@pytest.mark.parametrize("medium", ["switched", "bus"])
def test_a_real_capture(script: Path, medium: str) -> None:
    pdus = sum(compare(script, path) for path in captures(medium).values())
    assert pdus > 1000


def test_a_wrong_offset_would_be_seen(tmp_path: Path) -> None:
    """The comparison is no comparison unless it fails."""
    capture = save(tmp_path / "all.pcap", [Rec(0, frame(pdu)) for pdu in PDUS.values()])
    for right, wrong in (
        ('"zenjun.incarnation", 12, 4', '"zenjun.incarnation", 16, 4'),
        ('"zenjun.confirm.digest", 24, 8', '"zenjun.confirm.digest", 16, 8'),
        ('"zenjun.change.value", 1, 4', '"zenjun.change.value", 0, 4'),
        ("0x82F63B78", "0xEDB88320"),
    ):
        text = lua()
        assert right in text
        script = tmp_path / "wrong.lua"
        script.write_text(text.replace(right, wrong))
        with pytest.raises(AssertionError, match="frame"):
            compare(script, capture)


# ---- what Wireshark adds ----


def expert(script: Path, tmp_path: Path, *frames: Rec) -> list[str]:
    path = save(tmp_path / "expert.pcap", frames)
    text = tshark(script, "-r", str(path), "-T", "fields", "-E", "aggregator=;", "-e", "_ws.expert.message").stdout
    return text.split("\n")[:-1]


def test_expert_information(script: Path, tmp_path: Path) -> None:
    one = frame(PDUS["one"])
    said = expert(
        script,
        tmp_path,
        Rec(0, one),
        Rec(0, frame(Zenjun(**HEADER, **ACK, version=2))),
        Rec(0, frame(Zenjun(**HEADER, **ACK, length=5000))),
        Rec(0, one[:-1] + b"x"),
        Rec(0, one[:70], 0, len(one)),
        Rec(0, frame(Zenjun(**HEADER, **ACK, kind=99))),
        Rec(0, frame(Zenjun(**{**HEADER, "src": 9}, **ACK))),
        Rec(0, one[:40], 0, 40),
        Rec(0, frame(bytes(PDUS["nak"])[:-4].replace(b"\x01\x02\0\0", b"\x01\x00\0\0"))),
        Rec(0, frame(Zenjun(**HEADER, **ACK) / dissect.ZenjunData(messages=[message(b"", mflags="FRAGMENT", total=1)]))),
        *(Rec(0, frame(pdu)) for name, pdu in PDUS.items() if name != "service"),
    )
    wants = ["", "version", "length reaches beyond", "checksum", "cut when it was captured", "kind", "No such station",
             "Too short", "NAK has 1..64", "fragment that is empty"]  # fmt: skip
    for want, text in zip(wants, said, strict=False):
        assert (want in text) if want else not text, (want, text)
    assert said[len(wants) :] == [""] * (len(PDUS) - 1), "nothing to say about what is right"


def test_the_lines_of_the_list(script: Path, tmp_path: Path) -> None:
    bad = bytearray(frame(PDUS["one"]))
    bad[-1] ^= 1
    path = save(tmp_path / "all.pcap", [Rec(0, frame(pdu)) for pdu in PDUS.values()] + [Rec(0, bytes(bad))])
    lines = dict(zip([*PDUS, "bad"], tshark(script, "-r", str(path)).stdout.splitlines(), strict=True))
    assert all(" ZENJUN " in line for line in lines.values())
    assert "2.7 DATA seq 4294967295 instance 3 ack 1,2,3  1 message 5 B" in lines["one"]
    assert "fragment 4+3/10" in lines["fragment"] and "[NEED_ACK,OP]" in lines["last fragment"]
    assert "CONFIRM next" in lines["confirm"] and "pack 1,2,2 [POLL,FENCED]" in lines["confirm"]
    assert "asks station 1 for stream 1: 5 4294967294..1" in lines["nak"]
    assert "instance 4 of 1,2,3" in lines["open"] and "changes 1:9 3:4294967295" in lines["stop"] and "epoch 3" in lines["rst"]
    assert lines["bad"].endswith("BAD CHECKSUM")


def test_preferences(script: Path, tmp_path: Path) -> None:
    other = frame(PDUS["one"]).replace(b"\x88\xb5", b"\x88\xb6", 1)
    path = save(tmp_path / "two.pcap", [Rec(0, frame(PDUS["one"])), Rec(0, other)])
    fields = ["zenjun.seq", "zenjun.check_ok"]
    assert [len(row) for row in by_tshark(script, path, fields=fields)] == [2, 0]
    assert [len(row) for row in by_tshark(script, path, "-o", "zenjun.check:FALSE", fields=fields)] == [1, 0]
    assert [len(row) for row in by_tshark(script, path, "-o", f"zenjun.ethertype:{0x88B6}", fields=fields)] == [0, 2]
    chosen = tmp_path / "chosen.lua"
    chosen.write_text(lua(0x88B6))
    assert [len(row) for row in by_tshark(chosen, path, fields=fields)] == [0, 2]
    with pytest.raises(ValueError, match="not in 0x0600"):
        lua(0x100)


def test_tags_and_cooked_captures(script: Path, tmp_path: Path) -> None:
    tagged = (
        Ether(dst=wire.GROUP_MAC, type=0x88A8) / Dot1Q(vlan=5, type=0x8100) / Dot1Q(vlan=6, type=wire.ETHERTYPE) / PDUS["one"]
    )
    path = save(tmp_path / "tagged.pcap", [Rec(0, bytes(tagged))])
    assert by_tshark(script, path, fields=["zenjun.seq"]) == [{"zenjun.seq": [2**32 - 1]}]
    cooked = bytes(CookedLinuxV2(proto=wire.ETHERTYPE) / PDUS["one"])
    path.write_bytes(pcap([Rec(0, cooked)], link_type=276))
    assert by_tshark(script, path, fields=["zenjun.seq"]) == [{"zenjun.seq": [2**32 - 1]}]


def test_filters_by_field(script: Path, tmp_path: Path) -> None:
    path = save(tmp_path / "all.pcap", [Rec(0, frame(pdu)) for pdu in PDUS.values()])

    def count(text: str) -> int:
        return len(tshark(script, "-r", str(path), "-Y", text).stdout.splitlines())

    assert count("zenjun.kind == 3 && zenjun.nak.stream == 1") == 1
    assert count("zenjun.flags.poll == 1") == 1
    assert count('zenjun.open.host == "büro"') == 2
    assert count("zenjun.check_ok == 0") == 0
    assert count("zenjun.complete == 0") == 1  # the reserved kind


def test_every_field_of_the_table_is_there(tmp_path: Path) -> None:
    """Names and their types, as Wireshark has registered them; the file is where its users put it."""
    folder = tmp_path / ".local" / "lib" / "wireshark" / "plugins"
    folder.mkdir(parents=True)
    (folder / "zenjun.lua").write_text(lua())
    program = shutil.which("tshark")
    assert program, "tshark is not here"
    listed = subprocess.run(
        [program, "-G", "fields"],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    )
    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    have = {row[2]: row[3] for row in rows if row[0] == "F" and row[2].startswith("zenjun.")}
    assert set(names()) <= set(have)
    assert not {n for n in have if not n.startswith("zenjun.expert")} - set(names()), "names() lists all"
    kinds = {1: "FT_UINT8", 2: "FT_UINT16", 4: "FT_UINT32", 8: "FT_UINT64"}
    for layout in ON_WIRE:
        for f in layout.fields:
            assert have[field_name(layout, f)] == kinds[f.width]
    assert all(have[name] == "FT_BOOLEAN" for name in flag_names())
    assert wire.VIEW not in ON_WIRE, "never on the wire"


# ---- the command ----


def test_the_command(tmp_path: Path) -> None:
    run = CliRunner().invoke
    assert run(command, []).output == lua()
    path = tmp_path / "zenjun.lua"
    result = run(command, ["--out", str(path), "--ethertype", "0x9999"])
    assert result.exit_code == 0 and path.read_text() == lua(0x9999) and str(path) in result.output
    assert run(command, ["--ethertype", "0x10"]).exit_code == 2
    assert run(command, ["--ethertype", "many"]).exit_code == 2
    missing = run(command, ["--out", str(tmp_path / "no" / "z.lua")])
    assert missing.exit_code == 1 and "No such file" in missing.output
    assert run(command, ["--out", str(tmp_path)]).exit_code == 1
