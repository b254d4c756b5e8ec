"""A replicated counter that survives restarts: python counter.py FILE [AMOUNT]."""

import json
import sys
from pathlib import Path

from zenjun.daemon.client import connect_sync
from zenjun.proto.service.stateapi import Have, Snapshot


class Counter:
    def __init__(self, path):
        self.path = Path(path)
        self.value, self.place = json.loads(self.path.read_text()) if self.path.exists() else (0, None)

    def store(self, value, place):
        self.value, self.place = value, place
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps([value, place]))
        new.replace(self.path)

    def have(self):
        return Have(tuple(self.place), str(self.value).encode()) if self.place else None

    def snapshot(self, place, have):
        value = str(self.value).encode()
        return Snapshot([(b"value", value)], digest=value)

    def restore(self, offer):
        return Restore(self)


class Restore:
    def __init__(self, counter):
        self.counter, self.data = counter, b""

    def kept(self):
        return []

    def chunk(self, key, data):
        self.data = data

    def drop(self, key):
        self.data = b""

    def end(self):
        return self.data

    def commit(self, offer):
        self.counter.store(int(self.data), offer.place)

    def abort(self):
        self.data = b""


with connect_sync(wait=30) as c:
    counter = Counter(sys.argv[1])
    group = c.join("counter", state=counter, timeout=None)
    print("at", counter.value, flush=True)
    if len(sys.argv) > 2:
        group.send(sys.argv[2].encode(), timeout=None)
    for m in group:
        counter.store(counter.value + int(m.data), m.place)
        print(counter.value, flush=True)
