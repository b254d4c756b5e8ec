"""Scenarios: faults and load on a time line, a seed, what must come of it (docs/scenarios.md)."""

from .library import ready, resolve
from .model import Scenario, ScenarioError
from .play import Outcome, play
from .reader import parse

__all__ = ["Outcome", "Scenario", "ScenarioError", "parse", "play", "ready", "resolve"]
