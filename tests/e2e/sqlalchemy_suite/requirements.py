"""What SQLAlchemy's tests ask of a dialect before they run."""

from __future__ import annotations

from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements


class Requirements(SuiteRequirements):
    """As they are, but for schemas: a replicated database has no other one attached."""

    @property
    def schemas(self) -> Any:
        return exclusions.closed()  # type: ignore[no-untyped-call]
