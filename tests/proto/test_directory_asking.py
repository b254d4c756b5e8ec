"""Look-ups between processes, message by message: two and four of them, what is waited for, asked again, kept and forgotten."""

from __future__ import annotations

from collections.abc import Iterable

from zenjun.proto.service.directory.asking import RETRY_NS, Desk, Sent, Terminal
from zenjun.proto.service.directory.entries import NOWHERE, Place, Who
from zenjun.proto.service.directory.lookup import Answer, Ask, Common, NotHere, manager_of

S = 1_000_000_000
ZONES = {"north": (1, 2), "south": (3,)}


class Station:
    """A copy that knows zones and versions."""

    def __init__(self, who: Who, names: dict[str, Common], place: Place = (100, 1, 0)) -> None:
        self.who = who
        self.names = names
        self.place = place
        self.active: list[Who] = [(1, 1), (2, 1), (3, 1)]
        self.desk = Desk(self, self._answer)

    def common(self, name: str) -> Common | None:
        return self.names.get(name)

    def keeps(self, zone: str) -> bool:
        return self.who[0] in ZONES[zone]

    def manager(self, zone: str) -> Who | None:
        return manager_of(ZONES[zone], self.active)

    def _answer(self, ask: Ask) -> Answer:
        known = self.names.get(ask.name)
        if known is None:
            return Answer(ask.request, self.place, "no-name")
        return Answer(ask.request, self.place, path=(ask.name,), version=known.version, zone=known.zone)


A = {"a": Common("north", (50, 1, 0)), "b": Common("south", (60, 1, 0))}


class Net:
    """Three holders and a terminal of the zone north; messages are carried one at a time."""

    def __init__(self) -> None:
        self.stations = {k: Station((k, 1), dict(A)) for k in (1, 2, 3)}
        self.terminal = Terminal(ZONES["north"])
        self.terminal.on_active([(1, 1), (2, 1), (3, 1)], 0)
        self.carried: list[tuple[Who, Who, str]] = []

    def carry(self, sender: Who, messages: Iterable[Sent], now: int = 0) -> None:
        for to, message in messages:
            self.carried.append((sender, to, type(message).__name__))
            if to == (9, 1):
                self.terminal.on_message(sender, message, now)
            else:
                self.carry(to, self.stations[to[0]].desk.on_message(sender, message, now), now)

    def look_up(self, name: str, after: Place = NOWHERE, now: int = 0) -> Answer | None:
        number, messages = self.terminal.look_up(name, after, now)
        self.carry((9, 1), messages, now)
        return self.terminal.answered.pop(number, None)


T: Who = (9, 1)


def test_two_messages_within_the_zone_and_four_to_another() -> None:
    net = Net()
    answer = net.look_up("a")
    assert answer is not None and answer.path == ("a",) and len(net.carried) == 2
    net.carried.clear()
    answer = net.look_up("b")
    assert answer is not None and (answer.path, answer.zone) == (("b",), "south")
    assert net.carried == [(T, (1, 1), "Ask"), ((1, 1), (3, 1), "Ask"), ((3, 1), (1, 1), "Answer"), ((1, 1), T, "Answer")]
    net.carried.clear()
    assert (answer := net.look_up("nothing")) is not None and answer.code == "no-name" and len(net.carried) == 2
    # A holder of the zone sends nothing.
    desk = net.stations[2].desk
    assert desk.look_up(Ask(desk.number(), "a"), 0) == [] and desk.answered[1].path == ("a",) and len(desk) == 0


def test_a_manager_that_goes_takes_nothing_with_it() -> None:
    net = Net()
    number, messages = net.terminal.look_up("a", NOWHERE, 0)
    assert messages[0][0] == (1, 1)
    again = net.terminal.on_active([(2, 1), (3, 1)], 5)
    assert [(to, message.request) for to, message in again] == [((2, 1), number)]
    net.terminal.on_message((1, 1), Answer(number, (100, 1, 0), path=("old",)), 6)
    assert not net.terminal.answered, "from one that is not asked any more"
    net.carry(T, again)
    assert net.terminal.answered[number].path == ("a",)
    # Without any holder of the own zone another one answers, and names of the zone are down.
    net.terminal.on_active([(3, 1)], 7)
    net.stations[3].active = [(3, 1)]
    assert (down := net.look_up("a")) is not None and (down.code, down.zone) == ("zone-down", "north")
    assert (other := net.look_up("b")) is not None and other.path == ("b",)
    # Nobody: it waits, and asks as soon as there is one.
    net.terminal.on_active([], 8)
    number, messages = net.terminal.look_up("b", NOWHERE, 8)
    assert messages == [] and len(net.terminal) == 1
    assert net.terminal.on_active([(3, 1)], 9)[0][0] == (3, 1)


