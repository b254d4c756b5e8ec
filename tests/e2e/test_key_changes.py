"""Keys that change while data flows: nothing is lost, nobody leaves, and a station that was away is told why it stays out."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.daemon.client.errors import Refused
from zenjun.daemon.client.sync import connect_sync
from zenjun.daemon.key import KEY_BYTES, LONG_KEY_BYTES, identity, new_text, read
from zenjun.daemon.keyring import add_to, retired_in
from zenjun.proto.envelope import KEYS_MAX
from zenjun.tools.lab import Lab, Station

from .cluster import PATIENT, exchange, kill, log_of, plan, programs, reported, status, stays, together, wait_for
from .daemon_common import refused

pytestmark = pytest.mark.lab
N = 3
MEMBERS = range(1, N + 1)
CHANGES = 10
ZENJUN = (sys.executable, "-c", "from zenjun.tools.command import main; main()")


@pytest.fixture
def files(tmp_path: Path) -> dict[int, Path]:
    """A key file of each station, all with the same key."""
    text, out = new_text(LONG_KEY_BYTES), {n: tmp_path / f"{n}.key" for n in MEMBERS}
    for path in out.values():
        path.write_text(text)
        path.chmod(0o600)
    return out


@pytest.fixture
def keyed(files: dict[int, Path]) -> Iterator[Lab]:
    with Lab(N, options={"cluster": dict(PATIENT["cluster"]), "station": {"drain_timeout_ms": 200}}) as lab, reported(lab):
        for n in MEMBERS:
            lab.stations[n].start_daemon({"station": {"key_file": str(files[n])}})
        together(lab, MEMBERS)
        yield lab


def asked(lab: Lab, station: int, step: str, key: str, *, without_absent: bool = False) -> str:
    with connect_sync(str(lab.stations[station].socket_path)) as connection:
        return connection.key(step, key, without_absent=without_absent)


def give(lab: Lab, files: dict[int, Path], text: str, stations: range | tuple[int, ...] = MEMBERS) -> str:
    """What ``zenjun key add`` does at each of the stations; the key's id."""
    for n in stations:
        number = add_to(files[n], text, retired_in(lab.stations[n].state_directory))
        asked(lab, n, "add", text.strip())
    return f"{number:08x}"


def keys_of(lab: Lab, at: int) -> dict[int, tuple[str, tuple[str, ...]]]:
    """By station, as one of them knows it: the key it seals with, and those it reads."""
    sessions = status(lab.stations[at])["sessions"]
    others = {int(s): (about["key"], tuple(about["keys"])) for s, about in sessions["stations"].items()}
    return {at: (sessions["key"], tuple(sessions["keys"])), **others}


def all_know(lab: Lab, key: str, *, seals: bool) -> bool:
    known = [keys_of(lab, n) for n in MEMBERS]
    return all(sends == key if seals else key in reads for k in known for sends, reads in k.values())


def retired(lab: Lab, at: int, key: str) -> None:
    """It is refused for some seconds after a change: frames under the former key may be on their way."""

    def accepted() -> bool:
        with contextlib.suppress(Refused):
            asked(lab, at, "retire", key, without_absent=True)
            return True
        return False

    wait_for(accepted, f"key {key} may be retired", 30)


def test_ten_changes_while_data_flows_lose_nothing(keyed: Lab, files: dict[int, Path]) -> None:
    """With loss, and in one instance from the beginning to the end."""
    instance = together(keyed, MEMBERS)
    keys = [status(keyed.stations[1])["key"], *(give(keyed, files, new_text(LONG_KEY_BYTES)) for _ in range(KEYS_MAX - 1))]
    for key in keys:
        wait_for(lambda key=key: all_know(keyed, key, seals=False), "all know that all read the new keys", 20)  # type: ignore[misc]
    with programs(keyed, {"g": "preack"}, ids=MEMBERS) as members:
        keyed.set_loss(0.05)
        failed: list[BaseException] = []
        done = threading.Event()

        def flow() -> None:
            try:
                while not done.is_set():
                    exchange(members, [plan(m, 100, random.Random(m.station)) for m in members])
            except BaseException as exc:
                failed.append(exc)

        thread = threading.Thread(target=flow)
        thread.start()
        try:
            for i in range(1, CHANGES + 1):
                asked(keyed, i % N + 1, "rotate", keys[i % KEYS_MAX])
                wait_for(lambda i=i: all_know(keyed, keys[i % KEYS_MAX], seals=True), "all seal with it", 30)  # type: ignore[misc]
        finally:
            done.set()
            thread.join(120)
            keyed.set_loss(0.0)
        assert not thread.is_alive() and not failed, failed
    for key in keys:
        if key != keys[CHANGES % KEYS_MAX]:
            retired(keyed, 2, key)
    wait_for(lambda: all(len(status(keyed.stations[n])["sessions"]["keys"]) == 1 for n in MEMBERS), "one is left", 20)
    assert together(keyed, MEMBERS) == instance
    secrets = {secret.hex() for path in files.values() for secret in read(path)}
    assert not [n for n in MEMBERS if any(secret in log_of(keyed.stations[n]) for secret in secrets)]


