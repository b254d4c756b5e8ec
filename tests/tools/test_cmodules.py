"""What the C modules show: the entry that Python looks for, and nothing else."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path

import pytest
from zenjun.tools.cmodules import MODULES


def exported(library: Path) -> set[str]:
    """Names that a shared library defines for others."""
    command = ["nm", "-D", "--defined-only", "--format=posix", str(library)]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout
    return {line.split()[0] for line in text.splitlines()}


ENTRIES = {"database": {"sqlite3_zenjunbranch_init"}}
"""What SQLite looks for in an extension."""


@pytest.mark.parametrize("name", MODULES)
def test_a_module_exports_its_entry_only(name: str) -> None:
    module = MODULES[name]()
    path = importlib.import_module(module.name).__file__
    assert path is not None and exported(Path(path)) == {f"PyInit_{module.unit}"} | ENTRIES.get(name, set())


def test_a_function_that_shows_is_seen(tmp_path: Path) -> None:
    source, library = tmp_path / "f.c", tmp_path / "f.so"
    source.write_text('int shown(void) { return 1; }\n__attribute__((visibility("hidden"))) int hidden(void) { return 2; }\n')
    compiler = shutil.which("cc") or "gcc"
    subprocess.run([compiler, "-shared", "-fPIC", "-nostdlib", "-o", str(library), str(source)], check=True, timeout=240)
    assert exported(library) == {"shown"}
