"""What can be asked of an HTML page without a browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_ASKS = {"src", "href", "srcset", "action", "data", "poster", "background", "ping", "formaction", "xlink:href"}


@dataclass
class Page(HTMLParser):
    """Ids, links, headings, tables and pictures of a page, and everything in it that would ask for something."""

    text: str
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    """Targets within the page."""
    asks: list[str] = field(default_factory=list)
    """Anything that is no link within the page."""
    headings: list[int] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    """Scripts, and attributes that would run one."""
    tables_without_heads: int = 0
    drawings: int = 0
    untitled: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self._stack: list[str] = []
        self._heads = 0
        self._titled = False
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in _ASKS:
                (self.links if (value or "").startswith("#") else self.asks).append(value or "")
            elif name.startswith("on"):
                self.forbidden.append(f"{tag} {name}")
            elif name == "style" and "url(" in (value or "") and "url(#" not in (value or ""):
                self.asks.append(value or "")
        if tag in ("script", "iframe", "object", "embed", "link", "base", "foreignobject"):
            self.forbidden.append(tag)
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.headings.append(int(tag[1]))
        if tag == "table":
            self._heads = 0
        if tag == "th" and ("scope", "col") in attrs:
            self._heads += 1
        if tag == "svg":
            self.drawings += 1
            self._titled = False
        if tag == "title":
            self._titled = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "table" and not self._heads:
            self.tables_without_heads += 1
        if tag == "svg" and not self._titled:
            self.untitled += 1

    def problems(self) -> list[str]:
        """Everything that a page of ours must not have."""
        out = [f"would ask for {ask}" for ask in self.asks]
        out += [f"runs something: {what}" for what in self.forbidden]
        out += [f"{i} stands for two things" for i in sorted({i for i in self.ids if self.ids.count(i) > 1})]
        out += [f"nothing is at #{target}" for target in sorted({link[1:] for link in self.links} - set(self.ids))]
        if self.headings[:1] != [1] or self.headings.count(1) != 1:
            out.append("there must be one h1, first")
        out += [f"h{b} follows h{a}" for a, b in zip(self.headings, self.headings[1:], strict=False) if b > a + 1]
        if self.tables_without_heads:
            out.append(f"{self.tables_without_heads} tables have no heads of their columns")
        if self.untitled:
            out.append(f"{self.untitled} drawings have no title")
        if "default-src 'none'" not in self.text:
            out.append("there is no content security policy")
        return out
