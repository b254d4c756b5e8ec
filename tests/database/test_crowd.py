"""Programs that are killed, against a serial replay; and what certification has to see is seen there when it does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..rules import rule
from ..timing import lengthening, until_enough
from .crowd import run


@rule("B1", "B8")
def test_what_programs_did_equals_a_serial_replay(tmp_path: Path) -> None:
    until_enough(
        lambda seconds: run(_empty(tmp_path), seconds, programs=4, threads=2),
        lambda met: met["done"] > 20 and met["kills"] > 2 and met["checkpoint busy"] > 0,
        8,
    )


def test_a_read_of_an_old_row_is_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="in the replay"):
        for seconds in lengthening(5):
            run(_empty(tmp_path), seconds, programs=3, threads=2, blind=True)


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder)
    folder.mkdir()
    return folder