def test_the_side_that_knows_less_waits() -> None:
    net = Net()
    one, three = net.stations[1], net.stations[3]
    # b has moved from south to north at 90; station 1 does not know yet, station 3 does.
    three.names["b"] = Common("north", (90, 1, 0))
    one.place = (80, 1, 0)
    assert net.look_up("b") is None
    assert [kind for *_, kind in net.carried] == ["Ask", "Ask", "NotHere"]
    assert one.desk.on_place(0) == []
    one.place, one.names["b"] = (95, 1, 0), Common("north", (90, 1, 0))
    net.carry((1, 1), one.desk.on_place(0))
    assert net.terminal.answered.popitem()[1].place == (95, 1, 0)
    # The other way round: station 3 waits until it has what station 1 has decided by.
    net.carried.clear()
    one.names["a"], three.place = Common("south", (120, 1, 0)), (110, 1, 0)
    one.place = (130, 1, 0)
    assert net.look_up("a") is None and [kind for *_, kind in net.carried] == ["Ask", "Ask"]
    three.place, three.names["a"] = (121, 1, 0), Common("south", (120, 1, 0))
    net.carry((3, 1), three.desk.on_place(0))
    assert net.terminal.answered.popitem()[1].path == ("a",)


def test_a_late_answer_is_the_one_that_is_waited_for() -> None:
    """Found by seed 55: with a new number for each repetition no answer was in time any more."""
    net = Net()
    one = net.stations[1]
    asked = Ask(7, "b")
    first = one.desk.on_message(T, asked, 0)
    assert one.desk.on_message(T, asked, RETRY_NS // 2) == [], "the terminal has asked again"
    assert one.desk.on_time(RETRY_NS - 1) == []
    again = one.desk.on_time(RETRY_NS)
    assert again == first
    late = net.stations[3].desk.on_message((1, 1), first[0][1], 0)
    assert one.desk.on_message((3, 1), late[0][1], 3 * S)[0][0] == T
    assert one.desk.on_message((3, 1), late[0][1], 3 * S) == [], "the second answer"
    assert len(one.desk) == 0
    # The manager has changed meanwhile: the new one is asked, and the old one's answer does not count.
    number = one.desk.on_message(T, Ask(8, "b"), 4 * S)[0][1].request
    one.active = [(1, 1)]
    assert one.desk.on_time(6 * S) == [(T, Answer(8, (100, 1, 0), "zone-down", zone="south"))]
    assert one.desk.on_message((3, 1), Answer(number, (100, 1, 0)), 6 * S) == []
    assert one.desk.on_message((3, 1), NotHere(number, (100, 1, 0)), 6 * S) == []


def test_a_refusal_of_the_first_question_is_none_of_what_is_known_since() -> None:
    """Seeds 6000824 and 6001195: the name went away and came back between the question and its repetition."""
    net = Net()
    one = net.stations[1]
    ((_, first),) = one.desk.on_message(T, Ask(7, "b"), 0)
    one.place, one.names["b"] = (200, 1, 0), Common("south", (190, 1, 0))
    ((to, again),) = one.desk.on_time(RETRY_NS)
    assert (to, again.request) == ((3, 1), first.request)
    assert one.desk._forwarded[first.request].at == (100, 1, 0)
    ((to, new),) = one.desk.on_message((3, 1), NotHere(first.request, (150, 1, 0)), RETRY_NS)
    assert isinstance(new, Ask) and to == (3, 1) and new.version == (190, 1, 0) and new.request != first.request
    assert len(one.desk) == 1


def test_what_is_kept() -> None:
    net = Net()
    assert net.terminal.kept("a", NOWHERE, 0) is None
    assert net.look_up("a", now=10) is not None
    assert net.terminal.kept("a", NOWHERE, S + 9) is not None, "for the entry's ttl from the question on"
    assert net.terminal.kept("a", (100, 1, 0), 20) is not None
    assert net.terminal.kept("a", (100, 1, 1), 20) is None, "the program has seen a later place"
    assert net.terminal.kept("a", NOWHERE, S + 10) is None
    assert net.look_up("a", now=2 * S) is not None
    del net.stations[1].names["a"]
    assert (gone := net.look_up("a", now=2 * S + 1)) is not None and gone.code == "no-name"
    assert net.terminal.kept("a", NOWHERE, 2 * S + 2) is None, "what is gone is not kept"
    assert net.look_up("b", now=3 * S) is not None
    net.terminal.forget()
    assert net.terminal.kept("b", NOWHERE, 3 * S) is None


def test_a_look_up_that_is_given_up_is_forgotten() -> None:
    net = Net()
    number, _ = net.terminal.look_up("a", NOWHERE, 0)
    net.terminal.drop(number)
    assert net.terminal.on_time(5 * S) == [] and len(net.terminal) == 0
    desk = net.stations[1].desk
    for after, sent in ((NOWHERE, 1), ((200, 1, 0), 0)):
        number = desk.number()
        assert len(desk.look_up(Ask(number, "b", after=after), 0)) == sent and len(desk) == 1
        desk.drop(number)
        assert len(desk) == 0 and desk.on_time(5 * S) == []
