"""Who keeps which answer: each change is told to those whose answer it touches, once, and to nobody else."""

from __future__ import annotations

import random

from zenjun.daemon.directory import tracking
from zenjun.daemon.directory.tracking import Tracking


def test_an_answer_hangs_on_every_name_of_its_path() -> None:
    for name in ("www", "web", "web.a"):
        kept: Tracking[str] = Tracking()
        assert kept.keep("p", "www", ("www", "web", "web.a"))
        assert kept.changed(["other"]) == {}
        assert kept.changed([name]) == {"p": ["www"]}
        assert kept.changed(["www", "web", "web.a"]) == {}, "told once"
        assert len(kept) == 0


def test_only_who_keeps_it_is_told() -> None:
    kept: Tracking[str] = Tracking()
    kept.keep("p", "db", ("db",))
    kept.keep("q", "db", ("db",))
    kept.keep("q", "www", ("www", "db"))
    kept.keep("r", "x", ("x",))
    assert kept.changed(["db"]) == {"p": ["db"], "q": ["db", "www"]}
    assert kept.changed(["www"]) == {}
    assert kept.clear() == ["r"] and kept.clear() == []


def test_an_alias_that_leads_elsewhere_now() -> None:
    kept: Tracking[str] = Tracking()
    kept.keep("p", "www", ("www", "a"))
    kept.keep("p", "www", ("www", "b"))
    assert kept.changed(["a"]) == {} and kept.changed(["b"]) == {"p": ["www"]}


def test_a_program_that_is_gone_leaves_nothing_behind() -> None:
    kept: Tracking[str] = Tracking()
    kept.keep("p", "www", ("www", "db"))
    kept.keep("q", "db", ("db",))
    kept.remove("p")
    kept.remove("p")
    assert kept.changed(["www", "db"]) == {"q": ["db"]}
    assert not kept._keepers


def test_a_program_keeps_no_more_than_its_share() -> None:
    kept: Tracking[str] = Tracking()
    for number in range(tracking.KEPT_MAX):
        assert kept.keep("p", f"n{number}", (f"n{number}",))
    assert not kept.keep("p", "one.more", ("one.more",))
    assert kept.keep("p", "n0", ("n0",)) and kept.keep("q", "one.more", ("one.more",))


def test_random_histories_beside_a_plain_list() -> None:
    draw = random.Random(50)
    for _ in range(50):
        kept: Tracking[int] = Tracking()
        plain: dict[tuple[int, str], tuple[str, ...]] = {}
        for _ in range(200):
            who, name = draw.randrange(3), f"n{draw.randrange(5)}"
            act = draw.randrange(6)
            if act < 3:
                path = (name, *draw.sample([f"m{k}" for k in range(4)], draw.randrange(3)))
                assert kept.keep(who, name, path)
                plain[who, name] = path
            elif act < 5:
                changed = draw.sample([*(f"n{k}" for k in range(5)), *(f"m{k}" for k in range(4))], 2)
                hit = {key for key, path in plain.items() if set(path) & set(changed)}
                expected = {w: sorted(n for x, n in hit if x == w) for w, _ in hit}
                assert kept.changed(changed) == expected
                for key in hit:
                    del plain[key]
            else:
                kept.remove(who)
                plain = {key: path for key, path in plain.items() if key[0] != who}
            assert len(kept) == len(plain)
