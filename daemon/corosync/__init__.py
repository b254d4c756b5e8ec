"""``zenjun-corosync`` serves corosync's local services from a group of zenjun: programs of corosync run (docs/corosync.md).

``process.py`` puts it together; ``ipc/`` is libqb's IPC, ``order.py`` the connection to zenjund.
"""
