"""Everything in the repository that is generated from a table in the code, and the one command that brings it up to date:

    python -m zenjun.tools.generate            write what is stale, and name it
    python -m zenjun.tools.generate --check    write nothing; exit 1 and name what is stale (a test does the same)

``make generate`` runs it. It needs no C module: the C headers of the wire table and of the client protocol, and the constants of
libzenjun, are among the files. What is *measured* and put into a page (``zenjun evaluate all --write``, ``tools/bench``) or
recorded (``make snapshot``) is not generated: it changes with every run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..daemon import clientwire, config
from ..proto import envelope, wire
from . import clientlibrary, clienttables, frametables, imports, rules
from .pcap.tables import schema

ROOT: Final = Path(__file__).resolve().parent.parent


class Artefact(NamedTuple):
    """A generated file. A page of which only blocks are generated keeps the prose around them."""

    path: str
    """Below the checkout."""
    refresh: Callable[[str], str]
    """What the file should be, from what it is. Raises KeyError for a block that nothing generates."""


ARTEFACTS: Final = (
    Artefact("proto/core/zj_wire.h", lambda _text: wire.c_header()),
    Artefact("daemon/datapath/zj_envelope.h", lambda _text: envelope.c_header()),
    Artefact("daemon/datapath/dp_client.h", lambda _text: clientwire.c_header()),
    Artefact("daemon/client/c/zenjun.h", clientlibrary.header),
    Artefact("daemon/client/c/codes.h", lambda _text: clientlibrary.codes()),
    Artefact("docs/client-protocol.md", clienttables.refresh),
    Artefact("docs/config.md", lambda _text: config.markdown()),
    *(Artefact(f"docs/{page}", frametables.refresh) for page in frametables.PAGES),
    Artefact("docs/captures-tables.md", schema.refresh),
    Artefact("docs/rules.md", lambda _text: rules.page(ROOT)),
    Artefact("docs/architecture.md", imports.refresh),
)


def stale(root: Path = ROOT) -> list[tuple[Path, str]]:
    """Files that are not what they should be, each with what it should be. One that does not exist is stale. Raises OSError."""
    out = []
    for artefact in ARTEFACTS:
        path = root / artefact.path
        text = path.read_text() if path.exists() else ""
        if (fresh := artefact.refresh(text)) != text:
            out.append((path, fresh))
    return out


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    """Command line: see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m zenjun.tools.generate", description="Bring generated files up to date.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is stale")
    options = parser.parse_args(argv)
    found = stale(root)
    for path, fresh in found:
        if not options.check:
            path.write_text(fresh)
        sys.stdout.write(f"{path}: {'stale' if options.check else 'written'}\n")
    return 1 if found and options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
