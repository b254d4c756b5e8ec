"""The client library under the short name that programs import: ``from zenjun.client import connect``.

Every name is the one of ``zenjun.daemon.client``, the same object: ``except zenjun.client.Timeout`` catches what calls under
either name raise. Mapping the short name onto the folder of the library itself would load all of it twice. As there, nothing of
asyncio is imported before an async name is used.
"""

from typing import TYPE_CHECKING, Any

import zenjun.daemon.client as _client  # by its full name: this folder is mapped to another place of the tree than it has on disk
from zenjun.daemon.client import __all__ as __all__

if TYPE_CHECKING:
    from zenjun.daemon.client import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_client, name)


def __dir__() -> list[str]:
    return sorted(__all__)
