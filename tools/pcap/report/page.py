"""Pieces of a self-contained HTML page: works offline, without scripts, asks for nothing, light and dark, narrow and wide."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from .plots import DARK, JOINS, LIGHT, variables

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content security policy: whatever got into the page, no browser loads anything for it or runs a script."""

STYLE: Final = f"""
:root{{color-scheme:light dark;{variables(LIGHT)}--soft:#f2f4f6;--good:#0f6a3c;--bad:#b3142c;--unsure:#7a5b00}}
@media(prefers-color-scheme:dark){{:root{{{variables(DARK)}--soft:#20252b;--good:#5cd39b;--bad:#ff8a94;--unsure:#e0bf4f}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;max-width:72rem;padding:0 1rem 3rem;background:var(--paper);color:var(--ink);
 font:1rem/1.45 system-ui,sans-serif;overflow-wrap:anywhere}}
h1{{font-size:1.6rem;margin:1.2rem 0 .3rem}}
h2{{font-size:1.25rem;margin:2.2rem 0 .5rem;padding-top:.6rem;border-top:1px solid var(--grid)}}
h3{{font-size:1.05rem;margin:1.4rem 0 .4rem}}
p{{margin:.4rem 0;max-width:60rem}}
a{{color:var(--c1)}}
nav ul{{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;list-style:none;padding:0;margin:.6rem 0}}
.scroll{{overflow-x:auto}}
.scroll:focus-visible{{outline:2px solid var(--c1)}}
table{{border-collapse:collapse;font-size:.9rem;margin:.5rem 0;font-variant-numeric:tabular-nums;overflow-wrap:normal}}
caption{{text-align:left;font-weight:600;padding:.2rem 0}}
th,td{{text-align:left;padding:.22rem .8rem .22rem 0;border-bottom:1px solid var(--grid);vertical-align:top}}
th{{font-weight:600}}
thead th{{white-space:nowrap}}
tbody th{{min-width:4rem}}
td.n,th.n{{text-align:right}}
tr.mark td,tr.mark th{{background:var(--soft);font-weight:600}}
tr:target td,tr:target th,figure:target{{background:var(--soft)}}
.good{{color:var(--good);font-weight:600;white-space:nowrap}}
.bad{{color:var(--bad);font-weight:600;white-space:nowrap}}
.unsure{{color:var(--unsure);font-weight:600;white-space:nowrap}}
.verdict{{font-size:1.15rem;border-left:.35rem solid;padding:.5rem .8rem;background:var(--soft)}}
.verdict,.verdict *{{white-space:normal}}
figure{{margin:.8rem 0}}
figcaption{{font-size:.9rem;max-width:60rem}}
svg{{display:block;width:100%;height:auto;overflow:visible}}
svg text{{fill:var(--ink)}}
{JOINS}
.narrow{{display:none}}
@media(max-width:44rem){{.narrow{{display:block}}.wide{{display:none}}}}
@media print{{.scroll{{overflow:visible}}}}
summary{{cursor:pointer;color:var(--c1)}}
code{{font-family:ui-monospace,monospace;font-size:.92em}}
""".strip()


class Raw(str):
    """HTML that is one already."""

    __slots__ = ()


def text(value: object) -> str:
    """A cell's content as HTML; None is a dash."""
    if isinstance(value, Raw):
        return value
    return "–" if value is None else html.escape(str(value))


def link(target: str, words: str) -> Raw:
    """To an id within the page."""
    return Raw(f'<a href="#{html.escape(target)}">{html.escape(words)}</a>')


def badge(kept: bool | None, words: str = "") -> Raw:
    """Kept, violated or not judged: in words and with a sign, not only by colour."""
    kind, sign, default = {True: ("good", "✓", "kept"), False: ("bad", "✗", "violated"), None: ("unsure", "?", "not judged")}[
        kept
    ]
    return Raw(f'<span class="{kind}"><span aria-hidden="true">{sign}</span> {html.escape(words or default)}</span>')


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Sequence[int] = (),
    ids: Sequence[str] = (),
    marked: Sequence[int] = (),
) -> str:
    """A table with headers, in a box that scrolls by itself where it is too wide.

    numbers: columns set to the right. ids: of the rows, to link to. marked: rows that stand out. The first column heads its row.
    """
    right = set(numbers)

    def cell(tag: str, index: int, value: object, more: str = "") -> str:
        kind = ' class="n"' if index in right else ""
        return f"<{tag}{kind}{more}>{text(value)}</{tag}>"

    head = "".join(cell("th", i, words, ' scope="col"') for i, words in enumerate(heads))
    body = []
    for number, row in enumerate(rows):
        name = f' id="{html.escape(ids[number])}"' if number < len(ids) and ids[number] else ""
        kind = ' class="mark"' if number in marked else ""
        first, *rest = row
        cells = cell("th", 0, first, ' scope="row"') + "".join(cell("td", i, value) for i, value in enumerate(rest, 1))
        body.append(f"<tr{name}{kind}>{cells}</tr>")
    if not body:
        return f"<p>{html.escape(caption)}: none.</p>"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}"><table>'
        f"<caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def section(name: str, heading: str, *parts: str, level: int = 2) -> str:
    """A part of the page with its heading."""
    return f'<section aria-labelledby="{name}"><h{level} id="{name}">{html.escape(heading)}</h{level}>{"".join(parts)}</section>'


def paragraph(*parts: object) -> str:
    """One paragraph."""
    return f"<p>{''.join(text(part) for part in parts)}</p>"


def details(summary: str, content: str) -> str:
    """Something that is folded away."""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"


def page(title: str, lead: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """The whole page: (id, heading, HTML of the section) in order, with a table of contents."""
    contents = "".join(f"<li>{link(name, heading)}</li>" for name, heading, _ in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f'<body><header><h1>{html.escape(title)}</h1>{lead}</header><nav aria-label="Contents"><ul>{contents}</ul></nav>\n'
        f"<main>{''.join(body for _, _, body in sections)}</main></body></html>\n"
    )


class NoSuchMessage(Exception):
    """The message that was asked for is not in the captures; the text is for people."""


def write(text: str, path: Path) -> None:
    """Write the page whole or not at all. OSError."""
    scratch = path.with_name(f".{path.name}.part")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
