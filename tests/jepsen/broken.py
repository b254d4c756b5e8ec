"""A daemon with a deliberate defect: ``python tests/jepsen/broken.py DEFECT [options of zenjund]``.

For runs that the checker must not pass. Defects are the rules of ``tests/sim/broken.py``, those of the core (``enum zj_fault``,
by name in lower case), and those of groups that overlap (``tests/model/multicast/broken.py``, classes of a station by name).
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the tests are no part of the package

from zenjun.daemon import __main__ as daemon
from zenjun.proto.core import Fault
from zenjun.proto.engine import EngineConfig
from zenjun.proto.multicast import member
from zenjun.proto.multicast.main import MainOrder
from zenjun.proto.multicast.station import Station

from tests.model.multicast import broken as broken_orders
from tests.sim.broken import RULES, engine

CORE = {fault.name.lower(): fault for fault in Fault if fault.name}


class DecidedToEverybody(broken_orders.ToEverybody, broken_orders.DeliverDecided):
    """Two of them in one run."""


ORDERS = {n: c for n, c in vars(broken_orders).items() if isinstance(c, type) and issubclass(c, Station) and c is not Station}
ORDERS["DecidedToEverybody"] = DecidedToEverybody
DEFECTS = sorted({*RULES, *CORE, *ORDERS})


def in_python(defect: type[Station]) -> type[Station]:
    """A machine for a daemon that has nothing in C: the rules that are broken are those of the twin."""

    class Machine(defect):  # type: ignore[misc, valid-type]
        is_fast = False
        ready: frozenset[int] = frozenset()

        def __init__(self, station: int, main: MainOrder, window: int, settle: int, *, direct: bool) -> None:
            super().__init__(station, main, window, settle)

    return Machine


def main(argv: list[str]) -> int:
    """Exit code of the daemon, 2 for an unknown defect."""
    if not argv or argv[0] not in DEFECTS:
        sys.stderr.write(f"usage: python tests/jepsen/broken.py DEFECT [options of zenjund]; one of {', '.join(DEFECTS)}\n")
        return 2
    defect = argv[0]
    if defect in ORDERS:
        setattr(member, "FastStation", in_python(ORDERS[defect]))  # noqa: B010
    elif defect in CORE:
        faulty = functools.partial(EngineConfig, faults=int(CORE[defect]))
        setattr(daemon, "EngineConfig", faulty)  # noqa: B010 (a type checker knows it as a class)
    else:
        setattr(daemon, "Engine", engine(frozenset({defect})))  # noqa: B010
    return daemon.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
