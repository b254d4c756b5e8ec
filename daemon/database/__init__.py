"""The replicated database: SQLite files at several stations, kept equal by the total order.

This package is one station's part. ``branch.py`` is a program's transaction, private until the order has decided it;
``applier.py`` is the one connection that writes the file; ``vfs/`` makes branches possible without patching SQLite.
docs/database.md describes how they work together, and what they rely on.
"""
