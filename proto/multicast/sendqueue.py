"""Records that wait for a link, in C: those of one message lie once for all its links (rule L5)."""

from __future__ import annotations

from typing import Any

from ..core._core import ffi, lib
from ..errors import UsageError
from .codec import Encoded


class SendQueue:
    """Records that wait for a link, each as long as some queue has it."""

    def __init__(self) -> None:
        made = lib.zj_sendq_create()
        if made == ffi.NULL:
            raise MemoryError("the queue of a link")
        self.handle = ffi.gc(made, lib.zj_sendq_destroy)
        self.pointer = int(ffi.cast("uintptr_t", self.handle))
        self._offer = ffi.new("struct zj_offer *")

    def __len__(self) -> int:
        return int(lib.zj_sendq_count(self.handle))

    def put(self, record: Encoded) -> None:
        """A record for its end."""
        data = ffi.from_buffer(record.data)
        lib.zj_sendq_put(self.handle, record.type, record.group, record.client, data, len(record.data))

    def pump(self, core: Any, now: int) -> bool:
        """Give a core what it has room for. Returns whether it has taken something. UsageError: a record can never be
        sent."""
        result = lib.zj_sendq_pump(self.handle, core, now)
        if result < 0:
            raise UsageError("a record is larger than a link takes")
        return bool(result)

    @property
    def since_ns(self) -> int:
        """When ``pump`` had something for a core of which the other end had confirmed everything: the last time."""
        return int(lib.zj_sendq_since(self.handle))

    def take(self) -> list[Encoded]:
        """All records."""
        out = []
        offer = self._offer
        while lib.zj_sendq_pop(self.handle, offer):
            out.append(Encoded(offer.type, offer.group, offer.client, bytes(ffi.buffer(offer.data, offer.size))))
        return out
