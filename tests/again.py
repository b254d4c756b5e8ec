"""What failed beside other lanes of tools/test runs once more, alone, when all lanes have ended (lanes.py).

Several lanes of real daemons share a machine. What time or chance decides there may fail without a fault: a message repeated
because its confirmation was late, two events in another order. If such a test fails, it is noted with what it said in the file
that `VARIABLE` names, and its run goes on as if it had not failed. The lanes show what it said and run the noted tests of a file
again in a process of their own, in which all that they share is made anew. A second failure is one.

Not noted, so a failure at once: what only computes, what a judge of histories finds, a ``Finding`` (stalls.py), and all of a run
of pytest in which more than `MOST` fail. Chance does not do that.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "ZENJUN_AGAIN"
MOST = 3


@dataclass(frozen=True)
class Failed:
    test: str
    """Node id, as pytest takes it."""
    said: str


class Notes:
    """The failures of one run of pytest."""

    def __init__(self) -> None:
        self._chance: dict[str, str] = {}
        self._firm = False
        self.told = False
        """They are in the file."""

    def add(self, test: str, said: str, may_be_chance: bool) -> None:
        """may_be_chance: it is a test of time, and what it found is not wrong on any machine."""
        self._chance.setdefault(test, said)
        self._firm |= not may_be_chance

    def write(self) -> bool:
        """Whether all that failed was noted for a second run."""
        path = os.environ.get(VARIABLE)
        if not path or self._firm or not 0 < len(self._chance) <= MOST:
            return False
        with Path(path).open("a") as file:
            for test, said in self._chance.items():
                file.write(json.dumps(asdict(Failed(test, said))) + "\n")
        self.told = True
        return True


def read(path: Path) -> list[Failed]:
    return [Failed(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def command(failed: list[Failed], pytest: str = "python -m pytest -q --timeout 1500") -> str:
    """Lines for the shell: a process for each file, one after the other."""
    files: dict[str, list[str]] = {}
    for one in failed:
        files.setdefault(one.test.partition("::")[0], []).append(one.test)
    return "\n".join([f"unset {VARIABLE}", *(f"{pytest} {shlex.join(tests)}" for tests in files.values())])
