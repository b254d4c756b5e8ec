"""The compiled copy: that it is made anew when it must be, and never used if it does something else. It is not compiled here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from . import compiled


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of what a copy is made of."""
    root = tmp_path / "checkout"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(compiled.ROOT / "proto", root / "proto", ignore=ignore)
    shutil.copytree(compiled.ROOT / "tests" / "sim", root / "tests" / "sim", ignore=ignore)
    (root / "tests" / "__init__.py").touch()
    (root / ".typing" / "zenjun").mkdir(parents=True)
    (root / ".typing" / "zenjun" / "proto").symlink_to(root / "proto")
    monkeypatch.setattr(compiled, "ROOT", root)
    monkeypatch.setattr(compiled, "FOLDER", root / "build" / "sim")
    monkeypatch.setattr(compiled, "SETUP", "")  # a copy that is not compiled: the plain modules
    return root


def test_a_copy_is_made_once_and_again_after_a_change(sources: Path) -> None:
    first = compiled.ensure()
    assert (first / "tests" / "sim" / "cluster.py").exists()
    made = (first / "setup.py").stat().st_mtime_ns
    assert compiled.ensure() == first
    assert (first / "setup.py").stat().st_mtime_ns == made
    changed = sources / "proto" / "votes.py"
    changed.write_text(changed.read_text() + "\n")
    second = compiled.ensure()
    assert second != first
    assert (second / "zenjun" / "proto" / "votes.py").read_text() == changed.read_text()
    (sources / "tests" / "sim" / "test_swarm.py").write_text("")
    assert compiled.ensure() == second, "tests are no part of it"


def test_a_copy_that_does_something_else_is_refused(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = compiled.build

    def miscompiled(folder: Path, minutes: float) -> None:
        build(folder, minutes)
        network = folder / "tests" / "sim" / "network.py"
        network.write_text(
            network.read_text().replace("rng.randrange(faults.reorder_ns)", "rng.randrange(faults.reorder_ns) + 1")
        )

    monkeypatch.setattr(compiled, "build", miscompiled)
    with pytest.raises(RuntimeError, match="does not run as its sources do"):
        compiled.ensure()
    assert not any(path.name != "new" for path in compiled.FOLDER.iterdir() if path.is_dir()), "nothing to be used"


def test_modules_that_are_named_are_there() -> None:
    for name in compiled.SIM:
        assert (compiled.ROOT / "tests" / "sim" / f"{name}.py").exists(), name
    for name in compiled.PLAIN:
        assert (compiled.ROOT / "proto" / f"{name}.py").exists(), name
