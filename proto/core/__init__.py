"""The C core: streams, order and levels of one cluster at one station. ``Core`` is the class, the rest goes in or comes out."""

from .core import API_VERSION, DROP_NAMES, Core, check, crc32c, seal
from .records import (
    Commit,
    Control,
    Drop,
    Fault,
    Fence,
    Medium,
    Message,
    Peer,
    Phase,
    Positions,
    Stage,
    Start,
    Status,
    Vote,
)

__all__ = [
    "API_VERSION",
    "DROP_NAMES",
    "Commit",
    "Control",
    "Core",
    "Drop",
    "Fault",
    "Fence",
    "Medium",
    "Message",
    "Peer",
    "Phase",
    "Positions",
    "Stage",
    "Start",
    "Status",
    "Vote",
    "check",
    "crc32c",
    "seal",
]
