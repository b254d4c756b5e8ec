"""What programs hear of their leases, and of a copy that is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from zenjun.daemon.directory.leases import Lease
from zenjun.daemon.directory.process import Process
from zenjun.daemon.jsonframes import pack
from zenjun.daemon.names.base import LeaseState
from zenjun.daemon.names.protocol import NamesProtocol
from zenjun.daemon.programs import Refused
from zenjun.proto.service.directory.entries import NOWHERE, Place
from zenjun.proto.service.directory.messages import Digest, End, Holding, Id, Update, encode
from zenjun.proto.service.directory.operations import Register

from .test_directory_sending import ME, Group, played

OTHER = (2, 3)


def registered(process: Process, said: list[tuple[int, str, Place]]) -> None:
    """ME has lease 1 of an exclusive name, and is active."""
    state = process.copy.state
    state.on_view((10, 1, 0), [ME, OTHER], [ME, OTHER])
    for k, who in enumerate((ME, OTHER)):
        state.apply((11 + k, 1, 0), who, encode(Holding(True)))
    operation = Register("web", "tcp://10.0.0.1:80", 1, exclusive=True)
    state.apply((20, 1, 0), ME, encode(Update(Id("0" * 16, 1), ("user:x",), (operation,))))
    process.leases.add(Lease(1, operation, ("user:x",), lambda *news: said.append(news)), 0, 0)
    process.facts = process.copy.facts()
    process._active = True
    process._look_stale()


def test_a_holder_in_doubt_hears_how_it_stands_when_there_is_a_quorum_again(tmp_path: Path) -> None:
    """Rule M4. Before, a program whose station was alone for a moment stayed in doubt for ever."""

    async def story(process: Process, group: Group) -> None:
        said: list[tuple[int, str, Place]] = []
        registered(process, said)
        process.leases.all()[0].turn(True, (20, 1, 0))
        connection = process._connection
        assert connection is not None
        for quorum in (False, False, True):
            connection.quorum = quorum  # type: ignore[misc]
            process._look_stale()
        await asyncio.gather(*process._tasks)
        assert said == [(1, "held", (20, 1, 0)), (1, "in-doubt", NOWHERE), (1, "held", (20, 1, 0))]
        process.copy.state.apply((30, 1, 0), ME, encode(End((1,))))
        connection.quorum = False  # type: ignore[misc]
        process._look_stale()
        connection.quorum = True  # type: ignore[misc]
        process._look_stale()
        await asyncio.gather(*process._tasks)
        assert said[3:] == [(1, "in-doubt", NOWHERE), (1, "lost", NOWHERE)]

    played(tmp_path, story)


def test_the_fencing_number_is_the_version_by_which_the_program_has_the_name() -> None:
    """Rule M4: of a lease that waited, or was registered again, it is a later place than that of its registration."""
    protocol, lease = NamesProtocol("x"), LeaseState()
    protocol.receive(pack({"lease": 7, "event": "held", "version": "30.1.0"}))  # before the answer to the registration
    lease._registered(protocol, {"lease": 7, "place": "20.1.0", "held": False})
    assert lease.held and lease.version == (30, 1, 0)
    protocol.receive(pack({"lease": 7, "event": "lost"}) + pack({"lease": 7, "event": "held", "version": "50.1.0"}))
    assert lease.held and lease.version == (50, 1, 0)
    protocol.receive(pack({"lease": 7, "event": "in-doubt"}))
    assert lease.in_doubt and lease.held and lease.version == (50, 1, 0)


def test_a_copy_that_differs_from_the_majority_answers_nothing(tmp_path: Path) -> None:
    """Rule S6. Before, it answered, marked as stale, until it had the others' state."""

    async def story(process: Process, group: Group) -> None:
        registered(process, [])
        process.copy.state.on_view((40, 1, 0), [ME, OTHER, (3, 1)], [])
        process.copy.state.apply((41, 1, 0), (3, 1), encode(Holding(True)))
        process.facts = process.copy.facts()
        process.check_stale()
        for station, main in ((1, 5), (2, 6), (3, 6)):
            process._compare(station, Digest((50, 1, 0), main, 0))
        assert group.wrong == ["unequal sums"]
        with pytest.raises(Refused, match="wrong") as refused:
            process.check_stale()
        assert refused.value.code == "stale"
        process._set_active()
        process.check_stale()

    played(tmp_path, story)
