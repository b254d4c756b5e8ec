"""Makes the marker known."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "formal: checks the model of the membership agreement with Spin (apt-get install spin)")
