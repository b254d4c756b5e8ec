"""Which version wrote a row last: what certification has to know of the past.

It holds the last versions only; their number decides where it ends, so it ends at the same version at all sites. A site that
joins gets it with the state: with an empty one it would commit what others reject.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

VERSIONS_MAX: Final = 65_536
KEYS_MAX: Final = 1 << 20


class Window:
    """Rows and tables by hash, with the last version that wrote them."""

    def __init__(self, horizon: int, versions_max: int = VERSIONS_MAX, keys_max: int = KEYS_MAX) -> None:
        self.horizon = horizon
        """What was written up to this version is not known."""
        self.versions_max, self.keys_max = versions_max, keys_max
        self._writers: dict[bytes, int] = {}
        self._versions: deque[tuple[int, tuple[bytes, ...]]] = deque()

    def writer(self, key: bytes) -> int:
        """The last version that wrote this, as far as is known; at most the horizon: none since then."""
        return self._writers.get(key, self.horizon)

    def add(self, version: int, keys: Iterable[bytes]) -> None:
        """A version has written these."""
        written = tuple(sorted(set(keys)))
        self._versions.append((version, written))
        self._writers.update(dict.fromkeys(written, version))
        while len(self._versions) > self.versions_max or len(self._writers) > self.keys_max:
            self.horizon, forgotten = self._versions.popleft()
            for key in forgotten:
                if self._writers.get(key) == self.horizon:
                    del self._writers[key]

    def entries(self) -> tuple[tuple[int, tuple[bytes, ...]], ...]:
        """For a snapshot."""
        return tuple(self._versions)

    def copy(self) -> Window:
        """Another one that knows the same."""
        other = Window(self.horizon, self.versions_max, self.keys_max)
        other._writers = dict(self._writers)
        other._versions = deque(self._versions)
        return other
