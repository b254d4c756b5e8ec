"""An answer that will come."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Generic, TypeVar

from .errors import ClientError

_T = TypeVar("_T")


class Ticket(Generic[_T]):
    """An answer that will come: settled once, with a value or an error. ``on_settled`` is called then, if set."""

    __slots__ = ("_error", "_value", "on_settled", "settled")

    def __init__(self) -> None:
        self.settled = False
        self.on_settled: Callable[[], None] | None = None
        self._value: _T | None = None
        self._error: ClientError | None = None

    def settle(self, value: _T) -> None:
        if not self.settled:
            self._value = value
            self._finish()

    def fail(self, error: ClientError) -> None:
        if not self.settled:
            self._error = error
            self._finish()

    def _finish(self) -> None:
        self.settled = True
        if self.on_settled is not None:
            self.on_settled()

    def result(self) -> _T:
        """The value. Raises the error it failed with, as a fresh copy; call only when settled."""
        if self._error is not None:
            raise copy.copy(self._error)
        return self._value  # type: ignore[return-value]
