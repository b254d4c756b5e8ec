"""A group whose commands are imported when they are called for, so that ``zenjun send`` does not pay for the laboratory."""

from __future__ import annotations

import difflib
import importlib
from typing import ClassVar, Final, NamedTuple

import click

from .common import Failure, lacking

SYNONYMS: Final = {
    "directory": "name",
    "dns": "name",
    "lookup": "name get",
    "resolve": "name get",
    "show": "get",
    "delete": "rm",
    "nodes": "members",
    "cluster": "members",
}
"""What people of other systems try first. Only where the first word is a command of the group."""


class Entry(NamedTuple):
    """The module of a command, and its line in the overview, which must not cost an import."""

    module: str
    attribute: str
    help: str
    extra: str = ""
    """What to install if the module cannot be imported."""


class Overview(click.Group):
    """A group that lists its commands with their whole first sentences, which click cuts, and suggests one for a wrong name."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(1000)) for name, command in self.commands.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0] if args else "", self.list_commands(ctx)
        if name and not name.startswith("-") and name not in known:
            other = SYNONYMS.get(name, "")
            close = [other] if other.split()[:1] and other.split()[0] in known else difflib.get_close_matches(name, known, n=1)
            ctx.fail(
                f"no such command {name!r}" + (f"; did you mean {close[0]!r}?" if close else f"; commands are {', '.join(known)}")
            )
        return super().resolve_command(ctx, args)


class LazyGroup(Overview):
    """A subclass lists its commands in ``entries``, and has the package of their modules in ``package``; ``prefix`` is how it is
    called."""

    entries: ClassVar[dict[str, Entry]] = {}
    package: ClassVar[str] = ""
    prefix: ClassVar[str] = "zenjun"

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        try:
            module = importlib.import_module(f".{entry.module}", self.package)
        except ImportError as error:
            if entry.extra and not (error.name or "").startswith("zenjun"):
                raise lacking(error.name, entry.extra, f"{self.prefix} {cmd_name}".removeprefix("zenjun ")) from None
            raise Failure(f"{self.prefix} {cmd_name} is not available in this installation: {error}") from None
        command = getattr(module, entry.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.module}.{entry.attribute} is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])
