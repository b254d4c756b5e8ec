"""Manual pages: one for every command, from what --help is made of, and roff that formatters take without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from zenjun.daemon.__main__ import parser
from zenjun.daemon.config import OPTIONS
from zenjun.daemon.exits import Exit
from zenjun.tools.cli import cli
from zenjun.tools.packaging import manpages


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    patch = pytest.MonkeyPatch()
    patch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    folder = tmp_path_factory.mktemp("man")
    assert manpages.main([str(folder)]) == 0
    yield folder
    patch.undo()


def commands(context: click.Context) -> Iterator[click.Context]:
    """Contexts of all commands that are not hidden."""
    yield context
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(click.Context(found, parent=context, info_name=name, **found.context_settings))


def plain(roff: str) -> str:
    """The words of a page without its markup."""
    text = re.sub(r"\\f[BR]", "", roff)
    for escape, char in (
        (r"\-", "-"),
        (r"\(aq", "'"),
        (r"\(ga", "`"),
        (r"\(ti", "~"),
        (r"\(ha", "^"),
        (r"\&", ""),
        (r"\e", "\\"),
    ):
        text = text.replace(escape, char)
    return " ".join(text.split())


def test_names_say_what_the_overview_says(pages: Path) -> None:
    """Whole sentences."""
    page = plain((pages / "zenjun-pcap-check.1").read_text())
    assert "zenjun-pcap-check - judge whether the cluster kept its guarantees .SH" in page
    page = plain((pages / "zenjun-pcap.1").read_text())
    assert "Judge whether the cluster kept its guarantees." in page and "Estimate the offsets between" in page
    assert "zenjun-lab-uml - run a program under the User-Mode Linux kernel" in plain((pages / "zenjun-lab-uml.1").read_text())


def test_pages_are_made_without_the_extra() -> None:
    """As the package is, in a fresh checkout."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['numpy', 'pyarrow', 'pyspark', 'matplotlib'])); "
        "from zenjun.tools.packaging import manpages; print(*manpages.pages())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "zenjun-pcap-compare.1" in done.stdout


def test_every_command_has_a_page_that_says_what_help_says(pages: Path) -> None:
    contexts = list(commands(click.Context(cli, info_name="zenjun", **cli.context_settings)))
    names = {"-".join(c.command_path.split()) + ".1" for c in contexts}
    assert {p.name for p in pages.iterdir()} == names | {"zenjund.8", "zenjund.toml.5"}
    assert len(names) > 25
    for context in contexts:
        page = plain((pages / ("-".join(context.command_path.split()) + ".1")).read_text())
        for parameter in context.command.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None and isinstance(parameter, click.Option) and not parameter.hidden:
                assert record[0] in page and " ".join(record[1].split()) in page, (context.command_path, record)
        for line in (context.command.help or "").splitlines():
            if line.strip("\b \t") and not line.strip().endswith(":"):
                assert " ".join(line.split()) in page, (context.command_path, line)


def test_the_daemons_pages_say_what_its_sources_say(pages: Path) -> None:
    page = plain((pages / "zenjund.8").read_text())
    for action in parser()._actions:
        assert all(option in page for option in action.option_strings) and (action.help or "") in page
    assert set(manpages.EXITS) == set(Exit)
    table = plain((pages / "zenjund.toml.5").read_text())
    for o in OPTIONS:
        assert o.help[1:] in table and o.allowed[1:] in table, o.name


def test_formatters_take_the_pages_without_a_warning(pages: Path) -> None:
    """mandoc is the stricter one, groff what people have; a machine without either has no manual pages to read."""
    formatters = [
        c for c in (["mandoc", "-T", "lint", "-W", "warning"], ["groff", "-man", "-ww", "-z", "-K", "utf8"]) if shutil.which(c[0])
    ]
    assert formatters, "groff comes with every Debian's man-db"
    for page in sorted(pages.iterdir()):
        for formatter in formatters:
            done = subprocess.run([*formatter, str(page)], capture_output=True, text=True, timeout=240, check=False)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), page.name


def test_escapes() -> None:
    assert manpages.escaped(".TH x\n'y -\\") == r"\&.TH x" + "\n" + r"\(aqy \-\e"
    assert manpages.main([]) == 2
