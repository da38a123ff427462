"""Has the hosts of a failed attempt probe their devices, where the failure points at devices.

No I/O and no clock: see `fleet`. The leader repeats the command at each question of an agent that
has not answered. A host counts as bad only if its probe says so: one that does not answer in time,
or finds nothing out, is judged by its agent, as all hosts are.

On TPU no host is probed: its chips are a part of a slice, and libtpu would wait for the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from supervisor.config.plan import PhasePlan
from supervisor.core.events import BadUnit
from supervisor.engines.fleet.fleet_messages import Probed, ProbeHost
from supervisor.engines.fleet.launch_text import text_of
from supervisor.engines.launch import Launch, Part

PATIENCE = 430.0
"""Seconds to wait for the answers. An agent answers sooner (`ProbeLimits.all`), and the core waits
longer (`RestartPolicy.probe_timeout`)."""


@dataclass(slots=True)
class HostProbes:
    """The probes of the hosts of one attempt, by their agents."""

    until: float
    """When no answer is waited for any more."""
    commands: Mapping[str, ProbeHost]
    nodes: Mapping[str, str]
    answers: dict[str, Probed] = field(default_factory=dict)

    @classmethod
    def of(
        cls, launch: Launch, number: int, epoch: int, nodes: Mapping[str, str], at: float
    ) -> HostProbes:
        """Returns the probes of these `nodes`, by their agents, which begin at the time `at`.

        `launch` is the attempt that failed, and `number` that of the core's probe.
        """
        commands = {
            agent: ProbeHost(epoch, number, text_of(_on(launch, node), Part((0,), "")))
            for agent, node in (nodes.items() if launch.plan.platform != "tpu" else ())
        }
        return cls(at + PATIENCE, commands, nodes)

    def note(self, agent: str, answer: Probed) -> None:
        """An agent has answered."""
        command = self.commands.get(agent)
        if command is not None and command.number == answer.number:
            self.answers[agent] = answer

    def wanted(self, agent: str) -> ProbeHost | None:
        """Returns what to tell an agent; None: nothing, or it has answered."""
        return None if agent in self.answers else self.commands.get(agent)

    def waits(self, ready: Collection[str], at: float) -> bool:
        """Whether an answer is to come of one of these `ready` agents."""
        left = self.commands.keys() - self.answers.keys()
        return at < self.until and not left.isdisjoint(ready)

    @property
    def bad(self) -> tuple[BadUnit, ...]:
        """The nodes with bad devices."""
        return tuple(
            replace(answer.bad[0], unit=self.nodes[agent])
            for agent, answer in self.answers.items()
            if answer.bad
        )

    @property
    def problem(self) -> str | None:
        """Why nothing was found out on a host, if no host is bad; None: all hosts answered well."""
        if self.bad:
            return None
        problems = (
            f"host {self.nodes[agent]}: {answer.problem}"
            for agent, answer in self.answers.items()
            if answer.problem is not None
        )
        return next(problems, None)


def _on(launch: Launch, node: str) -> Launch:
    """Returns the attempt as one on the devices of one host alone. Simulated devices are known by
    the name of their host, as every host numbers its devices from 0."""
    plan: PhasePlan = launch.plan
    number = plan.devices_per_worker
    units = (node,) if plan.platform == "cpu" else tuple(map(str, range(number)))
    plan = replace(
        plan,
        workers=1,
        num_hosts=0,
        num_devices=number or None,
        rungs=(number,) if number else (),
        units=units if number else (),
    )
    return replace(launch, plan=plan, num_devices=None, units=())
