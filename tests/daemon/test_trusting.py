"""Keys of sessions, and what the daemon makes of its options and of another daemon with its number."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from zenjun.daemon.datapath import Derived, Vault
from zenjun.daemon.exits import Exit
from zenjun.daemon.key import hello_key, hkdf, sending_key
from zenjun.daemon.keyhost import away
from zenjun.daemon.observe import Journal
from zenjun.daemon.trusting import Secret, Trusting, suite_of
from zenjun.proto.envelope import Hello
from zenjun.proto.errors import UsageError
from zenjun.proto.trust import Twin

KEY = bytes(range(32))
SECOND = 1_000_000_000


def test_the_vector_of_the_rfc() -> None:
    """RFC 5869, A.3: no salt, no info; the first 32 bytes."""
    assert hkdf(b"\x0b" * 22, b"").hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"


def test_each_purpose_cluster_session_and_suite_has_its_own_key() -> None:
    session = bytes(32)
    keys = {
        hello_key(KEY, "a"),
        hello_key(KEY, "b"),
        hello_key(bytes(32), "a"),
        sending_key(KEY, "a", session, 1),
        sending_key(KEY, "a", session, 17),
        sending_key(KEY, "a", b"\x01" * 32, 1),
        sending_key(KEY, "b", session, 1),
    }
    assert len(keys) == 7 and {len(key) for key in keys} == {32}


def test_what_a_key_and_the_options_mean() -> None:
    assert [suite_of("auto", size, "switched") for size in (0, 16, 32)] == [0, 0, 1]
    assert [suite_of(word, 32, "switched") for word in ("authenticate", "encrypt")] == [1, 17]
    assert suite_of("auto", 16, "bus") == 0
    for security, size, medium in (
        ("authenticate", 0, "switched"),
        ("encrypt", 16, "switched"),
        ("auto", 32, "bus"),
        ("encrypt", 32, "bus"),
    ):
        with pytest.raises(UsageError):
            suite_of(security, size, medium)


@dataclass
class Path:
    """The data path, as far as sessions use it."""

    next_number: int = 1
    is_asleep: bool = False
    sent: list[bytes] = field(default_factory=list)
    sealed: list[bytes] = field(default_factory=list)

    def hello_send(self, body: bytes) -> bool:
        self.sent.append(body)
        return True

    def hello_take(self) -> bytes | None:
        return None

    def hello_keys(self, keys: dict[int, Derived]) -> None:
        pass

    def unread(self) -> list[int]:
        return []

    def has_written(self, since_ns: int) -> bool:
        return True

    def hello_rest(self, until_ns: int) -> None:
        pass

    def seal_under(self, session: bytes, key: Derived) -> None:
        self.sealed.append(session)
        self.is_asleep = False


class Ended(Exception):
    """Instead of the daemon's end."""


class Host:
    def give_up(self, code: Exit, message: str) -> None:
        assert code is Exit.REFUSED
        raise Ended(message)


def made(instance: int = 0) -> tuple[Trusting, Path]:
    config = SimpleNamespace(station=1, stations=3, boot=100, fingerprint=1)
    engine = SimpleNamespace(config=config, instance=instance, incarnation=1, membership=SimpleNamespace(members=(1, 2)))
    path = Path()
    secret = Secret({7: Vault().put(KEY)}, "c", 1)
    journal = Journal(logging.getLogger("test_trusting"))
    trusting = Trusting(secret, engine=cast(Any, engine), dp=cast(Any, path), journal=journal, pause_ns=SECOND, wall_ns=lambda: 5)
    trusting.host = Host()
    trusting.on_link(SECOND)
    return trusting, path


def twin(*, instance: int = 0, boot: int = 100, age_ms: int = 0) -> Twin:
    return Twin(Hello(1, 1, bytes(32), 1, 1, 1, boot, 1, instance, 1, age_ms, (1,), (), stations=3))


@pytest.mark.parametrize(
    ("own_instance", "other", "ends"),
    [
        (0, twin(instance=3), True),
        (7, twin(instance=3, age_ms=99_999), False),
        (3, twin(instance=7), True),
        (0, twin(age_ms=9_000), True),
        (0, twin(age_ms=1_000), False),
        (0, twin(age_ms=5_000, boot=99), True),
        (0, twin(age_ms=5_000), True),  # copies of one memory: that with the smaller session stays
        (0, twin(age_ms=5_000, boot=101), False),
    ],
)
def test_of_two_daemons_with_one_number_one_ends(own_instance: int, other: Twin, ends: bool) -> None:
    """The one in a later instance stays, then the older one, then the one with the smaller boot number: here at an age of 5 s."""
    trusting, _ = made(own_instance)
    if ends:
        with pytest.raises(Ended, match="used twice"):
            trusting._apply(6 * SECOND, [other])
    else:
        trusting._apply(6 * SECOND, [other])


def test_after_a_sleep_the_next_frame_has_another_session() -> None:
    trusting, path = made()
    assert len(path.sealed) == 1 and path.sent
    trusting.woke(2 * SECOND, 2 * SECOND - 1)
    assert len(path.sealed) == 1
    trusting.woke(9 * SECOND, 2 * SECOND)
    assert len(path.sealed) == 2
    path.is_asleep = True
    trusting.serve(9 * SECOND)
    assert len(path.sealed) == 3
    assert len(set(path.sealed)) == 3


def test_a_number_that_no_station_has_is_not_away() -> None:
    """A removed station leaves one: keys could never be changed again without a flag that says so."""
    assert away(4, (2,), (1, 3)) == [4] and away(4, (2,), (1, 3, 4)) == []
