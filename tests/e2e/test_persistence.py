"""What real daemons remember over their deaths, and what becomes of those whose memory is gone, copied, or cannot be written."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from zenjun.daemon.store import STATE_NAME, Record
from zenjun.proto.opening import INSTANCES_AHEAD
from zenjun.tools.lab import Lab, Station

from .cluster import (
    PATIENT,
    cluster,
    kill,
    log_of,
    members_of,
    process_alive,
    programs,
    reported,
    status,
    stays,
    together,
    wait_for,
)
from .daemon_common import refused

pytestmark = pytest.mark.lab


def stored(station: Station) -> Record:
    """What stands on disk now."""
    return Record.decode((station.state_directory / STATE_NAME).read_bytes())


@contextmanager
def traffic(lab: Lab, ids: list[int]) -> Iterator[list[int]]:
    """Programs at these stations that all send all the time; gives the number of messages confirmed so far, which must grow."""
    done = [0]
    over = threading.Event()
    failed: list[BaseException] = []
    with programs(lab, {"g": "preack"}, ids=ids) as senders:

        def send() -> None:
            try:
                while not over.is_set():
                    for sender in senders:
                        sender.groups["g"].send(b"x", "preack", timeout=20)
                        done[0] += 1
                        sender.read("g", 20)
                    over.wait(0.005)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield done
        finally:
            over.set()
            thread.join(60)
        assert not thread.is_alive() and not failed, failed


def test_numbers_survive_sigkill_at_any_moment() -> None:
    """Killed in the middle of starting, listening, joining, or a moment after: each life is a later incarnation than all before,
    and neither number on disk ever falls."""
    rng = random.Random(7)
    with cluster(3, options={"cluster": {"fail_timeout_ms": 1000}}) as lab:
        victim, witness = lab.station(3), lab.station(1)
        together(lab, [1, 2, 3])
        seen = {members_of(witness)[3]}
        last = stored(victim)
        with traffic(lab, [1, 2]) as done:
            for _ in range(10):
                kill(victim)
                now = stored(victim)
                assert now.incarnation >= last.incarnation and now.instance >= last.instance, f"{now} after {last}"
                last = now
                before = done[0]
                victim.start_daemon()
                # The moment of death is the stimulus: from before its first word to long after it has been let in.
                threading.Event().wait(rng.choice((rng.uniform(0.0, 0.3), rng.uniform(0.3, 0.9), rng.uniform(0.9, 2.0))))
                wait_for(lambda b=before: done[0] > b, "the others go on")  # type: ignore[misc]
                if 3 in (now_in := members_of(witness)):
                    seen.add(now_in[3])
            instance = together(lab, [1, 2, 3])
        final = status(victim)["incarnation"]
        assert members_of(witness)[3] == final > max(seen - {final}), f"{final} after {sorted(seen)}"
        assert final > last.incarnation, "and later than what the last life but one had on disk"
        assert stored(victim).incarnation == final and stored(victim).instance in ahead(instance)
        assert stored(witness).instance in ahead(instance)


@pytest.mark.parametrize("what", ["folder", "file", "damaged"])
def test_lost_memory_is_said_and_only_a_new_incarnation_is_let_in(what: str) -> None:
    """The state is gone while the daemon is down; the others remember its last life and let in only a later one."""
    with cluster(3) as lab:
        victim = lab.station(3)
        together(lab, [1, 2, 3])
        old, instance = members_of(lab.station(1))[3], status(victim)["instance"]
        with traffic(lab, [1, 2]) as done:
            kill(victim)
            if what == "folder":
                shutil.rmtree(victim.state_directory)
            elif what == "file":
                (victim.state_directory / STATE_NAME).unlink()
            else:
                (victim.state_directory / STATE_NAME).write_bytes(b"\x00" * 120)
            victim.start_daemon()
            assert together(lab, [1, 2, 3]) > instance
            after = done[0]
            wait_for(lambda: done[0] > after + 5, "everybody goes on together")
        said = {"folder": "there is no state yet", "file": "the state file is gone", "damaged": "the state file is damaged"}[what]
        new = status(victim)["incarnation"]
        assert f"{said}; this life has incarnation " in log_of(victim) and "from the clock" in log_of(victim)
        assert members_of(lab.station(1))[3] == new > old


def test_lost_memory_with_a_clock_that_was_set_back() -> None:
    """The incarnation from the clock is smaller than the last one. The others know that, say so, and it takes a later one."""
    with Lab(3, options=PATIENT) as lab, reported(lab):
        victim = lab.station(3)
        victim.write_config()
        ahead = 3_000_000_000  # as if a clock of the year 2047 had been believed once
        record = Record(f"lab-{lab.name}", 3, ahead, 0)
        (victim.state_directory / STATE_NAME).write_bytes(record.encode())
        lab.start_daemons()
        together(lab, [1, 2, 3])
        assert members_of(lab.station(1))[3] == ahead + 1
        kill(victim)
        together(lab, [1, 2])
        shutil.rmtree(victim.state_directory)
        victim.start_daemon()
        together(lab, [1, 2, 3])
        assert members_of(lab.station(1))[3] > ahead + 1
        assert stored(victim).incarnation == members_of(lab.station(1))[3]


def ahead(instance: int) -> range:
    """What may be on disk in that instance: numbers are made durable a few at a time, before they are needed. A vote for the next
    number may have been promised and come to nothing, on a busy machine."""
    return range(instance, instance + 1 + INSTANCES_AHEAD + 1)


@pytest.fixture
def spare() -> Iterator[Lab]:
    """Three stations in one instance, and a fourth machine on the segment that is none of them."""
    with Lab(4, options={"cluster": {"stations": 3, **PATIENT["cluster"]}}) as lab, reported(lab):
        lab.start_daemons([1, 2, 3])
        together(lab, [1, 2, 3])
        yield lab


def disguise(machine: Station, folder: Path, number: int) -> None:
    """Give a machine a copy of a state folder, and that station's number."""
    machine.write_config({"station": {"id": number}})
    shutil.rmtree(machine.state_directory)
    shutil.copytree(folder, machine.state_directory)


