"""A daemon with a deliberate defect: ``python tests/jepsen/broken.py DEFECT [options of zenjund]``.

For runs that the checker must not pass. Defects are the membership's own (``membership_faults`` of the engine) and those of the
core (``enum zj_fault``, by name in lower case).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from zenjun.daemon import __main__ as daemon
from zenjun.proto.core import Fault
from zenjun.proto.engine import EngineConfig
from zenjun.proto.membership import FAULTS

CORE = {fault.name.lower(): fault for fault in Fault if fault.name}
DEFECTS = sorted({*FAULTS, *CORE})


def main(argv: list[str]) -> int:
    """Exit code of the daemon, 2 for an unknown defect."""
    if not argv or argv[0] not in DEFECTS:
        sys.stderr.write(f"usage: python tests/jepsen/broken.py DEFECT [options of zenjund]; one of {', '.join(DEFECTS)}\n")
        return 2
    defect = argv[0]
    extra: dict[str, Any] = {"faults": int(CORE[defect])} if defect in CORE else {"membership_faults": frozenset({defect})}
    setattr(daemon, "EngineConfig", functools.partial(EngineConfig, **extra))  # noqa: B010 (a type checker knows it as a class)
    return daemon.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
