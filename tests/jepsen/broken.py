"""A daemon with a deliberate defect: ``python tests/jepsen/broken.py DEFECT [options of zenjund]``.

For runs that the checker must not pass. Defects are the rules of ``tests/sim/broken.py`` and those of the core (``enum
zj_fault``, by name in lower case).
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the tests are no part of the package

from zenjun.daemon import __main__ as daemon
from zenjun.proto.core import Fault
from zenjun.proto.engine import EngineConfig

from tests.sim.broken import RULES, engine

CORE = {fault.name.lower(): fault for fault in Fault if fault.name}
DEFECTS = sorted({*RULES, *CORE})


def main(argv: list[str]) -> int:
    """Exit code of the daemon, 2 for an unknown defect."""
    if not argv or argv[0] not in DEFECTS:
        sys.stderr.write(f"usage: python tests/jepsen/broken.py DEFECT [options of zenjund]; one of {', '.join(DEFECTS)}\n")
        return 2
    defect = argv[0]
    if defect in CORE:
        faulty = functools.partial(EngineConfig, faults=int(CORE[defect]))
        setattr(daemon, "EngineConfig", faulty)  # noqa: B010 (a type checker knows it as a class)
    else:
        setattr(daemon, "Engine", engine(frozenset({defect})))  # noqa: B010
    return daemon.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
