"""The ready-made scenarios (docker/scenarios in a checkout), and how a word of the command line names one."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

from .model import ScenarioError

FOLDER: Final = Path(__file__).with_name("ready")


def ready() -> dict[str, Path]:
    """The files that come with zenjun, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def resolve(word: str) -> Path:
    """The file that a name or a path means; a word with a slash or an ending is a path. Raises ScenarioError."""
    if "/" in word or word.endswith(".toml"):
        return Path(word)
    known = ready()
    if word in known:
        return known[word]
    close = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "zenjun lab run --list shows them; a file has a slash or .toml in its name"
    raise ScenarioError(word, [f"no scenario of this name; {hint}"])
