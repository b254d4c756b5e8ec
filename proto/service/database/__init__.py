"""The replicated database: what all sites decide alike, without SQLite.

``changeset``
    Reads what SQLite's session extension records: which rows of which tables a transaction changed.
"""
