"""Manual pages, made from what ``--help`` is made from: click's commands, zenjund's argument parser, the table of options.

``python -m zenjun.tools.packaging.manpages DIR`` writes one page per command into DIR (``zenjun.1``, ``zenjun-lab-up.1``,
``zenjund.8``, ``zenjund.toml.5``). Nothing in a page is written here but what the sources do not know: files and neighbours.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from ...daemon import config
from ...daemon.__main__ import parser as zenjund_parser
from ...daemon.client.common import SOCKET, SOCKET_ENV
from ...daemon.exits import Exit
from ...daemon.release import version
from ..cli import cli
from ..cli.common import EXIT_CODES
from ..cli.lazy import LazyGroup

EXITS: Final = {
    Exit.OK: "stopped by SIGTERM or SIGINT, in order",
    Exit.BUG: "a bug; the log has the traceback",
    Exit.USAGE: "wrong command line",
    Exit.CONFIG: "the configuration is wrong; the message has file, line and allowed values",
    Exit.RIGHTS: "a right is missing (CAP_NET_RAW)",
    Exit.STATE: "the state folder cannot be used",
    Exit.SOCKET: "the client socket, or the one for metrics, cannot be made",
    Exit.INTERFACE: "the interface can never carry the protocol",
    Exit.REFUSED: "refused by the cluster: the station number is in use",
    Exit.FORCED: "a second signal forced the end",
}


def escaped(text: str) -> str:
    """Text as roff takes it: no escapes, no requests, hyphens that can be copied."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("^", r"\(ha").replace("~", r"\(ti")
    text = text.replace("`", r"\(ga")
    return re.sub(r"(?m)^\.", r"\\&.", text)


def pages() -> dict[str, str]:
    """File name and text of every page."""
    out = {f"{name}.1": page for name, page in _commands(click.Context(cli, info_name="zenjun", **cli.context_settings))}
    out["zenjund.8"] = zenjund()
    out["zenjund.toml.5"] = toml()
    return out


# ---- commands


def _commands(context: click.Context) -> Iterator[tuple[str, str]]:
    """Page name and page of a command and of all below it."""
    command, subcommands = context.command, {}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                subcommands[name] = found
    words = context.command_path.split()
    yield "-".join(words), _page(command, context, words, subcommands)
    for name, found in subcommands.items():
        yield from _commands(click.Context(found, parent=context, info_name=name, **found.context_settings))


def _short(command: click.Command, context: click.Context) -> str:
    """What a command does in one sentence, whole: its line in the overview where there is one."""
    above = context.parent.command if context.parent else None
    if isinstance(above, LazyGroup):
        return above.entries[context.info_name or ""].help
    return command.get_short_help_str(1000)


def _page(command: click.Command, context: click.Context, words: list[str], subcommands: dict[str, click.Command]) -> str:
    short = _short(command, context).rstrip(".")
    if len(words) == 1:
        short = "totally ordered broadcast on one Ethernet segment"
    out = [_head("-".join(words), 1), _name("-".join(words), short), ".SH SYNOPSIS"]
    usage = [escaped(piece) for piece in command.collect_usage_pieces(context)]
    out.append(rf"\fB{escaped(' '.join(words))}\fR " + " ".join(usage))
    out += [".SH DESCRIPTION", *_prose(command.help or "")]
    options = [p for p in command.get_params(context) if isinstance(p, click.Option) and not p.hidden]
    if options:
        out.append(".SH OPTIONS")
        for option in options:
            record = option.get_help_record(context)
            if record is not None:
                out += [".TP", rf"\fB{escaped(record[0])}\fR", escaped(" ".join(record[1].split()) or "(no help)")]
    if subcommands:
        out.append(".SH COMMANDS")
        for name, sub in subcommands.items():
            out += [
                ".TP",
                rf"\fB{escaped('-'.join([*words, name]))}\fR(1)",
                escaped(_short(sub, click.Context(sub, parent=context, info_name=name))),
            ]
    if command.epilog:
        out += [".SH NOTES", *_prose(command.epilog)]
    out += [".SH EXIT STATUS", *_terms((str(code), text) for code, text in EXIT_CODES.items())]
    out += [".SH ENVIRONMENT", *_terms([(SOCKET_ENV, f"Socket of the daemon to talk to, instead of {SOCKET}.")])]
    parents = ["-".join(words[:-1])] if len(words) > 1 else []
    out += [".SH SEE ALSO", _see([*((p, 1) for p in parents), ("zenjund", 8), ("zenjund.toml", 5)])]
    return "\n".join(out) + "\n"


def _prose(text: str) -> Iterator[str]:
    """click's help: paragraphs, and blocks that begin with \\b, which stay as they are."""
    first = True
    for block in re.split(r"\n\s*\n", _dedent(text.split("\f")[0])):
        lines = block.strip("\n").splitlines()
        if not lines:
            continue
        if lines[0].strip() == "\b":
            yield from _verbatim(lines[1:])
        else:
            if not first:
                yield ".PP"
            yield escaped(" ".join(line.strip() for line in lines))
        first = False


def _dedent(text: str) -> str:
    lines = text.splitlines()
    rest = [len(line) - len(line.lstrip(" ")) for line in lines[1:] if line.strip()]
    cut = min(rest, default=0)
    return "\n".join([lines[0].strip(" "), *(line[cut:] for line in lines[1:])]) if lines else ""


def _verbatim(lines: Sequence[str]) -> Iterator[str]:
    """A block as it is; its first line becomes a heading if it ends with a colon."""
    if lines and re.fullmatch(r"[A-Z][a-z ]+:", lines[0].strip()):
        yield f".SS {escaped(lines[0].strip().rstrip(':'))}"
        lines = lines[1:]
    yield ".nf"
    yield from (escaped(line) for line in lines)
    yield ".fi"


# ---- the daemon


def zenjund() -> str:
    """zenjund(8)."""
    parser = zenjund_parser()
    out = [_head("zenjund", 8), _name("zenjund", "the zenjun daemon: one station of one cluster"), ".SH SYNOPSIS"]
    usage = parser.format_usage().removeprefix("usage: zenjund ")
    out.append(r"\fBzenjund\fR " + escaped(" ".join(usage.split())))
    out += [".SH DESCRIPTION", escaped(parser.description or "")]
    out.append(".SH OPTIONS")
    out += _terms((_names(action), (action.help or "") % {"prog": "zenjund"}) for action in parser._actions)
    for block in (parser.epilog or "").strip().split("\n\n"):
        title, _, rest = block.partition(":")
        if title == "exit codes":
            continue  # as a table below, from the codes themselves
        out.append(f".SH {escaped(title.upper())}")
        out += _verbatim(rest.strip("\n").splitlines()) if rest.startswith("\n") else [escaped(" ".join(rest.split()))]
    out += [".SH EXIT STATUS", *_terms((str(code.value), text) for code, text in EXITS.items())]
    files = [
        (config.CONFIG_PATH, "configuration of zenjund.service"),
        ("/etc/zenjun/NAME.toml", "configuration of zenjund@NAME.service"),
        (SOCKET, "socket for programs; its group's members may connect"),
        ("/var/lib/zenjun", "the number of this life and of the last instance; must survive a crash"),
    ]
    out += [".SH FILES", *_terms(files)]
    out += [".SH SEE ALSO", _see([("zenjund.toml", 5), ("zenjun", 1), ("systemctl", 1), ("journalctl", 1)])]
    return "\n".join(out) + "\n"


def _names(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else "")
    return f"{names} {value}".strip()


def toml() -> str:
    """zenjund.toml(5), from the table of options."""
    out = [_head("zenjund.toml", 5), _name("zenjund.toml", "configuration of the zenjun daemon"), ".SH DESCRIPTION"]
    out.append(
        escaped(
            f"zenjund reads one TOML file: --config FILE, else the file named by ${config.CONFIG_ENV}, else "
            f"{config.CONFIG_PATH}. zenjun config example prints one to start from, zenjun config check FILE checks one. Options "
            "without a default are required. A change needs a restart, unless the option says that a reload takes it over."
        )
    )
    tables = [(f"[{section}]", options, config.OPTIONS) for section, options in config.SECTIONS.items()]
    link = ("[[link]]", config.LinkOptions, config.LINK_OPTIONS)
    access = ("[[access]]", config.AccessOptions, config.ACCESS_OPTIONS)
    for title, options, rows in [*tables, link, access]:
        out += [f".SH {escaped(title)}", escaped(config.sentence(str(options.__doc__).split(": ", 1)[1].rstrip(".")))]
        for o in rows:
            if o.section != title.strip("[]"):
                continue
            value = f"0x{o.default:04x}" if o.name == "ethertype" else config.toml_value(o.default)
            default = "" if o.required else f" = {value}"
            text = f"{config.sentence(o.help)} {config.sentence(o.allowed)}{config.LIVE if o.live else ''}"
            out += [".TP", rf"\fB{escaped(o.name)}\fR{escaped(default)}", escaped(text)]
    out += [".SH EXAMPLE", ".nf", *map(escaped, _smallest()), ".fi"]
    out += [".SH SEE ALSO", _see([("zenjund", 8), ("zenjun-config", 1)])]
    return "\n".join(out) + "\n"


def _smallest() -> Iterator[str]:
    """The required options only."""
    for section in config.SECTIONS:
        rows = [o for o in config.OPTIONS if o.section == section and o.required]
        if rows:
            yield f"[{section}]"
            yield from (f"{o.name} = {config.toml_value(o.example)}" for o in rows)


# ---- parts of a page


def _head(name: str, section: int) -> str:
    """The date is the one that package builders give: a page made twice is the same."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    date = datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%d") if epoch.isdecimal() else ""
    return f'.TH "{escaped(name.upper())}" "{section}" "{date}" "zenjun {escaped(version())}" "zenjun"'


def _name(name: str, text: str) -> str:
    return f".SH NAME\n{escaped(name)} \\- {escaped(text[0].lower() + text[1:])}"


def _terms(rows: Any) -> Iterator[str]:
    for term, text in rows:
        yield from (".TP", rf"\fB{escaped(term)}\fR", escaped(" ".join(text.split())))


def _see(neighbours: Sequence[tuple[str, int]]) -> str:
    return ",\n".join(rf"\fB{escaped(name)}\fR({section})" for name, section in neighbours)


def main(argv: Sequence[str]) -> int:
    """Write all pages into the folder named by the only argument."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m zenjun.tools.packaging.manpages DIR\n")
        return 2
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
