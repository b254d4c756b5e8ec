"""The directory under the short name that programs import: ``from zenjun.names import connect_directory``.

Every name is the one of ``zenjun.daemon.names``, the same object, as with ``zenjun.client``.
"""

from typing import TYPE_CHECKING, Any

import zenjun.daemon.names as _names  # by its full name: this folder is mapped to another place of the tree than it has on disk
from zenjun.daemon.names import __all__ as __all__

if TYPE_CHECKING:
    from zenjun.daemon.names import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_names, name)


def __dir__() -> list[str]:
    return sorted(__all__)
