"""Django's backend for replicated databases: Django's own for SQLite, on this driver.

    DATABASES = {"default": {"ENGINE": "zenjun.db.django", "NAME": "shop", "OPTIONS": {"durability": "all-disk"}}}

NAME is a database of this station; OPTIONS are the arguments of ``zenjun.db.connect``. A transaction that collides with another
one is django.db.OperationalError, whose ``__cause__`` is a ``SerializationError``; docs/database-service.md has the loop that
repeats it.
"""
