"""What the daemon uses of pyroute2, without the rest of it.

``import pyroute2.netlink`` runs the package's own start first, which imports everything that pyroute2 has: network databases,
namespaces, WireGuard, every kind of qdisc. That is three quarters of what a daemon imports, 0.3 s of processor time at each start
and 18 MiB for as long as it runs. The modules that encode and decode messages need nothing of it. They are imported here under an
empty package, which is taken away again: whoever imports pyroute2 in this process afterwards gets the whole of it, as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType

_PACKAGE = "pyroute2"


def _loaded() -> list[str]:
    return [name for name in sys.modules if name == _PACKAGE or name.startswith(f"{_PACKAGE}.")]


@contextmanager
def _bare() -> Iterator[None]:
    """Modules of pyroute2 can be imported inside, without the start of the package. Raises ModuleNotFoundError."""
    if _PACKAGE in sys.modules:  # the whole is here already
        yield
        return
    spec = find_spec(_PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named {_PACKAGE!r}", name=_PACKAGE)
    package = ModuleType(_PACKAGE)
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[_PACKAGE] = package
    try:
        yield
    finally:
        for name in _loaded():
            del sys.modules[name]


with _bare():
    from pyroute2.netlink import NLM_F_REQUEST
    from pyroute2.netlink.marshal import Marshal
    from pyroute2.netlink.rtnl import RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, RTMGRP_LINK
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg


class LinkMarshal(Marshal):  # type: ignore[misc] # it has no types
    """Decodes datagrams of a netlink socket; of what the kernel says only messages about interfaces, and errors."""

    msg_map = {RTM_NEWLINK: ifinfmsg, RTM_DELLINK: ifinfmsg}  # noqa: RUF012 (pyroute2's way)


__all__ = ["NLM_F_REQUEST", "RTMGRP_LINK", "RTM_DELLINK", "RTM_GETLINK", "RTM_NEWLINK", "LinkMarshal", "ifinfmsg"]
