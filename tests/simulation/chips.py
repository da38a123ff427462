"""The TPU chips of the simulated machine: which processes have one open, besides living workers."""

from __future__ import annotations

from supervisor.adapters.platforms.accelerators import Holder
from supervisor.host.notice import Notice
from tests.simulation.chance import Chance
from tests.simulation.group import Group

_FIRST_PID = 5_000_000
"""No process has these pids: they are above all that a kernel assigns (PID_MAX_LIMIT is
4194304)."""
_CHIP = ("/dev/vfio/0",)


class Chips:
    """Chips that stay open for a while after a worker's death; another tool may have one open,
    too."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._stream = chance.stream("chips")
        self._remnants: dict[int, float] = {}
        """The time until which each of these pids has a chip open."""
        self._number = 0
        self._has_tool = self._stream.happens(0.5)

    def worker_died(self, group: Group) -> None:
        """Note that no process of the group lives any more; what it has left may keep the chip
        open."""
        if self._chance.hazards.busy_chips and self._stream.happens(0.5):
            self._number += 1
            seconds = self._stream.rng.choice((5.0, 45.0, 45.0, 200.0)) * self._stream.rng.random()
            self._remnants[_FIRST_PID + self._number] = self._chance.clock.time + seconds
            self._chance.tell(f"attempt {group.attempt} leaves a chip open for {seconds:.1f} s")

    @property
    def remnants(self) -> list[int]:
        """The pids of what earlier attempts have left and that have a chip open."""
        now = self._chance.clock.time
        return [pid for pid, until in self._remnants.items() if until > now]

    @property
    def holders(self) -> list[Holder]:
        """See `Resources.chip_holders`."""
        tool = [_FIRST_PID] if self._has_tool and self._chance.hazards.busy_chips else []
        return [Holder(pid, 0, _CHIP) for pid in [*tool, *self.remnants]]

    @property
    def in_the_way(self) -> list[Notice]:
        """See `Resources.describe_device_holders`: libtpu's lock file, which only workers that died
        had locked."""
        if not self.remnants:
            return []
        text = "/tmp/libtpu_lockfile is locked"
        return [Notice("device-in-use", text, reason=text)]
