"""Random tables [[access]] and [[link]]: each file is taken or refused with its lines, and rights are what a plain reading of the
tables says."""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st
from zenjun.daemon.access import Access, Identity, What
from zenjun.daemon.config import Config, ConfigError, parse, toml_value

HEAD = '[cluster]\nname = "c"\nstations = 3\n[station]\nid = 2\ninterface = "eth0"\n'
UID, OTHER = 4711, 4712
GROUPS = ("a", "ab", "a.b", "b", "B", "", "*", "zenjun.x", "zenjun.state.x")
_words = st.text("ab.B*?", max_size=4)
_who = st.sampled_from(["all", "user:4711", "user:4712", "group:4711", "group:5", "user:0"])
_anything: st.SearchStrategy[object] = (
    st.integers()
    | st.booleans()
    | st.floats()
    | st.text(max_size=6)
    | st.lists(_who | st.text(max_size=4), max_size=3)
    | st.just({})
)
_name = st.sampled_from(["groups", "send", "receive", "number", "interface", "priority", "rate_mbit", "mtu", "x"])


def literal(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return "{}" if value == {} else toml_value(value) if isinstance(value, str) else toml_value(value).lower()


def table(kind: str, values: dict[str, object]) -> str:
    return "\n".join([f"[[{kind}]]", *(f"{name} = {literal(value)}" for name, value in values.items())]) + "\n"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["access", "link"]), st.dictionaries(_name, _anything, max_size=4)), max_size=5))
def test_any_tables_are_taken_or_refused_with_their_lines(tables: list[tuple[str, dict[str, object]]]) -> None:
    text = HEAD + "".join(table(kind, values) for kind, values in tables)
    try:
        assert isinstance(parse(text), Config)
    except ConfigError as error:
        lines = text.split("\n")
        assert error.problems
        for problem in error.problems:
            assert 1 <= problem.line <= len(lines) and problem.message.isprintable()


def matches(pattern: str, group: str) -> bool:
    """* any characters, ? one."""
    return re.fullmatch("".join({"*": ".*", "?": "."}.get(c) or re.escape(c) for c in pattern), group, re.DOTALL) is not None


def allowed(rules: list[tuple[str, list[str], list[str]]], closed: bool, what: What, group: str, groups: set[int]) -> bool:
    """A plain reading: the first table that has the name says it."""
    if group.startswith("zenjun."):
        return group.startswith("zenjun.state.")
    for pattern, send, receive in rules:
        if matches(pattern, group):
            names = {"all", f"user:{UID}", *(f"group:{number}" for number in groups)}
            return bool(names & set(send if what == "send" else receive))
    return not closed


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(_words.filter(bool), st.lists(_who, max_size=3), st.lists(_who, max_size=3)), max_size=4),
    st.booleans(),
    st.sets(st.sampled_from([5, UID, OTHER])),
    st.sampled_from(GROUPS),
)
@example([("a*", [], ["all"]), ("*", ["user:4711"], [])], True, set(), "ab")
def test_rights_are_what_the_tables_say(
    rules: list[tuple[str, list[str], list[str]]], closed: bool, groups: set[int], group: str
) -> None:
    rows = [table("access", {"groups": pattern, "send": send, "receive": receive}) for pattern, send, receive in rules]
    access = Access.of(parse(HEAD + f"[clients]\nclosed = {str(closed).lower()}\n" + "".join(rows)))
    who = Identity(1, UID, frozenset(groups))
    for what in ("send", "receive"):
        assert access.may(who, what, group) == allowed(rules, closed, what, group, groups), (what, group)
        assert access.may(Identity(1, 0), what, group), "root may everything"
    assert access.is_limited == (closed or bool(rules))
