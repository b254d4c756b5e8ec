"""docs/cases.md names tests that exist, and every test that bears a case number stands in it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
FOLDERS = "|".join(sorted(path.name for path in TESTS.iterdir() if path.is_dir()))
TABLE = (TESTS.parent / "docs" / "cases.md").read_text()


def test_tests_named_in_the_table_exist() -> None:
    missing = []
    file = ""
    for name, test in re.findall(rf"`((?:{FOLDERS})/\w+\.py|…)(?:::(\w+))?`", TABLE):
        file = file if name == "…" else name
        path = TESTS / file
        if not path.exists() or (test and f"def {test}(" not in path.read_text()):
            missing.append(f"{file}::{test}")
    assert not missing, missing


def test_numbers_in_names_of_tests_stand_in_the_table() -> None:
    known = set(
        re.findall(r"\b(\d{1,3})\b", "\n".join(line.split("|")[1] for line in TABLE.splitlines() if line.startswith("|")))
    )
    for path in sorted(TESTS.rglob("test_*.py")):
        for test in re.findall(r"def (test_\w*_cases?_[\d_]+)\(", path.read_text()):
            for number in re.findall(r"\d+", test.split("_case", 1)[1]):
                assert number in known, f"{path.name}::{test}"
