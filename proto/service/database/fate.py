"""What became of a transaction whose program has lost the site that was to commit it (rule Z5 of docs/database.md)."""

from __future__ import annotations

from ..base import Source
from .machine import Machine
from .messages import Txid


def may_send(machine: Machine, began: Source) -> bool:
    """Whether a transaction of a session may be sent now. began: the service whose session it is. As another one, after this
    station was cut off, it must not: by then ``fate`` may have said at another site that it never comes."""
    return machine.me == began


def fate(machine: Machine, txid: Txid, at: Source) -> int | None:
    """The version that the transaction made; 0: none, and it never will; None: it may still come.

    Behind a barrier at a site that follows. at: the service that was to commit it. What that has sent stands before the barrier,
    if it is this service, and never comes once it is no member any more. It was a member before the transaction began, and so
    before the barrier, which was sent later. As another service its site never sends it (``may_send``).
    """
    shared = machine.shared
    if shared is None:
        return None
    if (version := machine.rows.version_of(txid)) is not None:
        return version
    if at in machine.members and at != machine.me:
        return None
    waits = any(write.txid == txid for _, write in shared.waiting) or any(lock.txid == txid for _, lock in shared.locks)
    return None if waits or txid in machine.long else 0
