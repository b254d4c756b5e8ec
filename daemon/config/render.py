"""The table of options written out: an example file, docs/config.md, values as TOML."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .option import Option
from .options import ACCESS_OPTIONS, LINK_OPTIONS, OPTIONS, SECTIONS, LinkOptions
from .programs import AccessOptions
from .reader import CONFIG_ENV, CONFIG_PATH

LIVE: Final = " Taken over by a reload."
"""Added to the text of an option with ``live``; the others need a restart."""


def toml_value(value: object) -> str:
    """A value of an option as TOML."""
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return str(value)


def example() -> str:
    """A configuration file with every option explained: required ones set, the others commented out at their default."""
    out = [
        "# Configuration of zenjund, the zenjun daemon. Check it with: zenjun config check FILE",
        "# Options that are commented out show their default.",
    ]
    for section in SECTIONS:
        same = "must be equal at all stations" if section in ("cluster", "links") else "may differ at each station"
        out += ["", f"[{section}]  # {same}"]
        for o in OPTIONS:
            if o.section == section:
                out += ["", f"# {sentence(o.help)}", f"# {sentence(o.allowed)}{LIVE if o.live else ''}"]
                value = f"0x{o.default:04x}" if o.name == "ethertype" else toml_value(o.example if o.required else o.default)
                out.append(f"{'' if o.required else '#'}{o.name} = {value}")
        if section == "station":
            out += ["", "# A further interface of this station, if links.count allows it; such a table for each."]
            out += _commented("link", LINK_OPTIONS)
        if section == "clients":
            out += ["", "# Who may use which groups; such a table for each pattern, the first that fits counts (docs/access.md)."]
            out += _commented("access", ACCESS_OPTIONS)
    return "\n".join(out) + "\n"


def _commented(name: str, rows: Iterable[Option]) -> list[str]:
    """A table [[name]] as an example that is commented out."""
    out = [f"#   [[{name}]]"]
    for o in rows:
        out += [f"#   # {sentence(o.help)}", f"#   # {sentence(o.allowed)}"]
        out.append(f"#   {'' if o.required else '#'}{o.name} = {toml_value(o.example)}")
    return out


def markdown() -> str:
    """docs/config.md."""
    out = [
        "# Configuration",
        "",
        "<!-- Made from daemon/config/options.py by `python -m zenjun.tools.generate`; a test fails when it is stale. -->",
        "",
        f"`zenjund` reads one TOML file: `--config FILE`, else the file named by `${CONFIG_ENV}`, else `{CONFIG_PATH}`.",
        "`zenjun config example` prints one to start from, `zenjun config check FILE` checks one without starting anything.",
        "An unknown option, a wrong type or a value out of bounds is an error that names file, line and the allowed values.",
        "",
        "Options of `[cluster]` and `[links]` must be equal at all stations: a CRC-32 of them travels in the OPEN frames, and a",
        "station whose options differ is not admitted; both sides name it. All others may differ, except `update`, `placement`,",
        "`holders` and `zones` in `[directory]`.",
        "Options without a default are required.",
        "A change needs a restart, unless the option says that a reload (SIGHUP, `systemctl reload`) takes it over.",
    ]
    for section, options in SECTIONS.items():
        out += _table(f"[{section}]", options, [o for o in OPTIONS if o.section == section])
        if section == "station":
            out += _table("[[link]]", LinkOptions, LINK_OPTIONS)
        if section == "clients":
            out += _table("[[access]]", AccessOptions, ACCESS_OPTIONS)
    return "\n".join(out) + "\n"


def _table(title: str, options: type, rows: Iterable[Option]) -> list[str]:
    """A section of docs/config.md."""
    doc = str(options.__doc__).split(": ", 1)[1].rstrip(".")
    out = ["", f"## `{title}`", "", f"{sentence(doc)}", "", "| option | default | allowed | meaning | why it can be set |"]
    out.append("|---|---|---|---|---|")
    for o in rows:
        default = "" if o.required else f"`{f'0x{o.default:04x}' if o.name == 'ethertype' else toml_value(o.default)}`"
        note = f". *{LIVE.strip()[:-1]}*" if o.live else ""
        out.append(f"| `{o.name}` | {default} | {o.allowed} | {o.help}{note} | {o.reason} |")
    return out


def sentence(text: str) -> str:
    """Words as a sentence."""
    return text[0].upper() + text[1:] + "."
