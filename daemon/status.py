"""The status of a daemon: the JSON object that ``zenjun status`` shows and the metrics read (docs/status.md).

The part that the protocol knows is made in ``proto/status.py``; this module adds interface, data path, programs, rights and
options.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any, Final

from ..proto.engine import Engine
from ..proto.service.groups import Groups
from ..proto.wire import MESSAGE, payload_offset
from .config import NS_PER_MS, Config
from .datapath import DataPath
from .rights import Rights
from .runtime import Runtime
from .sessions import Sessions

INTERFACE: Final = ("name", "index", "mac", "state", "mtu")
"""Of a row of ``links``, what ``interface`` repeats of the first one."""


class StatusReport:
    """Makes the answer to STATUS. ``runtime`` and ``clients`` are set once they exist."""

    runtime: Runtime
    clients: Sessions

    def __init__(
        self,
        config: Config,
        engine: Engine,
        dp: DataPath,
        groups: Groups,
        rights: Rights,
        version: str,
        key_mark: str | None,
    ) -> None:
        """key_mark: mark of the cluster's key, None: no key."""
        self._config = config
        self._key_mark = key_mark
        self._engine = engine
        self._dp = dp
        self._groups = groups
        self._rights = rights
        self._version = version

    def status(self, now: int) -> dict[str, Any]:
        """The whole object. What the protocol knows comes from the engine (``proto/status.py``). now: monotonic nanoseconds."""
        out: dict[str, Any] = self._engine.status(now)
        links = self.runtime.links(now)
        interface = {name: value for name, value in links[0].items() if name in INTERFACE}
        header = payload_offset(self._engine.config.stations, packed=True) + MESSAGE.size
        payload = self._engine.core.payload_max
        frame = payload + header
        own = [p["frame_max"] for p in out["peers"] if p["self"]]
        small = [p for p in out["peers"] if not p["self"] and p["frame_max"] == frame and own and frame < own[0]]
        interface["header_bytes"] = {
            "bytes": header,
            "source": f"header, two vectors of {self._engine.config.stations}, message header",
        }
        found = self.runtime.sizing.source if self.runtime.sizing is not None else None
        source = found or (f"station {small[0]['station']}" if small else "own interface")
        interface["frame_max"] = {"bytes": frame, "source": source}
        interface["payload_max"] = {"bytes": payload, "source": "frame_max - header_bytes"}
        out["version"] = self._version
        out["pid"] = os.getpid()
        out["uptime_ms"] = max(0, now - self.runtime.started_ns) // NS_PER_MS
        out["state"] = self.runtime.state()
        out["interface"] = interface
        out["links"] = links
        out["frame_sizes"] = self.runtime.sizing.status() if self.runtime.sizing is not None else None
        out["counters"]["datapath"] = counters = self._dp.counters()
        out["kernel"] = {"drops": counters["rx_kernel_drops"]}
        out["clients"] = self.clients.status()
        out["groups"] = self._groups.as_list()
        out["refusals"] = dict(sorted(self.clients.audit.refusals.items()))
        out["multicast"] = self.clients.multicast.status()
        out["memory_bytes"]["datapath"] = self._dp.memory()
        out["rights"] = asdict(self._rights)
        configs = self.runtime.configs
        present = configs.present if configs is not None else self._config
        out["options"] = {**present.values()["cluster"], "fingerprint": self._engine.config.fingerprint}
        out["configuration"] = configs.status() if configs is not None else None
        sessions = out["sessions"] = self.runtime.sessions(now)
        out["key"] = sessions["key"] if sessions is not None else self._key_mark
        return out
