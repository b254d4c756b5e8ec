"""``@rule("M4a")`` marks a test that shows a rule of the protocols, by the name that the docs give it (docs/rules.md)."""

from __future__ import annotations

import pytest


def rule(*names: str) -> pytest.MarkDecorator:
    """Marks a test; ``pytest --rule M4a`` runs those of one rule."""
    return pytest.mark.rule(*names)
