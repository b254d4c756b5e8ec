"""What is generated is what its table says, and what is stale is named and mended."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from zenjun.tools import frametables, generate
from zenjun.tools.pcap.tables import schema

PATHS = [artefact.path for artefact in generate.ARTEFACTS]
COMMAND = "python -m zenjun.tools.generate"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with the generated files alone."""
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(generate.ROOT / path, tmp_path / path)
    return tmp_path


def test_everything_is_fresh() -> None:
    assert [str(path) for path, _ in generate.stale()] == [], f"run: {COMMAND}"


@pytest.mark.parametrize("path", PATHS)
def test_a_stale_file_is_named_and_mended(copy: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = copy / path
    right = file.read_text()
    # In a page, or a header, only what stands in its blocks is generated, in other files everything is.
    wrong = re.sub(r"((?:<!--|/\*) generated: [a-z_-]+ (?:-->|\*/)\n)", r"\1\nnot so\n", right, count=1)
    file.write_text(wrong if wrong != right else right + "not so\n")
    assert generate.main(["--check"], copy) == 1
    assert capsys.readouterr().out == f"{file}: stale\n"
    assert file.read_text() != right
    assert generate.main([], copy) == 0
    assert capsys.readouterr().out == f"{file}: written\n"
    assert file.read_text() == right
    assert generate.main(["--check"], copy) == 0
    assert capsys.readouterr().out == ""


def test_prose_around_the_blocks_is_kept(copy: Path) -> None:
    file = copy / "docs" / "protocol.md"
    file.write_text("Written by hand.\n" + file.read_text() + "This, too.\n")
    assert generate.stale(copy) == []


def test_a_file_that_is_not_there_is_stale(copy: Path) -> None:
    (copy / PATHS[0]).unlink()
    assert [path for path, _ in generate.stale(copy)] == [copy / PATHS[0]]


def test_a_block_that_nothing_generates_is_an_error(copy: Path) -> None:
    file = copy / "docs" / "protocol.md"
    file.write_text(file.read_text() + "<!-- generated: odd -->\n<!-- end -->\n")
    with pytest.raises(KeyError, match="odd"):
        generate.stale(copy)


def test_every_page_with_blocks_is_generated() -> None:
    pages = {f"docs/{p.name}" for p in (generate.ROOT / "docs").glob("*.md") if "<!-- generated: " in p.read_text()}
    assert pages and pages <= set(PATHS)


def test_every_block_stands_in_the_pages_once() -> None:
    text = "".join((generate.ROOT / "docs" / page).read_text() for page in frametables.PAGES)
    for name in frametables.blocks():
        assert text.count(f"<!-- generated: {name} -->") == 1, name
    text = (generate.ROOT / "docs" / "captures-tables.md").read_text()
    for name in schema.TABLES:
        assert text.count(f"<!-- generated: {name} -->") == 1, name


def test_the_command_needs_neither_c_modules_nor_arrow() -> None:
    """The C header is one of the files: it is written before what includes it can be compiled."""
    hidden = (
        "import sys\n"
        "for name in ('proto.core._core', 'daemon.datapath._datapath', 'daemon.database.vfs._vfs', 'tools.pcap.native._pcap'):\n"
        "    sys.modules['zenjun.' + name] = None\n"
        "sys.modules['pyarrow'] = None\n"
        "from zenjun.tools.generate import main\n"
        "sys.exit(main(['--check']))"
    )
    for argv in (["-c", hidden], ["-m", "zenjun.tools.generate", "--check"]):
        done = subprocess.run([sys.executable, *argv], timeout=240, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
