"""Finds out which devices exist and compute correctly, by asking a separate process.

The process runs `trainer.probe`. It is separate because a broken device may hang or kill the
process that uses it. It tries all devices at once. If that fails, another process tries them one by
one. If a process hangs on a device, it is killed after a time limit, and the next one leaves that
device out. If a process is killed from outside, or hangs before the first device, it says nothing
about the devices: another process is asked the same question.

On a TPU, parts of the host are tried instead, each in a process of its own (`host_parts`).

A probe process is no worker. The answer is given only after the process has ended, so that it holds
no device that a worker needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from supervisor.config.plan import PhasePlan
from supervisor.diagnosis.failure import WorkerExit
from supervisor.engines.host_port import Host, MainLoop
from supervisor.engines.probing import host_parts
from supervisor.engines.probing.host_parts import Part, PartResult
from supervisor.engines.probing.probe_process import ProbeProcess
from supervisor.engines.probing.units import ProbeAnswer, UnitLayout
from supervisor.ports import Clock
from supervisor.protocol import simulated
from supervisor.protocol.environment import HOST_TOPOLOGY, STALE_TOPOLOGY


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """Seconds after which a probe process that says nothing counts as hanging."""

    start: float = 90.0
    """Until its backend is up."""
    compile: float = 90.0
    """While it compiles its program. The machine may be loaded."""
    device: float = 20.0
    """While a device computes."""
    all: float = 420.0
    """For the whole look, silent or not. It is less than the core waits
    (`RestartPolicy.probe_timeout`)."""


@dataclass(slots=True)
class _Look:
    """One look at the devices."""

    plan: PhasePlan
    on_answer: Callable[[ProbeAnswer], None]
    layout: UnitLayout = field(default_factory=UnitLayout)
    broken: simulated.Broken = field(default_factory=simulated.Broken)
    first_parts: tuple[Part, ...] = ()
    """The parts to begin with, if the devices are tried by parts. `layout` is then that of the part
    in progress. Empty: they are not tried by parts."""
    results: dict[Part, PartResult] = field(default_factory=dict)
    all_units: tuple[str, ...] = ()
    """All units to probe, if they are tried by parts."""
    prober: ProbeProcess | None = None
    """The process that is asked now."""
    one_by_one: bool = False
    """Whether each device is tried alone, because trying all of them together failed."""
    hung: dict[int, str] = field(default_factory=dict)
    """The places of the devices on which an earlier process hung, each with the reason."""
    tries: int = 0
    """How many processes in a row were asked the same question and ended without an answer."""
    is_over: bool = False
    """True if the look ends with what is known: it has taken too long, or the cause is not in
    single chips."""


class DeviceProbe:
    """Probes the devices, one look at a time."""

    def __init__(
        self,
        reactor: MainLoop,
        clock: Clock,
        machine: Host,
        environ: Mapping[str, str],
        limits: ProbeLimits = ProbeLimits(),
    ) -> None:
        """`environ` is the environment that probe processes inherit."""
        self._reactor = reactor
        self._clock = clock
        self._machine = machine
        self._environ = {name: text for name, text in environ.items() if name not in STALE_TOPOLOGY}
        self._limits = limits
        self._waiting: ProbeProcess | None = None
        self._waits_for: str | None = None
        """The platform for which the waiting process was started."""
        self._look: _Look | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """The pid of the waiting process, if there is one. It holds no device and belongs to no
        attempt."""
        return (self._waiting.process.pid,) if self._waiting is not None else ()

    def prepare(self, plan: PhasePlan) -> None:
        """Start a process that waits for a question, so that a later look need not wait for its
        start. Does nothing if a process waits already.

        Raises:
            OSError: it cannot be started.
        """
        if self._waiting is None:
            self._waiting = self._start(plan)
            self._waits_for = plan.platform

    def start_look(
        self,
        plan: PhasePlan,
        units: tuple[str, ...] | None,
        on_answer: Callable[[ProbeAnswer], None],
    ) -> None:
        """Probe `units` (None: all that the config expects), and call `on_answer` once, perhaps
        before this returns. A look that is under way is cancelled, and never answered."""
        self.stop()
        look = self._look = _Look(plan, on_answer)
        self._reactor.call_later(self._limits.all, lambda: self._too_long(look))
        try:
            self._ask_first(look, units)
        except (OSError, ValueError) as error:
            self._answer(look, ProbeAnswer(problem=str(error)))

    def stop(self) -> None:
        """Cancel the look that is under way, if there is one. It is never answered."""
        if self._look is not None and self._look.prober is not None:
            self._look.prober.kill()
        self._look = None

    # --- asking ---------------------------------------------------------------------------------

    def _ask_first(self, look: _Look, units: tuple[str, ...] | None) -> None:
        if look.plan.platform == "cpu":
            look.broken = self._machine.broken_devices()
        look.layout = UnitLayout.of(look.plan, units, look.broken.lost)
        if look.layout.wanted is not None and not look.layout.present:
            self._answer(look, look.layout.answer(0, {}))
        elif look.layout.wanted and (look.plan.platform == "tpu" or look.broken.stuck):
            look.all_units = look.layout.wanted
            look.first_parts = host_parts.first_parts(look.plan.units, look.layout.present)
            self._ask_part(look)
        else:
            self._ask(look)

    def _ask_part(self, look: _Look) -> None:
        """Probe the next part; if none is left, answer."""
        part = None if look.is_over else host_parts.next_part(look.first_parts, look.results)
        if part is not None:
            look.layout = UnitLayout.of(look.plan, part, look.broken.lost)
            self._ask(look)
        elif not any(tried.problem is None or tried.found for tried in look.results.values()):
            first = next(iter(look.results.values()))
            self._answer(look, ProbeAnswer(problem=first.problem))
        else:
            healthy = tuple(
                unit for unit in look.all_units if unit in host_parts.healthy_units(look.results)
            )
            self._answer(
                look, ProbeAnswer(healthy, host_parts.faulty_units(look.all_units, look.results))
            )

    def _ask(self, look: _Look) -> None:
        """Send the question to the waiting process, or to a new one."""
        environment = look.layout.environment(look.plan, self._environ)
        question = {
            "without": HOST_TOPOLOGY if environment else (),
            "environment": environment,
            "one_by_one": look.one_by_one,
            "skip": list(look.hung),
            "wrong": look.layout.broken_places(look.broken.wrong),
            "stuck": list(look.layout.broken_ids(look.broken.stuck)),
        }
        waiting, self._waiting = self._waiting, None
        if waiting is not None and self._waits_for != look.plan.platform:
            waiting.kill()
            waiting = None
        prober = waiting or self._start(look.plan)
        if not prober.ask(question) and prober is waiting:
            prober = self._start(look.plan)
            prober.ask(question)
        look.prober = prober
        self._reactor.watch(prober.descriptor, lambda: self._heard(look, prober))
        prober.asked_at = self._clock.now()
        self._expect(look, prober, self._patience(look, prober))

    def _start(self, plan: PhasePlan) -> ProbeProcess:
        platform = {name: text for name, text in plan.env.items() if name == "JAX_PLATFORMS"}
        prober = ProbeProcess(self._machine, {**self._environ, **platform})
        self._reactor.watch(prober.process.pidfd, lambda: self._ended(prober))
        return prober

    # --- hearing --------------------------------------------------------------------------------

    def _heard(self, look: _Look, prober: ProbeProcess) -> None:
        if prober.read():
            if prober.is_up and prober.startup_seconds is None:
                prober.startup_seconds = self._clock.now() - prober.asked_at
            self._expect(look, prober, self._patience(look, prober))
        else:
            self._reactor.forget(prober.descriptor)

    def _patience(self, look: _Look, prober: ProbeProcess) -> float:
        """Returns how many seconds the process may be silent now."""
        if not prober.is_up or prober.last_message is None:
            return host_parts.patience(look.results, self._limits.start)
        return self._limits.device if prober.last_message["compiled"] else self._limits.compile

    def _expect(self, look: _Look, prober: ProbeProcess, seconds: float) -> None:
        """Kill the process if it sends no message within so many seconds."""
        received = prober.messages_received

        def silent() -> None:
            if (
                self._look is look
                and look.prober is prober
                and prober.messages_received == received
            ):
                prober.hung = f"no answer within {seconds:g} s"
                prober.kill()

        self._reactor.call_later(seconds, silent)

    def _too_long(self, look: _Look) -> None:
        if self._look is look and look.prober is not None:
            look.is_over = True
            look.prober.hung = f"not done within {self._limits.all:g} s"
            look.prober.kill()

    def _ended(self, prober: ProbeProcess) -> None:
        """Handle the end of a process: one that was asked, that waits, or that is not needed any
        more."""
        ended = prober.process.poll(rank=0)
        if ended is None:
            return
        self._reactor.forget(prober.process.pidfd)
        self._reactor.forget(prober.descriptor)
        prober.read()
        look = self._look
        if look is not None and look.prober is prober:
            self._conclude(look, prober, ended)
        elif prober is self._waiting:
            self._waiting = None
        prober.close()

    def _conclude(self, look: _Look, prober: ProbeProcess, ended: WorkerExit) -> None:
        """Answer, or ask another process about the devices that this one did not get to."""
        known = prober.last_message if prober.is_up else None
        most = prober.most_tries(ended)
        look.tries += 1
        is_done = known is not None and known["at"] is None
        is_part = bool(look.first_parts) and prober.hung is not None  # its halves are tried
        if look.tries < most and not (is_done or is_part or look.is_over):
            self._ask_again(look, same=True)
            return
        look.tries, tries = 0, look.tries
        if look.first_parts:
            self._conclude_part(look, prober, ended)
        elif known is not None and is_done:
            bad = {int(place): reason for place, reason in known["bad"].items()}
            self._answer(look, look.layout.answer(known["found"], bad | look.hung))
        elif known is not None and not look.is_over and not look.one_by_one:
            look.one_by_one = True
            self._ask_again(look)
        elif prober.hung is not None and prober.at_device is not None and not look.is_over:
            look.hung[prober.at_device] = prober.hung
            self._ask_again(look)
        else:
            self._answer(look, ProbeAnswer(problem=prober.problem(ended, tries)))

    def _conclude_part(self, look: _Look, prober: ProbeProcess, ended: WorkerExit) -> None:
        """Keep the result for a part, and go on with the next part."""
        part, known = look.layout.present, prober.last_message
        if not prober.is_up or known is None or known["at"] is not None:
            look.results[part] = PartResult(
                prober.problem(ended), prober.is_up, prober.startup_seconds
            )
        else:
            bad = {int(place): reason for place, reason in known["bad"].items()}
            answer = look.layout.answer(known["found"], bad)
            first = answer.bad[0] if answer.bad else None
            problem, found = (first.reason, first.found) if first else (answer.problem, False)
            look.results[part] = PartResult(problem, found, prober.startup_seconds)
        there_is_none = look.plan.platform == "tpu" and not self._machine.has_chips()
        if not prober.has_begun or (not prober.is_up and there_is_none):
            look.is_over = True  # the cause is not in single chips
        self._ask_again(look)

    def _ask_again(self, look: _Look, *, same: bool = False) -> None:
        try:
            if look.first_parts and not same:
                self._ask_part(look)
            else:
                self._ask(look)
        except (OSError, ValueError) as error:
            self._answer(look, ProbeAnswer(problem=str(error)))

    def _answer(self, look: _Look, answer: ProbeAnswer) -> None:
        if self._look is look:
            self._look = None
            look.on_answer(answer)
