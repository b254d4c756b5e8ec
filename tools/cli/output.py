"""Rich text on standard output."""

from __future__ import annotations

from rich.console import Console


class Output(Console):
    """A console whose end, when its reader has gone, is that of all commands (``run``): rich would exit with 1 by itself."""

    def on_broken_pipe(self) -> None:
        """Called while the error is handled."""
        raise BrokenPipeError
