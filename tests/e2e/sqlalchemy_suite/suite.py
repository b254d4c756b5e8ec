"""The tests, all of them."""

from sqlalchemy.testing.suite import *  # noqa: F403
