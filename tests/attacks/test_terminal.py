"""Attack: escape sequences in whatever others may choose, shown on the terminal of an operator."""

from __future__ import annotations

import io
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from zenjun.daemon import terminal
from zenjun.daemon.client.types import Member, Message, View
from zenjun.tools.cli import recv
from zenjun.tools.pcap.frames import pdu as pcap_pdu
from zenjun.tools.pcap.frames import text as pcap_text

from ..proto.test_membership_numbers import open_pdu

EVIL = "\x1b]0;owned\x07\x9b2J\x85\r\n\x7f\u202eabc"
"""Title, clear screen by C1, next line, carriage return and line feed, delete, right-to-left override."""
DANGEROUS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def safe(text: str) -> None:
    """One line, and nothing in it that a terminal obeys."""
    assert not (found := DANGEROUS.search(text)), f"{found and found[0]!r} in {text!r}"


def message(data: bytes) -> Message:
    return Message(data=data, group=EVIL, station=1, client=2, place=(1, 1, 0), own=False)


def shown(form: str, *items: Any, verbose: bool = False) -> list[str]:
    show = recv._Show(form, verbose, True)
    show._out = io.BytesIO()
    show(list(items))
    text = show._out.getvalue().decode()
    assert text.endswith("\n")
    return text[:-1].split("\n")


def test_without_the_rule_the_terminal_would_obey(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken variant ``AllIsHarmless``: the same checks find it in a message, a host name and a line of JSON."""
    monkeypatch.setattr(terminal, "_harmless", lambda c: True)
    pdu = pcap_pdu.decode(open_pdu(3, 2, 1, host=EVIL))
    assert pdu is not None
    for text in (*shown("text", message(EVIL.encode())), *pcap_text.details(pdu), terminal.json_text({"a": EVIL})):
        if "owned" in text:
            with pytest.raises(AssertionError):
                safe(text)
            monkeypatch.setattr(terminal, "_seen", 1, raising=False)
    assert hasattr(terminal, "_seen")


@pytest.mark.parametrize("verbose", [False, True])
def test_a_message_is_one_line_that_the_terminal_does_not_obey(verbose: bool) -> None:
    lines = shown("text", message(EVIL.encode()), message(b"two\nlines\xff"), verbose=verbose)
    assert len(lines) == 2
    for line in lines:
        safe(line)
    assert lines[1].endswith("two\\nlines\ufffd")


def test_ordinary_text_stays_as_it_is() -> None:
    text = 'tab\there, {"json": "C:\\\\dir"}, 日本語\u3000全角, e\u0301, 👩\u200d🚒, «»\u00a0!'
    assert shown("text", message(text.encode())) == [text]


def test_raw_stays_raw() -> None:
    show = recv._Show("raw", False, False)
    show._out = io.BytesIO()
    show([message(EVIL.encode())])
    assert show._out.getvalue() == EVIL.encode()


@pytest.mark.parametrize("form", ["text", "json"])
def test_names_in_views_and_messages_as_json(form: str) -> None:
    view = View(
        group=EVIL,
        reason="join",
        place=(1, 1, 0),
        instance=1,
        members=(Member(1, 2, EVIL),),
        joined=(Member(1, 2, EVIL),),
        left=(),
    )
    for line in shown(form, view, *([message(EVIL.encode())] if form == "json" else [])):
        safe(line)
        if form == "json":
            assert json.loads(line)["group"] == EVIL, "the value is the same"


def test_the_host_name_of_an_open_in_all_that_shows_frames() -> None:
    pdu = open_pdu(3, 2, 1, host=EVIL)
    plain = pcap_pdu.decode(pdu)
    assert plain is not None
    for line in [pcap_text.body(plain), *pcap_text.details(plain), *pcap_text.details(plain, 60)]:
        safe(line)


def flat(value: Any) -> list[Any]:
    """All values that are no lists or objects."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in flat(item)]
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, list) else [value]


class _Daemon:
    """Answers as a daemon whose peers have chosen their names."""

    def __enter__(self) -> _Daemon:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {"cluster": EVIL, "peers": [{"station": 1, "host": EVIL}]}

    def members(self, group: str) -> list[Member]:
        return [Member(1, 2, EVIL)]

    def stations(self) -> list[Any]:
        return [SimpleNamespace(station=1, peer_state="A")]


@pytest.mark.parametrize("argv", [["status", "--json"], ["members", "--json"], ["members", "x", "--json"], ["members"]])
def test_commands_print_nothing_that_the_terminal_obeys(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = __import__(f"zenjun.tools.cli.{argv[0]}", fromlist=["daemon"])
    monkeypatch.setattr(module, "daemon", lambda *args, **options: _Daemon())
    result = CliRunner().invoke(getattr(module, argv[0]), argv[1:])
    assert result.exit_code == 0, result.output
    for line in result.output.splitlines():
        safe(line)
    if "--json" in argv:
        assert EVIL in flat(json.loads(result.output)), "the value is the same"


@given(st.text())
def test_any_text_is_one_safe_line_and_json_is_the_same_value(text: str) -> None:
    from zenjun.daemon.terminal import json_text, printable

    safe(printable(text).replace("\t", ""))
    line = json_text({"a": text})
    safe(line)
    assert json.loads(line) == {"a": text}
