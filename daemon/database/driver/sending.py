"""A transaction on its way to the database process."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Final

from ..errors import Error, NotCommitted, Undecided
from ..wire import PIECE_BYTES
from .service import RETRY_S, Lost

if TYPE_CHECKING:
    from .connection import Connection
PAUSE_S: Final = 0.002
"""Before the second try, on average; twice that before each further one, up to ``PAUSE_MAX_S``."""
PAUSE_MAX_S: Final = 0.25

DECIDED: Final = frozenset({"stale", "schema", "no-quorum", "conflict", "read", "constraint", "image", "undecided"})
"""What a transaction is refused with at its place in the order; of one that was sent before too, so it is not committed."""


def send(connection: Connection, write: dict[str, Any], body: bytes) -> int:
    """The version that the transaction makes. When the process is lost, its next one is asked under the transaction's id."""
    if is_long := len(body) > PIECE_BYTES:
        write = {**write, "pieces": len(body)}
    write["body"] = b"" if is_long else body
    deadline = time.monotonic() + connection.timeout
    again = False
    while True:
        left = max(0.1, deadline - time.monotonic())
        try:
            if is_long:
                _send_pieces(connection, write["txid"], body, deadline)
            return int(connection._ask("commit", seconds=left, again=again or None, **write)["version"])
        except Lost as error:
            if time.monotonic() > deadline:
                raise Undecided(f"{error}; the transaction may be committed") from None
            again = True
        except Error as error:
            if again and error.code == "stale":
                raise NotCommitted(f"the database process was lost, and the transaction is not committed: {error}") from None
            if not again or error.code in DECIDED:
                raise
            # No answer, no room, or the next process does not know the database yet: that says nothing of what was sent before.
            if time.monotonic() > deadline:
                raise Undecided(f"{error}; the transaction may be committed") from None
        time.sleep(RETRY_S)


def _send_pieces(connection: Connection, txid: bytes, body: bytes, deadline: float) -> None:
    for number, at in enumerate(range(0, len(body), PIECE_BYTES)):
        left = max(0.1, deadline - time.monotonic())
        first = {"bytes": len(body)} if number == 0 else {}
        connection._ask("piece", seconds=left, txid=txid, number=number, body=body[at : at + PIECE_BYTES], **first)


def pause(number: int) -> None:
    """Before the next try, so that those who collided do not again."""
    time.sleep(random.uniform(0.5, 1.5) * min(PAUSE_MAX_S, PAUSE_S * 2 ** (number - 1)))
