"""``zenjun.client``: the client library under a short name, as wheels and editable installs map it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
import zenjun.client
assert "asyncio" not in sys.modules, "only when an async name is used"
import zenjun.daemon.client as long
assert sorted(zenjun.client.__all__) == sorted(long.__all__) == dir(zenjun.client)
for name in long.__all__:
    assert getattr(zenjun.client, name) is getattr(long, name), name
assert "asyncio" in sys.modules
from zenjun.client import Timeout, connect, connect_sync
from zenjun.daemon.client.errors import Timeout as same
assert Timeout is same
try:
    connect_sync(sys.argv[1])
except zenjun.client.NotReachable as error:
    assert "no such socket" in str(error)
try:
    import zenjun.client.errors
except ModuleNotFoundError:
    pass  # a second copy of the module would have other classes
else:
    raise SystemExit("zenjun.client.errors")
try:
    zenjun.client.nothing
except AttributeError:
    pass
print("done")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder to import from that has what pyproject.toml maps, where it maps it."""
    mapping = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    for name, folder in mapping.items():
        link = tmp_path.joinpath(*name.split("."))
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(ROOT / folder)
    return tmp_path


def test_both_names_give_the_same_objects(tree: Path) -> None:
    argv = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(tree)!r})\n{PROGRAM}", str(tree / "nothing.sock")]
    done = subprocess.run(argv, cwd=tree, env={}, capture_output=True, text=True, timeout=240, check=False)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_every_mapped_folder_is_a_package_that_is_shipped() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for name, folder in setup["package-dir"].items():
        assert name in setup["packages"] and (ROOT / folder / "__init__.py").is_file() and (ROOT / folder / "py.typed").is_file()
