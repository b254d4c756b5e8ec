"""The ready-made scenarios that need sch_netem, played under a kernel that has it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from zenjun.tools.lab import uml
from zenjun.tools.scenario import parse, ready

DEADLINE_S = 960.0
NEED_NETEM = [name for name, path in ready().items() if parse(path.read_text(), name).needs]


@pytest.mark.slow
@pytest.mark.timeout(1020)
@pytest.mark.parametrize("name", NEED_NETEM)
def test_scenarios_that_need_netem_hold(name: str, place: Path) -> None:
    lines: list[bytes] = []
    program = [sys.executable, "-c", "from zenjun.tools.command import main; main()"]
    code = uml.run([*program, "lab", "run", name], deadline_s=DEADLINE_S, say=lines.append)
    text = b"\n".join(lines).decode(errors="replace")
    assert code == 0 and f"{name}: all " in text, text
