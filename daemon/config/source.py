"""The text of a configuration file: parsed, with the line of everything that is wrong in it."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from ...proto.errors import UsageError

FILE_BYTES_MAX: Final = 64 * 1024
"""A larger file is no configuration; the limit keeps the parser's worst case short."""
DOTS_MAX: Final = 200
PROBLEMS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a configuration; ``line`` counts from 1, 0: the file as a whole."""

    line: int
    message: str


class ConfigError(UsageError):
    """The configuration cannot be used; ``str`` is one line ``file:line: message`` per problem."""

    def __init__(self, file: str, problems: tuple[Problem, ...]) -> None:
        shown = [f"{file}:{p.line}: {p.message}" if p.line else f"{file}: {p.message}" for p in problems[:PROBLEMS_MAX]]
        if len(problems) > PROBLEMS_MAX:
            shown.append(f"{file}: and {len(problems) - PROBLEMS_MAX} more")
        super().__init__("\n".join(shown))
        self.file = file
        self.problems = problems


def quoted(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        return name
    return shown(name)


def shown(value: object) -> str:
    """A value for a message: printable, on one line, short."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, float) and not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a very large number"
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else str(value)
    text = f'"{text}"' if isinstance(value, str) and not text.startswith(("'", '"')) else text
    return text if len(text) <= 60 else text[:57] + "…" + text[-1]


class Source:
    """A file's text, for finding the line of what the parser has read. The parser keeps none, so the text is scanned again."""

    _TABLE: Final = re.compile(r"\s*\[{1,2}\s*(\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)")
    _KEY: Final = re.compile(r"\s*(\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)\s*(?:\.\s*(\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)\s*)?[.=]")

    def __init__(self, data: bytes, file: str) -> None:
        self._data = data
        self._file = file
        self._lines: list[str] = []

    def tree(self) -> dict[str, Any]:
        """Parse. Raises ConfigError with the line, whatever the bytes are."""
        if len(self._data) > FILE_BYTES_MAX:
            self._fail(self._line_of(FILE_BYTES_MAX), f"the file is larger than {FILE_BYTES_MAX // 1024} KiB")
        try:
            text = self._data.decode("utf-8")
        except UnicodeDecodeError as error:
            self._fail(self._line_of(error.start), f"byte 0x{self._data[error.start]:02x} is not UTF-8")
        self._lines = text.replace("\r\n", "\n").split("\n")
        for number, line in enumerate(self._lines, 1):
            # The parser takes quadratic time for dotted keys (seconds at 64 KiB).
            if line.count(".") > DOTS_MAX and not line.lstrip().startswith("#"):
                self._fail(number, f"more than {DOTS_MAX} dots in one line")
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            self._fail_toml(str(error))
        except RecursionError:
            self._fail(self._deepest(), "lists or tables are nested too deeply")
        except (ValueError, OverflowError, TypeError, AttributeError, KeyError):
            # What the parser lets through: numbers of thousands of digits, dates that do not exist.
            self._fail(self._unparsable(), "this value cannot be read")

    def line(self, section: str, key: str | None, table: int = 0) -> int:
        """Line of an option, or (key None) of a section or top-level key; the section's, or 1, if it cannot be found.

        table: of several tables with this name the one that is meant, from 0."""
        now: str | None = None
        header, tables = 0, 0
        for number, text in enumerate(self._lines, 1):
            if text.lstrip().startswith("["):
                match = self._TABLE.match(text)
                now = _bare(match.group(1)) if match else None
                if now == section:
                    tables += 1
                    now = now if tables > table else ""
                if now == section and not header:
                    header = number
                    if key is None:
                        return number
                continue
            match = self._KEY.match(text)
            if not match:
                continue
            first, second = _bare(match.group(1)), _bare(match.group(2) or "")
            if (now == section and key is not None and first == key) or (
                now is None and first == section and second == (key or second)
            ):
                return number
            if now is None and first == section and not header:
                header = number
        return header or 1

    def _line_of(self, offset: int) -> int:
        return self._data.count(b"\n", 0, offset) + 1

    def _fail(self, line: int, message: str) -> NoReturn:
        raise ConfigError(self._file, (Problem(line, message),)) from None

    def _fail_toml(self, message: str) -> NoReturn:
        match = re.fullmatch(r"(.*?)\s*\(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
        if match is None:
            self._fail(1, _printable(message))
        line = int(match.group(2)) if match.group(2) else len(self._lines)
        text = _printable(match.group(1))
        here = self._lines[line - 1] if line <= len(self._lines) else ""
        if text.startswith("Cannot overwrite") and (key := self._KEY.match(here)):
            self._fail(line, f"{quoted(_bare(key.group(1)))} is given a second time")
        if match.group(3) and (odd := _odd_character(here, int(match.group(3)) - 1)):
            text += f"; there is {odd}"
        self._fail(line, text[0].lower() + text[1:] if text else "not TOML")

    def _deepest(self) -> int:
        return max(range(1, len(self._lines) + 1), key=lambda n: sum(map(self._lines[n - 1].count, "[{.")), default=1)

    def _unparsable(self) -> int:
        """First line that does not parse as it stands with the same kind of error, else the longest."""
        for number, text in enumerate(self._lines, 1):
            try:
                tomllib.loads(text)
            except tomllib.TOMLDecodeError:
                continue
            except (ValueError, OverflowError, TypeError, AttributeError, KeyError, RecursionError):
                return number
        return max(range(1, len(self._lines) + 1), key=lambda n: len(self._lines[n - 1]), default=1)


def _bare(key: str) -> str:
    return key[1:-1] if key[:1] in ("'", '"') else key


def _printable(text: str) -> str:
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return text if len(text) <= 120 else text[:119] + "…"


def _odd_character(line: str, column: int) -> str:
    """Names the characters people cannot see, the usual reason why a line that looks right is not."""
    for at in (column, column - 1):
        c = line[at] if 0 <= at < len(line) else ""
        if c in "\u00a0\u2007\u202f\u3000\ufeff\u200b" and c:
            return f"a character U+{ord(c):04X} at column {at + 1} that looks like a space but is none"
        if c in "“”„‘’" and c:
            return f"a typographic quotation mark at column {at + 1}"
        if c == "\0":
            return f"a NUL byte at column {at + 1}"
    return ""


# ---- texts made from the table
