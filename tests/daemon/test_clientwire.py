"""The table of the client protocol against bytes written by hand, and nothing left out of what is made of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from zenjun.daemon import clientwire
from zenjun.daemon.client.errors import BY_CODE
from zenjun.daemon.clientwire import (
    CODES,
    DONE,
    FLAGS,
    FRAMES,
    HEADER,
    HELLO,
    JOIN_FLAGS,
    LAYOUTS,
    MESSAGE,
    MESSAGE_FRAME,
    Frame,
    JoinFlag,
)

ROOT = Path(__file__).resolve().parents[2]


def test_layouts_are_what_clients_out_there_speak() -> None:
    """Versions 1 and 2, byte for byte: these never change."""
    assert HEADER.struct.pack(5, 2, 0x21, 0x0102) == bytes([5, 0, 0, 0, 2, 0x21, 2, 1])
    assert HELLO.struct.pack(b"ZENJ", 1, 2) == b"ZENJ\x01\x00\x02\x00"
    assert MESSAGE.struct.pack(0x0807060504030201, 0x1211, 0x2221, 3) == bytes(
        [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x21, 0x22, 3, 0, 0, 0]
    )
    assert DONE.struct.pack(1, 2, 3) == b"".join(bytes([n, *[0] * 7]) for n in (1, 2, 3))
    assert MESSAGE_FRAME.size == HEADER.size + MESSAGE.size == 24
    numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74]
    assert [int(frame) for frame in Frame] == numbers
    assert clientwire.BODY_MAX == 16 * 2**20 + 64 * 2**10


def test_every_frame_has_its_row_once() -> None:
    assert [row.frame for row in FRAMES] == list(Frame)
    assert all(clientwire.VERSION_MIN <= row.since <= row.until <= clientwire.VERSION for row in FRAMES)
    assert [kind for kind, _, _ in clientwire.KINDS] == list(clientwire.Kind)


def test_every_bit_of_join_has_its_meaning() -> None:
    bits = 0
    for frame, mask, _, text in FLAGS:
        if frame is Frame.JOIN:
            assert text and not bits & mask
            bits |= mask
    assert bits == JOIN_FLAGS | JoinFlag.OP


def test_every_code_is_known_to_the_library() -> None:
    """What it has no class for is a plain ``Refused`` to a program."""
    assert set(BY_CODE) <= set(CODES)
    assert set(CODES) - set(BY_CODE) <= {"refused", "too-many-groups", "unknown-request", "too-many-requests", "groups"}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_header_says_where_each_field_is(layout: clientwire.Layout) -> None:
    defined = dict(re.findall(r"#define (\w+) (\d+)u", clientwire.c_header()))
    at = 0
    for f in layout.fields:
        assert int(defined[f"DP_{layout.name}_{f.name}".upper()]) == at == layout.offset(f.name)
        at += f.size
    assert int(defined[f"DP_{layout.name}".upper()]) == at == layout.size
    with pytest.raises(KeyError):
        layout.offset("nothing")


NUMBERS = re.compile(r"<[sBHIQ0-9]{2,}x*\"|ZENJ\b|\bDP_F_\w+ = |\b(?:6[5-9]|7[0-4])u?\b")


@pytest.mark.parametrize(
    "path",
    [
        *sorted(p.relative_to(ROOT) for p in (ROOT / "daemon" / "client").glob("*.py")),
        *sorted(p.relative_to(ROOT) for p in (ROOT / "daemon" / "datapath").glob("[!_]*.[ch]") if p.name != "dp_client.h"),
        *sorted(p.relative_to(ROOT) for p in (ROOT / "daemon" / "client" / "c").glob("*.[ch]")),
        Path("tools/bench/load_zenjun.c"),
        Path("tools/lab/status.py"),
    ],
    ids=str,
)
def test_no_number_of_a_frame_is_written_twice(path: Path) -> None:
    found = [line for line in (ROOT / path).read_text().splitlines() if NUMBERS.search(re.sub(r"/\*.*?\*/|#.*$", "", line))]
    assert not found


def test_the_check_sees_what_it_looks_for() -> None:
    for line in ("if kind != 66:", 'struct.Struct("<IBBH")', 'b"ZENJ"', "DP_F_HELLO = 1", "case 70u:"):
        assert NUMBERS.search(line)
