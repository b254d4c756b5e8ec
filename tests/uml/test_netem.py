"""All tests that need sch_netem, under a kernel that has it."""

from __future__ import annotations

import shutil
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
from zenjun.tools.lab import uml

TESTS_MIN = 28
DEADLINE_S = 1800.0
"""Two minutes on a machine that does nothing else."""


@pytest.mark.timeout(1860)
def test_netem_tests_pass_under_a_kernel_that_has_it(place: Path) -> None:
    """On one processor; a test that is skipped there is as bad as one that fails."""
    out = place / "out"
    out.mkdir()
    report = out / "junit.xml"
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "netem", f"--rootdir={root}"]
    code = uml.run([*command, str(root / "tests" / "netem"), f"--junitxml={report}"], deadline_s=DEADLINE_S, write=[out])
    assert code == 0, f"pytest under User-Mode Linux: exit code {code}"
    (suite,) = xml.etree.ElementTree.parse(report).getroot().iter("testsuite")
    counts = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
    assert counts["tests"] >= TESTS_MIN, counts
    assert counts["failures"] == counts["errors"] == counts["skipped"] == 0, counts
    shutil.rmtree(out)
