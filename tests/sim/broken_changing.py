"""Changes of the configuration with a rule broken on purpose; ``test_changing.py`` says which check catches each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from zenjun.proto.changing import Changing, Effect, Stand, Tell
from zenjun.proto.gathering import Gathering
from zenjun.proto.openpdu import INSTANCE_MAX, Claim
from zenjun.proto.reconfiguring import Reconfiguring

from .changing import Parts


@dataclass(frozen=True)
class NoOldQuorum(Parts):
    """V3: opens under what is only proposed with a quorum of that alone."""

    def former(self, options: bytes | None) -> bytes | None:
        return None


@dataclass(frozen=True)
class NumberNotDurable(Parts):
    """V2, V3: what a station has marked or taken over is gone with the power."""

    def durable(self, stand: Stand) -> bool:
        return False


@dataclass(frozen=True)
class OpensByFile(Parts):
    """V5: a station that starts goes by its file, whatever it had taken over."""

    def stand(self, disk: Stand, file: Stand) -> Stand:
        return file


@dataclass(frozen=True)
class ReadyAllTheSame(Parts):
    """V1: who cannot write its mark says that it is ready."""

    def unmarked(self, changing: Changing) -> Tell | None:
        return None


class MarkBindsNobody(Changing):
    """V1: with a mark a station still opens under the former configuration."""

    @property
    def joint(self) -> bytes | None:
        return None

    @property
    def options(self) -> bytes:
        return self.stand.options


@dataclass(frozen=True)
class ForgetsWhatItGaveUp(Parts):
    """V4: that an attempt was given up is known only until the station restarts."""

    def stand(self, disk: Stand, file: Stand) -> Stand:
        return super().stand(disk, file)._replace(kept=0)


class JudgesAtOrdered(Reconfiguring):
    """V1, V2: what the order says counts before all members are known to have it."""

    def _has_reached(self, position: int) -> bool:
        return True


class GivesUpByAnyInstance(Changing):
    """V4: a mark is removed by an instance of the former configuration with a lower number, too."""

    def hear(self, now: int, claim: Claim, station: int = 0) -> list[Effect]:
        return super().hear(now, claim._replace(kept=claim.kept and INSTANCE_MAX), station)


class MarksAtOnce(Changing):
    """V3: who says a proposal has marked it, whoever else has said it."""

    def promise(self, instance: int) -> list[Effect]:
        return self.accept(instance)


class WaitsForAll(Gathering):
    """V7: a member that never says READY is waited for without end."""

    def look(self, now: int) -> set[int]:
        return set()


class GathersNobody(Gathering):
    """V7: programs send as soon as their station is in the instance."""

    def begin(self, now: int, members: Iterable[int]) -> None:
        pass


VARIANTS: Final[dict[str, Callable[[], Parts]]] = {
    "no_old_quorum": NoOldQuorum,
    "number_not_durable": NumberNotDurable,
    "opens_by_file": OpensByFile,
    "forgets_what_it_gave_up": ForgetsWhatItGaveUp,
    "judges_at_ordered": lambda: Parts(reconfiguring=JudgesAtOrdered),
    "gives_up_by_any_instance": lambda: Parts(changing=GivesUpByAnyInstance),
    "ready_all_the_same": ReadyAllTheSame,
    "marks_at_once": lambda: Parts(changing=MarksAtOnce),
    "waits_for_all": lambda: Parts(gathering=WaitsForAll),
    "gathers_nobody": lambda: Parts(gathering=GathersNobody),
    "mark_binds_nobody": lambda: Parts(changing=MarkBindsNobody),
}
