"""The worked example of the directory's design: rows, outcomes and sums at each place."""

from __future__ import annotations

from zenjun.proto.service.directory.entries import NOWHERE, Place, Target, Who
from zenjun.proto.service.directory.messages import Id, Update, check, encode
from zenjun.proto.service.directory.operations import Alias, Operation, Register, Set, Switch
from zenjun.proto.service.directory.selection import effective
from zenjun.proto.service.directory.state import Result, State
from zenjun.proto.service.directory.store import MemoryStore, Table

ONE, TWO, THREE = (1, 3), (2, 4), (3, 5)


class Example:
    """Updates by numbered ids."""

    def __init__(self) -> None:
        self.state = State(MemoryStore())
        self.state.on_view((4294967297, 1, 65535), [ONE, TWO, THREE])
        self.count = 0

    def do(self, clock: int, who: Who, op: Operation, user: str = "user:root") -> Result:
        self.count += 1
        update = Update(Id("00112233445566ff", self.count), (user,), (op,))
        assert check(update) == ""
        return self.state.apply((clock, who[0], 0), who, encode(update))

    def look_up(self, name: str) -> list[str]:
        entry = self.state.entry(name)
        assert entry is not None
        return [t.address for t in effective(entry, self.state.stations_up(), self.state.is_out)]


def test_rows_outcomes_and_sums() -> None:
    e = Example()
    s = e.state
    assert s.main == 0
    db = Set("db", (Target("tcp://10.0.0.7:5432"), Target("tcp://10.0.0.8:5432", 1)), "first", condition=NOWHERE)
    assert e.do(4294967300, ONE, db).outcome == ((4294967300, 1, 0), "", 0, "")
    assert s.store.get(Table.ENTRY, "db") == (
        b'{"a":[["tcp://10.0.0.7:5432",0,1,""],["tcp://10.0.0.8:5432",1,1,""]],"k":"addr","n":"db","o":"user:root",'
        b'"s":"first","v":"4294967300.1.0","z":"default"}'
    )
    second = e.do(4294967300, TWO, Set("db", (Target("tcp://10.0.0.9:5432"),), condition=NOWHERE))
    assert second.outcome is not None and second.outcome.code == "exists" and second.changes == ()
    assert f"{s.main:032x}" == "63200c96836d3ef0ead77a331c1a3354"
    assert e.look_up("db") == ["tcp://10.0.0.7:5432"]

    e.do(4294967302, THREE, Register("web", "tcp://10.0.0.13:80", 1, selection="spread"), "user:www")
    assert f"{s.main:032x}" == "fea7955b34b62f07844144876269863e"
    e.do(4294967303, TWO, Register("web", "tcp://10.0.0.12:80", 1), "user:www")
    assert f"{s.main:032x}" == "d8ffacedaa5533fad17da9209edb512a"
    assert e.look_up("web") == ["tcp://10.0.0.12:80", "tcp://10.0.0.13:80"]

    e.do(4294967305, ONE, Alias("www", "web"))
    loop = e.do(4294967306, THREE, Alias("web", "www"), "user:www")
    assert loop.outcome is not None and loop.outcome.code == "alias-loop"
    assert s.store.get(Table.ENTRY, "www") == (
        b'{"k":"alias","l":"web","n":"www","o":"user:root","v":"4294967305.1.0","z":"default"}'
    )
    assert f"{s.main:032x}" == "d358bf69ee4263139003e70dbaacfa48"

    e.do(4294967307, TWO, Switch("db", ("tcp://10.0.0.8:5432",)))
    assert b'"x":["tcp://10.0.0.8:5432"]' in (s.store.get(Table.ENTRY, "db") or b"")
    assert f"{s.main:032x}" == "6110f144d40f8b2905c172f905fb8f3e"
    assert e.look_up("db") == ["tcp://10.0.0.8:5432"]

    view: Place = (4294967309, 2, 65535)
    gone = s.on_view(view, [ONE, TWO])
    assert [c.name for c in gone.changes] == ["web"] and gone.anywhere
    web = s.entry("web")
    assert web is not None and web.version == view and e.look_up("web") == ["tcp://10.0.0.12:80"]
    assert f"{s.main:032x}" == "c735725246a5ba59eec265830c8bb0a4"


def test_saved_and_loaded_it_is_the_same_and_nothing_is_applied_twice() -> None:
    e = Example()
    e.do(4294967300, ONE, Set("db", (Target("tcp://10.0.0.7:5432"),)))
    e.state.save()
    again = State(e.state.store)
    assert (again.place, again.main, again.rest) == (e.state.place, e.state.main, e.state.rest) and again.main
    update = Update(Id("00112233445566ff", 1), ("user:root",), (Set("db", (Target("tcp://10.0.0.8:5432"),)),))
    assert again.apply((4294967300, 1, 0), ONE, encode(update)).skipped
    repeated = again.apply((4294967301, 1, 0), ONE, encode(update))
    assert repeated.repeated and repeated.outcome == ((4294967300, 1, 0), "", 0, "") and again.main == e.state.main
