"""The replicated database: what all sites decide alike, without SQLite (docs/database.md).

``machine``
    One site: messages and views in, effects out. Composes the modules below.
``certify``, ``window``
    The verdict on a transaction, and which version last wrote a row.
``roll``
    The sites, which sets of them may decide, and which ones open the database.
``messages``, ``changeset``
    The messages of the group, and the rows that a transaction has changed, as SQLite's session extension records them.
``rows``
    What the machine needs of the copy at its site; ``daemon/database/rows.py`` implements it.
"""
