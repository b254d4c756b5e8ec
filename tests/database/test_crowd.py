"""Programs that are killed, against a serial replay; and what certification has to see is seen there when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..rules import rule
from .crowd import run


@rule("B1", "B8")
def test_what_programs_did_equals_a_serial_replay(tmp_path: Path) -> None:
    met = run(tmp_path, 8, programs=4, threads=2)
    assert met["done"] > 20 and met["kills"] > 2 and met["checkpoint busy"] > 0, met


def test_a_read_of_an_old_row_is_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="in the replay"):
        run(tmp_path, 5, programs=3, threads=2, blind=True)
