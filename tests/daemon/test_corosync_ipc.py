"""The server of libqb's IPC, against libqb's client: what programs ask and get, what they may not, and what cannot harm."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .. import corosyncs
from ..rules import rule
from .corosync_ipc_rig import CASES

TIMEOUT_S = 280


@rule("Y15", "Y18", "Y19", "Y20")
@pytest.mark.parametrize("case", CASES)
def test_the_server_and_a_program(case: str) -> None:
    if case == "rights" and os.geteuid() != 0:
        pytest.skip("corosync: another user is needed, and this one is not root")
    argv = [*corosyncs.alone(), sys.executable, "-m", "tests.daemon.corosync_ipc_rig", case]
    environment = corosyncs.environment()
    done = subprocess.run(
        argv, cwd=corosyncs.ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
