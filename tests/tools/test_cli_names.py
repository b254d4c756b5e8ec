"""What ``zenjun name load`` makes of a file. The commands on real processes are in tests/e2e."""

from __future__ import annotations

import io
import json
from typing import Any

from zenjun.proto.service.directory.entries import Target
from zenjun.proto.service.directory.operations import Set
from zenjun.tools.cli.name import _operations


def targets(*exported: dict[str, Any]) -> tuple[Target, ...]:
    (operation,) = _operations(io.StringIO(json.dumps([{"name": "job", "targets": list(exported)}])))
    assert isinstance(operation, Set)
    return operation.targets


def test_an_export_is_loaded_with_what_a_target_depends_on() -> None:
    """But a lease is its program's, which has to register again."""
    stays = {"address": "tcp://10.0.0.7:1", "priority": 1, "weight": 3, "while": ""}
    station = {"address": "tcp://10.0.0.8:1", "priority": 0, "weight": 1, "while": "station:2"}
    lease = {"address": "tcp://10.0.0.9:1", "priority": 0, "weight": 1, "while": "1.4.7"}
    assert set(targets(stays, station, lease)) == {
        Target("tcp://10.0.0.7:1", 1, 3),
        Target("tcp://10.0.0.8:1", until="station:2"),
    }
