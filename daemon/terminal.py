"""What others have written, on its way to a terminal: host names, names of programs and groups, text of messages.

A terminal obeys what it is shown: the escape character and its 8-bit sisters (C1) move the cursor, rewrite lines above, change
the title, and with some terminals type. So nothing that a peer can choose is printed but through here.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Final

_JOINERS: Final = "\u200c\u200d"
"""Invisible, harmless, and part of words and emoji in several scripts."""
_DOUBTFUL: Final = re.compile(r"[^\x20-\x7e]")
_BESIDE_ASCII: Final = re.compile(r"[^\n -~]")


def _harmless(c: str) -> bool:
    return c.isprintable() or c in _JOINERS or unicodedata.category(c) == "Zs"


def printable(text: object, keep: str = "") -> str:
    """One line that a terminal shows and does not obey: control characters (C0, DEL, C1), line ends, what turns the direction
    of writing, unpaired surrogates and unassigned characters as ``\\x1b``, ``\\n``, ``\\u202e``; all others as they are. For
    people: a backslash stays one, so the form cannot be taken back. ``keep``: control characters that are left all the same."""
    return _DOUBTFUL.sub(lambda m: m[0] if m[0] in keep or _harmless(m[0]) else ascii(m[0])[1:-1], str(text))


def json_text(value: Any, **options: Any) -> str:
    """JSON for files, pipes and terminals: readable, not only ASCII, and what ``printable`` escapes as ``\\u001b``. Reading it
    gives the very same value. ``options``: as of ``json.dumps``."""
    text = json.dumps(value, ensure_ascii=False, **options)
    # Outside of strings JSON is ASCII, with line ends if it is indented; within them those are escaped already.
    return _BESIDE_ASCII.sub(lambda m: m[0] if _harmless(m[0]) else json.dumps(m[0])[1:-1], text)
