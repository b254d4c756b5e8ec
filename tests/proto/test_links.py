"""The judge of links, input by input; whole runs are in tests/model/links."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from zenjun.proto.links import LINKS_MAX, Config, Judge, Mode, Moved, Said, State, Use, Wired

from ..rules import rule

MS = 1_000_000
HEARTBEAT = 100 * MS
MEMBERS = (1, 2, 3)


def said(link: int, *hears: int, frames: int = 0, number: int = 0) -> Said:
    """What another station says on a link: whom it hears there, and how many frames it has of station 1."""
    return Said(number or link, 2, sum(1 << (s - 1) for s in hears), 0, (frames, 0, 0), (0, 0, 0), (0, 0, 0))


class Scene:
    """Station 1 of three, on two links."""

    def __init__(self, mode: Mode = Mode.AUTO, **priority: int) -> None:
        order = {int(name[1:]): value for name, value in priority.items()}
        self.judge = Judge(Config(1, 3, (1, 2), 2, HEARTBEAT, mode, order))
        self.now = 1_000 * MS
        self.frames = 0
        self.members: tuple[int, ...] = MEMBERS
        self.silent: set[tuple[int, int]] = set()
        """(link, station) that are heard, and whose LINKS are lost."""

    def round(self, *reach: tuple[int, int], deaf: tuple[tuple[int, int], ...] = (), own: tuple[int, ...] = ()) -> list[object]:
        """After a heartbeat: (link, station) that are heard and hear station 1; ``deaf`` ones are heard only. own: links on which
        own frames come back. Returns the effects."""
        self.now += HEARTBEAT
        self.frames += 1
        heard = {link: [0] * 3 for link in (1, 2)}
        for link, station in (*reach, *deaf):
            heard[link][station - 1] = self.now
            hears = (1,) if (link, station) in reach else ()
            if (link, station) not in self.silent:
                self.judge.on_links(self.now, station, link, said(link, *hears, frames=self.frames))
        for link in own:
            heard[link][0] = self.now
        return list(self.judge.step(self.now, heard, (1, 2), self.members))

    def used(self) -> Use | None:
        return self.judge.used


ALL = tuple((link, station) for link in (1, 2) for station in (2, 3))


@rule("J11")
def test_a_newcomer_whose_links_were_lost_is_no_fall() -> None:
    """It is heard on link 2, and has said nothing there yet; link 2 was up to all others."""
    scene = Scene()
    scene.members, scene.silent = (1, 2), {(2, 3)}
    for _ in range(2):
        scene.round(*ALL)
    scene.members = MEMBERS
    scene.round(*ALL)
    assert scene.judge.states[2, 3] is State.ONE_WAY
    scene.silent = set()
    scene.round(*ALL)
    assert scene.used() == Use(Mode.AUTO, (1, 2)) and not scene.judge.hold_until_ns(2)


@rule("J5", "J7")
def test_data_is_spread_over_links_that_are_up_to_all_members() -> None:
    scene = Scene()
    assert Moved(1, 2, State.UP, State.DOWN) in scene.round(*ALL)
    assert scene.used() == Use(Mode.AUTO, (1, 2))
    effects = scene.round((1, 2), (1, 3), (2, 2), deaf=((2, 3),))
    assert Moved(2, 3, State.ONE_WAY, State.UP) in effects
    assert scene.used() == Use(Mode.DUPLICATE, (1, 2))
    for _ in range(3):
        scene.round((1, 2), (1, 3), (2, 2))
    assert scene.judge.states[2, 3] is State.DOWN


@rule("J8")
def test_passive_takes_the_smallest_set_that_reaches_all() -> None:
    scene = Scene(Mode.PASSIVE, n1=5, n2=1)
    scene.round(*ALL)
    assert scene.used() == Use(Mode.PASSIVE, (2,)), "the least priority"
    for _ in range(4):
        scene.round((1, 2), (1, 3), (2, 2))
    assert scene.used() == Use(Mode.PASSIVE, (1,))
    for _ in range(4):
        scene.round((1, 3), (2, 2))
    assert scene.used() == Use(Mode.PASSIVE, (1, 2)), "no link alone"
    for _ in range(4):
        scene.round((2, 2))
    assert scene.used() == Use(Mode.DUPLICATE, (1, 2)), "no set reaches station 3"


@rule("J9")
def test_a_doubt_ends_when_frames_of_this_station_arrive_again() -> None:
    scene = Scene()
    scene.round(*ALL)
    scene.judge.on_doubt(scene.now, [1])
    scene.round(*ALL)
    assert scene.used() == Use(Mode.DUPLICATE, (1, 2)), "the first LINKS may tell of what was before"
    scene.round(*ALL)
    assert scene.used() == Use(Mode.AUTO, (1, 2)) and not scene.judge.hold_until_ns(1)
    scene.judge.on_doubt(scene.now, [1])
    for _ in range(6):
        scene.frames -= 1  # LINKS come, and nothing of this station arrives
        scene.round(*ALL)
    assert scene.used() == Use(Mode.DUPLICATE, (1, 2)) and scene.judge.hold_until_ns(1) > scene.now, "a fall"


@rule("J12")
def test_links_that_are_connected_with_each_other_are_named_and_not_spread_over() -> None:
    scene = Scene()
    scene.round(*ALL)
    assert Wired(2, 1, True) in scene.round(*ALL, own=(2,))
    assert scene.used() == Use(Mode.DUPLICATE, (1, 2))
    for _ in range(4):
        effects = scene.round(*ALL)
        if Wired(2, 0, False) in effects:
            break
    assert scene.judge.wired == {} and scene.used() == Use(Mode.AUTO, (1, 2))
    scene.judge.on_links(scene.now, 2, 1, said(1, 1, number=2))
    assert Wired(1, 2, False) in scene.judge.step(scene.now, {1: [0] * 3, 2: [0] * 3}, (1, 2), MEMBERS)


@given(st.binary(max_size=80))
def test_any_bytes_are_links_or_none(body: bytes) -> None:
    found = Said.read(body)
    assert found is None or (found.packed()[4:] == body[4:] and found.count <= LINKS_MAX)


@given(st.integers(0, 70), st.integers(0, 6), st.integers(1, 4), st.integers(1, 64))
def test_nobody_is_troubled_by_what_another_says(station: int, link: int, number: int, stations: int) -> None:
    scene = Scene()
    scene.judge.on_links(scene.now, station, link, Said(number, 4, 0, 0, (1,) * stations, (1,) * stations, (1,) * stations))
    scene.round(*ALL)
    assert scene.judge.deadline_ns() > 0
