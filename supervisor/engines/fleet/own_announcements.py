"""What an agent's machine announces about itself: that it will be taken away, or maintained.

The leader asks the sources of its own machine. It cannot ask the metadata server of another one, so
each agent does that, and tells the leader.
"""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.platforms.preemption import PreemptionWatch
from supervisor.core.events import Noticed, StopRequested, StopSource
from supervisor.engines.preemption_sources import machine_sources
from supervisor.host.notice import Notice
from supervisor.ports import Clock


class OwnAnnouncements:
    """Posts what the sources of this machine announce, as the supervisor of one host does."""

    def __init__(self, reactor: Reactor, clock: Clock, environ: Mapping[str, str]) -> None:
        """See `machine_sources` for `environ`."""
        self._reactor = reactor
        self._clock = clock
        self._environ = environ
        self._watch: PreemptionWatch | None = None

    def ask(self, source: str) -> None:
        """Ask the sources of this machine, from now on those that `source` of the config means.
        What is true already is announced again."""
        if self._watch is not None:
            self._watch.close()
        sources = machine_sources(source, self._environ)
        self._watch = PreemptionWatch(sources, self._ends, self._maintained, self._notice, str)

    def _ends(self, text: str, notice: float | None) -> None:
        stop = StopRequested(self._clock.now(), StopSource.PREEMPTION, text, notice=notice)
        self._reactor.post(stop)

    def _maintained(self, text: str) -> None:
        self._notice(Notice("maintenance-announced", text, detail=text))

    def _notice(self, notice: Notice) -> None:
        self._reactor.post(Noticed(self._clock.now(), notice))
