"""What a process leaves behind of a sync that failed, or may have failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from zenjun.daemon.database import doubt
from zenjun.daemon.database.doubt import Doubt, Doubts

from ..rules import rule


def left(folder: Path) -> Doubt:
    """What the next process finds."""
    doubts = Doubts(folder)
    doubts.close()
    return doubts.found


@rule("D4")
def test_a_sync_is_in_doubt_until_it_has_succeeded(tmp_path: Path) -> None:
    doubts = Doubts(tmp_path)
    assert doubts.found is Doubt.NONE and left(tmp_path) is Doubt.NONE
    with doubts.syncing():
        assert left(tmp_path) is Doubt.SYNCING
        with doubts.syncing():
            pass
        assert left(tmp_path) is Doubt.SYNCING, "the other one is under way"
    assert left(tmp_path) is Doubt.NONE and not doubts.has_failed
    with pytest.raises(OSError), doubts.syncing():
        raise OSError(5, "Input/output error")
    assert left(tmp_path) is Doubt.FAILED and doubts.has_failed
    with doubts.syncing():
        pass
    assert left(tmp_path) is Doubt.FAILED, "a later one says nothing of it"
    doubts.settled()
    assert left(tmp_path) is Doubt.NONE and not doubts.has_failed
    doubts.close()


def test_after_a_power_cut_the_disk_has_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doubts = Doubts(tmp_path)
    doubts.failed()
    doubts.close()
    assert left(tmp_path) is Doubt.FAILED
    boot = tmp_path / "boot_id"
    boot.write_text("another\n")
    monkeypatch.setattr(doubt, "_BOOT", boot)
    assert left(tmp_path) is Doubt.NONE
    (tmp_path / doubt.NAME).write_bytes(b"? another\n")
    assert left(tmp_path) is Doubt.SYNCING, "what is not understood is doubt"
