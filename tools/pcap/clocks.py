"""The import name that docs/captures-tools.md gives to programs; the code is in look/clocks.py."""

from .look.clocks import Alignment, ClockError, Estimate, Pair, align, correction, estimate

__all__ = ["Alignment", "ClockError", "Estimate", "Pair", "align", "correction", "estimate"]
