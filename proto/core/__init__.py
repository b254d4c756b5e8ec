"""The C core: streams, order and levels of one cluster at one station. ``Core`` is the class, the rest goes in or comes out."""

from .core import API_VERSION, DROP_NAMES, Core, add_checksum, check, crc32c
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
    "add_checksum",
    "check",
    "crc32c",
]
