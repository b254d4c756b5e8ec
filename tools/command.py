"""Entry point of the ``zenjun`` script: small, so that Ctrl-C while the rest is being imported is an ordinary end too."""

from __future__ import annotations

import sys


def main() -> None:
    """Run one command line and exit with its code."""
    try:
        from .cli import run

        code = run()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
