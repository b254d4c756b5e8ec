"""The import name that docs/captures.md gives to programs; the code is in spark/session.py."""

from .spark.session import Session, SessionError

__all__ = ["Session", "SessionError"]
