"""``zenjun-directory``: the process of one station that keeps the directory and answers programs (docs/directory-service.md).

It is a program of the local ``zenjund`` like any other: a member of the group ``zenjun.dir``, with state transfer. What messages
do to names is ``proto/service/directory``, which does no I/O. Here are the rows in SQLite (``store``), the state as it is given
to others (``copy``), the process (``process``), and the socket for programs (``serving``; ``wire`` is what is spoken there). The
client library is ``zenjun.daemon.names``.
"""
