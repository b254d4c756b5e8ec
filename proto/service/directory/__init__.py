"""The directory: names that give addresses, changed at places of the total order (mode *ordered*).

A state machine without I/O. The process that hosts it is a program of the group ``zenjun.dir`` (order total, level *preack* at
least), keeps the rows in a store of its own and answers look-ups from them. It calls:

``store.Store``
    The process implements it (get, put, delete, scan, count) over one table ``(table, key, row, place)``. Keys are ASCII;
    ``scan`` goes in the order of their bytes. ``MemoryStore`` is for tests. Index ``place`` for deltas, and the rows
    that begin chunks (``copying.begins_chunk``).
``state.State(store, names_max)``
    Loads what ``save`` wrote. ``apply(place, sender, data)`` for each message and ``on_view(place, members, joined)`` for each
    view of the group, in their order; the members are (station, client) of directory processes. ``on_start(place, members)``
    when a START makes this state the group's. Each returns a ``Result``: outcome, changed entries. All inputs of one
    transaction, then ``save()``, then the commit; after a roll-back make a new State. An input at or before ``place`` is
    skipped, so nothing is applied twice. If ``stopped`` is set, a message had a later format: stop.
``State`` to read
    ``entry``, ``outcome(id)``, ``zone``, ``is_out``, ``stations_up()``, ``active()``, ``place``, ``time``, ``main``, ``rest``
    (the sums).
``messages.encode``, ``check``, ``Update``, ``Id`` and ``operations``
    An update: operations, roles of the peer (sorted; exactly one ``user:``; ``names.OPERATOR`` for root and the daemon's user).
    ``check`` reports beforehand whether stations would accept it. ``End(numbers)``: leases of this process that have ended.
    ``Holding(True)``: send it when the process has become active (state transfer's ACTIVE), ``Holding(False)`` when it fails;
    only senders of ``Holding(True)`` count for directory time. ``OnDisk``, ``HasApplied``, ``Check``, ``Digest`` change nothing;
    they are in ``Result.message`` when they have their place.
``State.due_message(me, now)``
    What to send when the wall clock has reached ``next_due()``. ``without_next()``: schedules for which the lowest of
    ``active()`` sends ``Next``; the instant comes from ``daemon/slots.py``, because time zone data differ between machines.
``selection.effective``, ``selection.select``
    The targets in use, and their order for a caller.
``lookup.follow``, ``asking.Desk``, ``asking.Terminal``
    Aliases within a copy; look-ups between processes (ASK, ANSWER, NOT_HERE of the group ``zenjun.dir.ask``): at one that keeps
    a copy, and at one that does not. ``lookup.decide`` is the rule by which a process answers, forwards or waits.
``parts.Parts``, ``remote.Remote``, ``keeping.Keeper``, ``questions``
    Zones with holders of their own: which zone a name is in; a zone at a station that does not keep it; a holder's answers to
    such stations; the messages between them.
``ttl.Ttls``, ``watch.Watch``
    Leases with a time-out, at the process that they belong to; the changes that a program receives.
``copying``
    Chunks and deltas for state transfer, and the digest. ``State.merge`` takes a delta.
``State.rebuild(store, place)``
    The state of a store that a snapshot has filled, with its sums computed; and the check of a store after a restart.

No code of this package reads a clock, time zone data or a locale, uses a fraction, or depends on the order of a set.
"""
