"""How many seeds the tests of a change try, and how many more ``tools/test --all`` does."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "ZENJUN_TEST_ALL"


def amount(few: int, many: int) -> int:
    """few: enough that each broken rule is caught and each situation met. ``make sim`` looks for new seeds anyway."""
    return many if os.environ.get(VARIABLE) == "1" else few
