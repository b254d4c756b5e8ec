"""The driver of replicated databases under the short name that programs import: ``from zenjun.db import connect``.

Every name is the one of ``zenjun.daemon.database.driver``, the same object, as with ``zenjun.client``.
"""

from typing import TYPE_CHECKING, Any

import zenjun.daemon.database.driver as _driver  # by its full name: this folder is mapped to another place than it has on disk
from zenjun.daemon.database.driver import __all__ as __all__

if TYPE_CHECKING:
    from zenjun.daemon.database.driver import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_driver, name)


def __dir__() -> list[str]:
    return sorted(__all__)