def test_who_was_away_is_let_in_with_the_key_and_not_without(keyed: Lab, files: dict[int, Path]) -> None:
    before = status(keyed.stations[1])["key"]
    kill(keyed.stations[3])
    together(keyed, (1, 2))
    new = give(keyed, files, new_text(LONG_KEY_BYTES), (1, 2))
    wait_for(lambda: new in keys_of(keyed, 1)[2][1], "station 2 has said that it reads it", 20)
    with pytest.raises(Refused, match="away: station 3"):
        asked(keyed, 1, "rotate", new)
    asked(keyed, 1, "rotate", new, without_absent=True)
    wait_for(lambda: keys_of(keyed, 1)[2][0] == new and status(keyed.stations[1])["key"] == new, "both seal with it", 20)
    options = {"station": {"key_file": str(files[3])}}
    keyed.stations[3].start_daemon(options)
    wait_for(lambda: f"station 3 does not have key {new}" in log_of(keyed.stations[1]), "it is named there", 30)
    wait_for(lambda: f"seals with key {new}, which this station does not have" in log_of(keyed.stations[3]), "and here", 30)
    stays(lambda: status(keyed.stations[3])["state"] == "opening", "it opens nothing", 1.0)
    retired(keyed, 1, before)
    wait_for(lambda: f"its key is {before}, retired here" in log_of(keyed.stations[1]), "it is named once more", 30)
    files[3].write_text(files[3].read_text() + files[1].read_text().splitlines()[-1] + "\n")
    asked(keyed, 3, "add", files[1].read_text().splitlines()[-1])
    together(keyed, MEMBERS, 40)
    assert status(keyed.stations[3])["key"] == new
    kill(keyed.stations[1])
    keyed.stations[1].start_daemon({"station": {"key_file": str(files[1])}})
    together(keyed, MEMBERS, 40)
    assert status(keyed.stations[1])["sessions"]["keys"] == [new], "a retired key is not read again from the file"


def test_a_change_that_some_member_cannot_follow_is_refused(keyed: Lab, files: dict[int, Path]) -> None:
    instance, old = together(keyed, MEMBERS), f"{identity(read(files[1])[0]):08x}"
    new = give(keyed, files, new_text(LONG_KEY_BYTES), (1, 2))
    wait_for(lambda: new in keys_of(keyed, 1)[2][1], "station 2 has said that it reads it", 20)
    with pytest.raises(Refused, match=f"key {new} is missing at station 3"):
        asked(keyed, 1, "rotate", new, without_absent=True)
    with pytest.raises(Refused, match=f"key {old} is in use at stations 1, 2, 3"):
        asked(keyed, 1, "retire", old)
    with pytest.raises(Refused, match="64 hexadecimal digits"):
        asked(keyed, 1, "add", "secret")
    assert together(keyed, MEMBERS) == instance
    assert "secret" not in log_of(keyed.stations[1])


def test_an_upgrade_and_no_way_back(files: dict[int, Path]) -> None:
    """From a key of 16 bytes to one of 32, as docs/keys.md says; then a station's key is gone, until it is forgotten."""
    with Lab(N, options={"cluster": dict(PATIENT["cluster"]), "station": {"drain_timeout_ms": 200}}) as lab, reported(lab):
        long, short = files[1].read_text(), new_text(KEY_BYTES)
        for text in (short, long):
            for n in MEMBERS:
                files[n].write_text(text)
                lab.stations[n].start_daemon({"station": {"key_file": str(files[n])}})
            together(lab, MEMBERS)
            for n in MEMBERS:
                lab.stations[n].stop_daemon(20)
        assert "key was" in log_of(lab.stations[1]) and "is authenticate" in log_of(lab.stations[1])
        files[3].write_text(short)
        lab.stations[3].write_config({"station": {"key_file": str(files[3])}})
        assert refused(lab.stations[3])[0] == 3
        no_key(lab.stations[3])


def no_key(station: Station) -> None:
    station.write_config({"station": {"key_file": ""}})
    code, text = refused(station)
    assert code == 3 and "was in the cluster with a key last" in text and "zenjun key forget" in text
    done = station.run([*ZENJUN, "key", "forget", "--config", str(station.config_path)], 30)
    assert done.returncode == 0, done.stderr
    station.start_daemon({"station": {"key_file": ""}})
    wait_for(station.socket_path.exists, "it starts", 20)
