"""Which release this is. A module of its own: the programs beside the daemon must not load the daemon to know it."""

from __future__ import annotations


def version() -> str:
    """Of the installed package."""
    from importlib import metadata  # a tenth of what a program imports, and some never ask

    try:
        return metadata.version("zenjun")
    except metadata.PackageNotFoundError:
        return "0 (not installed)"
