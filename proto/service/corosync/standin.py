"""One node's stand-in for corosync: the parts put together, in the order in which programs hear of a change (rule Y7).

What a host calls: the inputs of the ring (``ring`` itself has them all), and the requests of programs. A handle is a number of
the host's, unique among all services.
"""

from __future__ import annotations

from collections import deque

from ..base import Effect
from .cpg import Cpg, Room
from .messages import Kill, Mcast, Message, Process, Reload, Votes, Word
from .results import Answer, Changed, Code, Members
from .ring import Nodes, Ring, UnderWay
from .tracking import Track, Trackers
from .votequorum import Config, Votequorum


class StandIn:
    """Ring, process groups and quorum of one node. It hears what the ring tells (``results.Hearer``)."""

    ring_class: type[Ring] = Ring
    cpg_class: type[Cpg] = Cpg
    votequorum_class: type[Votequorum] = Votequorum
    trackers_class: type[Trackers] = Trackers

    def __init__(
        self,
        nodes: Nodes,
        config: Config,
        past: bytes,
        *,
        alone_after_ns: int = 0,
        linger_ns: int = 0,
        under_way: UnderWay | None = None,
        room: Room | None = None,
    ) -> None:
        """past, linger_ns, under_way: as ``Ring``. room: as ``Cpg``."""
        self.ring = self.ring_class(nodes, past, self, alone_after_ns=alone_after_ns, linger_ns=linger_ns, under_way=under_way)
        self.cpg = self.cpg_class(self.ring, room)
        self.votequorum = self.votequorum_class(nodes.node, config)
        self.trackers = self.trackers_class(self.votequorum, self.ring.id)
        self._setting: deque[tuple[int, Message]] = deque()
        """Handles that have set votes which have no place yet."""

    # ---- what the ring tells

    def on_members(self, change: Members) -> list[Effect]:
        return list(self.cpg.on_members(change))

    def on_delivered(self, node: int, message: Mcast) -> list[Effect]:
        return list(self.cpg.on_delivered(node, message))

    def on_no_room(self, process: Process) -> list[Effect]:
        return list(self.cpg.on_no_room(process))

    def on_changed(self, changed: Changed, changes: list[Effect]) -> list[Effect]:
        """Whoever loses quorum is to stop what it runs: that is told first."""
        groups = [*changes, *self.cpg.on_changed(changed)]
        had_quorum = self.votequorum.quorate
        self.votequorum.on_changed(changed)
        quorum = list(self.trackers.on_changed(changed))
        return [*quorum, *groups] if had_quorum and not self.votequorum.quorate else [*groups, *quorum]

    def on_votes(self, votes: Votes) -> list[Effect]:
        was_quorate = self.votequorum.quorate
        self.votequorum.on_votes(votes)
        told = list(self.trackers.on_votes(was_quorate, votes.number if votes.node == 0 else None))
        if self._setting and self._setting[0][1] == votes:
            return [Answer(self._setting.popleft()[0], Code.OK), *told]
        return told

    def word(self) -> Word:
        return self.votequorum.word()

    # ---- what programs ask of quorum and of the ring

    def track(self, handle: int, flags: Track) -> list[Effect]:
        return self.trackers.track(handle, flags)

    def set_expected(self, handle: int, expected: int) -> list[Effect]:
        """votequorum_setexpected."""
        return self._set(*self.votequorum.set_expected(handle, expected))

    def set_votes(self, handle: int, node: int, votes: int) -> list[Effect]:
        """votequorum_setvotes; node 0: this one."""
        return self._set(*self.votequorum.set_votes(handle, node, votes))

    def _set(self, answer: Answer, said: Message | None) -> list[Effect]:
        """Answered at the place of the change: then the program, and every other one, sees the new votes."""
        if said is None:
            return [answer]
        self._setting.append((answer.handle, said))
        return self.ring.submit(said)

    def kill(self, handle: int, node: int, reason: bytes) -> list[Effect]:
        """corosync_cfg_kill_node."""
        if node not in self.ring.table:
            return [Answer(handle, Code.NOT_EXIST)]
        return [Answer(handle, Code.OK), *self.ring.submit(Kill(node, reason))]

    def reload(self, handle: int) -> list[Effect]:
        """corosync_cfg_reload_config."""
        return [Answer(handle, Code.OK), *self.ring.submit(Reload())]
