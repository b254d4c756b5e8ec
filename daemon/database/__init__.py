"""The replicated database: SQLite files at several stations, kept equal by the total order.

So far: what happens at one station. ``branch.py`` is a program's transaction, private until the order has decided it;
``applier.py`` the one connection that writes the file; ``vfs/`` what makes branches possible without patching SQLite.
docs/database.md says how they fit together, and what they rely on.
"""
