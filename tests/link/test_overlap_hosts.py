"""Hosts of groups on real data paths and links: programs and stations come and go with messages under way."""

from __future__ import annotations

import pytest

from .overlap_hosts import simulate


@pytest.mark.parametrize("seed", [1, 3])
def test_changes_with_messages_under_way(seed: int) -> None:
    simulate(seed)
