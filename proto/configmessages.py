"""Messages in the total order by which a running cluster changes its configuration (``proto/changing.py``, docs/adr/0032).

They are of type SERVICE and of client 0, as those of keys (``service/keys.py``). The first byte tells which.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from .wire import CONFIGURATION_MAX, Field, Layout


class Say(IntEnum):
    """What a message says."""

    CHANGE = 16
    """The next configuration is proposed (rule V1)."""
    PREPARED = 17
    """The sender has made it durable (V1)."""
    UNABLE = 18
    """The sender cannot take it over: the attempt ends. The rest of the message says why, in UTF-8."""
    COMMIT = 19
    """It has been opened under: it is the configuration now (V3)."""
    KEEP = 20
    """An attempt whose mark somebody still has was given up (V4)."""
    READY = 21
    """The sender's programs have been put into their groups again, in this instance (V7)."""


CONFIG_CHANGE: Final = Layout(
    "config_change",
    (
        Field("say", 1, "16 CHANGE; 17 PREPARED; 18 UNABLE; 19 COMMIT; 20 KEEP; 21 READY"),
        Field("pad", 3, "0"),
        Field("number", 4, "of the configuration that it is about"),
        Field("ballot", 8, "PREPARED, UNABLE: place of the CHANGE in the order; else 0"),
    ),
    "A message of type SERVICE of a daemon (client 0). CHANGE is followed by the options, UNABLE by the reason.",
)


class ConfigMessage(NamedTuple):
    """One message."""

    say: Say
    number: int
    ballot: int = 0
    rest: bytes = b""

    def packed(self) -> bytes:
        return CONFIG_CHANGE.struct.pack(self.say, bytes(3), self.number, self.ballot) + self.rest

    @classmethod
    def read(cls, data: bytes) -> ConfigMessage | None:
        """None: it is none that this version knows."""
        if not CONFIG_CHANGE.size <= len(data) <= CONFIG_CHANGE.size + CONFIGURATION_MAX or data[0] not in set(Say):
            return None
        say, _, number, ballot = CONFIG_CHANGE.struct.unpack_from(data)
        rest = data[CONFIG_CHANGE.size :]
        return cls(Say(say), number, ballot, rest) if rest or say != Say.CHANGE else None
