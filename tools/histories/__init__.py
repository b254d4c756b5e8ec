"""Judgement of a cluster by what its programs have seen: recorders, their histories, and the checks (docs/jepsen.md)."""

from .checker import CHECKS, Report, judge
from .history import SLOTS, History, read

__all__ = ["CHECKS", "SLOTS", "History", "Report", "judge", "read"]
