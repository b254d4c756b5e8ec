"""What kind of statement a text is, by its first words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from typing import Final

import apsw

CACHE_MAX: Final = 1000
"""Texts whose kind is kept."""
_BLANK: Final = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$)|;)+", re.DOTALL)
_WORD: Final = re.compile(r"[A-Za-z_]+")
_PRAGMA: Final = re.compile(r"PRAGMA\s+(?:(?:\w+|\"[^\"]*\")\s*\.\s*)?(\w+)", re.IGNORECASE)
_FOREIGN_KEYS: Final = re.compile(r"\s*PRAGMA\s+foreign_keys\s*(?:=\s*(\w+)|\(\s*(\w+)\s*\))?\s*;?\s*", re.IGNORECASE)
_OF_SCHEMA: Final = frozenset(
    [
        "collation_list",
        "compile_options",
        "database_list",
        "foreign_key_list",
        "function_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "module_list",
        "pragma_list",
        "schema_version",
        "table_info",
        "table_list",
        "table_xinfo",
    ]
)
"""Pragmas that read no rows of tables."""


class Kind(Enum):
    """How the driver treats a statement."""

    READ = "read"
    """It reads, unless SQLite says otherwise."""
    WRITE = "write"
    SCHEMA = "schema"
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    EMPTY = "empty"


_KINDS: Final = {
    "SELECT": Kind.READ,
    "VALUES": Kind.READ,
    "EXPLAIN": Kind.READ,
    "WITH": Kind.READ,
    "PRAGMA": Kind.READ,
    "CREATE": Kind.SCHEMA,
    "ALTER": Kind.SCHEMA,
    "DROP": Kind.SCHEMA,
    "BEGIN": Kind.BEGIN,
    "COMMIT": Kind.COMMIT,
    "END": Kind.COMMIT,
    "ROLLBACK": Kind.ROLLBACK,
    "SAVEPOINT": Kind.SAVEPOINT,
    "RELEASE": Kind.SAVEPOINT,
}


@lru_cache(CACHE_MAX)
def words_of(sql: str, number: int = 3) -> tuple[str, ...]:
    """The first words, in capitals; fewer if there are no more. Comments between them are left out."""
    at = 0
    found: list[str] = []
    while len(found) < number:
        if (blank := _BLANK.match(sql, at)) is not None:
            at = blank.end()
        if (word := _WORD.match(sql, at)) is None:
            break
        found.append(word[0].upper())
        at = word.end()
    return tuple(found)


@lru_cache(CACHE_MAX)
def kind_of(sql: str) -> Kind:
    """What kind a statement is."""
    words = words_of(sql)
    if not words:
        blank = _BLANK.match(sql)
        return Kind.EMPTY if not sql or (blank is not None and blank.end() == len(sql)) else Kind.WRITE
    kind = _KINDS.get(words[0], Kind.WRITE)
    if kind is Kind.SCHEMA and len(words) > 1 and words[1] in ("TEMP", "TEMPORARY"):
        return Kind.WRITE
    if kind is Kind.ROLLBACK and "TO" in words:
        return Kind.SAVEPOINT
    return kind


def lines_of(script: str) -> Iterator[tuple[int, str]]:
    """``split``, each with the line on which its first word is, from 1."""
    at = 0
    for statement in split(script):
        at = script.index(statement, at)
        blank = _BLANK.match(statement)
        yield script.count("\n", 0, at + (blank.end() if blank is not None else 0)) + 1, statement
        at += len(statement)


def is_exclusive(sql: str) -> bool:
    """BEGIN EXCLUSIVE."""
    return words_of(sql)[1:2] == ("EXCLUSIVE",)


@lru_cache(CACHE_MAX)
def is_about_schema(sql: str) -> bool:
    """A PRAGMA that reads the schema alone. No other transaction that changes it can come in between (rule H2)."""
    if words_of(sql, 1) != ("PRAGMA",):
        return False
    blank = _BLANK.match(sql)
    found = _PRAGMA.match(sql, blank.end() if blank is not None else 0)
    return found is not None and found[1].lower() in _OF_SCHEMA


@lru_cache(CACHE_MAX)
def foreign_keys_of(sql: str) -> str | None:
    """PRAGMA foreign_keys: the value in capitals, empty if it is asked for; None: it is another statement."""
    if words_of(sql, 1) != ("PRAGMA",):
        return None
    found = _FOREIGN_KEYS.fullmatch(sql)
    return None if found is None else (found[1] or found[2] or "").upper()


def split(script: str) -> Iterator[str]:
    """The statements of a script; the last one need not be complete."""
    at = 0
    for i, letter in enumerate(script):
        if letter == ";" and apsw.complete(script[at : i + 1]):
            statement, at = script[at : i + 1].strip(), i + 1
            if kind_of(statement) is not Kind.EMPTY:
                yield statement
    rest = script[at:].strip()
    if rest and kind_of(rest) is not Kind.EMPTY:
        yield rest