def test_copied_state_started_elsewhere_is_refused_naming_both(spare: Lab) -> None:
    """A clone of a machine with everything on it: the newcomer stops, the one that was there first goes on undisturbed."""
    original, clone = spare.station(2), spare.station(4)
    wait_for(lambda: status(original)["uptime_ms"] > 1500, "older than what could be chance")
    before = {k: (status(spare.station(k))["instance"], members_of(spare.station(k))) for k in (1, 2, 3)}
    disguise(clone, original.state_directory, 2)
    with traffic(spare, [1, 2, 3]) as done:
        for _ in range(2):  # the second time its copy has a later incarnation than the original
            count = done[0]
            code, line = refused(clone)
            assert code == 8, line
            assert "station number 2 is used twice" in line
            assert "02:5a:4a:00:00:02" in line and "02:5a:4a:00:00:04" in line, "both are named"
            wait_for(lambda c=count: done[0] > c, "nobody is disturbed")  # type: ignore[misc]
            wait_for(lambda: "is used twice" in log_of(original), "the original says so as well")
    after = {k: (status(spare.station(k))["instance"], members_of(spare.station(k))) for k in (1, 2, 3)}
    assert after == before, "same instance, same incarnations"
    assert process_alive(original)


def test_copied_state_that_was_started_first_keeps_the_number(spare: Lab) -> None:
    """The clone came up while the original was down, and both count on from the same number: now the original is the newcomer."""
    original, clone = spare.station(2), spare.station(4)
    old = members_of(spare.station(1))[2]
    kill(original)
    disguise(clone, original.state_directory, 2)
    clone.start_daemon()

    wait_for(clone.socket_path.exists, "the clone is up")

    def taken_over() -> bool:
        others = [spare.station(k) for k in (1, 3, 4)]
        return all(status(other)["state"] == "open" and members_of(other).get(2, 0) > old for other in others)

    wait_for(taken_over, "the clone is station 2", 20)
    wait_for(lambda: status(clone)["uptime_ms"] > 1500, "older than what could be chance")
    before = members_of(spare.station(1))
    code, line = refused(original)
    assert code == 8 and "station number 2 is used twice" in line, line
    assert "02:5a:4a:00:00:02" in line and "02:5a:4a:00:00:04" in line
    stays(lambda: members_of(spare.station(1)) == before, "the members are the same", 1.0)
    assert process_alive(clone)


def test_full_disk_stops_the_daemon_before_it_speaks_of_what_it_cannot_remember() -> None:
    """A change of members has to be durable first. Without room the daemon ends with one line; the others go on, and it comes
    back when there is room, with what it remembered."""
    with Lab(5, options=PATIENT) as lab, reported(lab):
        full = lab.station(3)
        full.state_directory.mkdir(parents=True, exist_ok=True)
        mount = full.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", full.state_directory])
        assert mount.returncode == 0, mount.stderr
        lab.start_daemons()
        instance = together(lab, [1, 2, 3, 4, 5])
        ballast = full.state_directory / "ballast"
        filled = full.run(["sh", "-c", 'cat /dev/zero > "$1"', "sh", ballast])
        assert "No space left on device" in filled.stderr
        kill(lab.station(4))
        assert full.daemon is not None and full.daemon.wait(60) == 5
        last = log_of(full).strip().splitlines()[-1]
        assert "cannot write the state file" in last and "No space left on device" in last
        together(lab, [1, 2, 5])
        emptied = full.run(["rm", ballast])
        assert emptied.returncode == 0, emptied.stderr
        text = full.run(["cat", full.state_directory / STATE_NAME]).stdout
        assert Record.decode(text.encode()).instance in ahead(instance), "what was durable before is there, whole"
        lab.station(4).start_daemon()
        full.start_daemon()
        assert together(lab, [1, 2, 3, 4, 5]) > instance
