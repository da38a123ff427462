"""Finds out from what an agent says of itself whether its host can be used, and tells people.

A host cannot be used with another version of supervise or another config, without the model_dir of
the job, or beside another agent on its machine. `fleet` knows it from then on.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.engines.fleet.fleet import HostState
from supervisor.engines.fleet.fleet_means import Means
from supervisor.engines.fleet.fleet_messages import Hello, MessageError
from supervisor.host.notice import Notice

_SETTLE = 10.0
"""Seconds for a shared file system to show all hosts a file that was just written."""


class HostProblems:
    """Judges hosts, and knows what people were told of them."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._told: set[tuple[str, str]] = set()

    def greet(self, agent: str, hello: Hello) -> None:
        """An agent has introduced itself."""
        means, lead = self._means, self._means.lead
        if hello.epoch != lead.epoch:
            return
        problem, remedy, wait = hello.problem, "", 0.0
        if hello.version != lead.version:
            problem = f"it has supervise {hello.version}, and this host {lead.version}"
            remedy = self._of_another_version(agent)
        elif lead.token is not None and hello.token != lead.token:
            how = "is missing" if hello.token is None else "differs"
            problem = f"it does not see this model_dir ({lead.owner_file} {how} there)"
            remedy = "give trainer.init.model_dir a folder that all hosts share at the same path"
            wait = _SETTLE
        elif hello.config and lead.config and hello.config != lead.config:
            problem = "`supervise gang` was started there with another config than on this host"
            remedy = "give all hosts the same config file and the same --set options"
        means.fleet.introduced(agent, hello, means.clock.now(), problem, remedy, wait)
        host = means.fleet.hosts[agent]
        if host.problem:
            self._note(agent, host.problem, host.remedy, host.sure_at)

    def not_understood(self, agent: str, error: MessageError) -> None:
        """An agent has sent what is no message of our version."""
        problem = f"its messages are not understood: {error}"
        self._note(agent, problem, self._of_another_version(agent), self._means.clock.now())

    def obeys_another(self, agent: str, epoch: int) -> None:
        """An agent obeys the supervisor with this higher epoch."""
        self._note(agent, f"it obeys another supervisor (epoch {epoch})")

    def tell(self, host: HostState) -> None:
        """Tell people once why a host is not used."""
        self._tell(host.node.id, host.problem, host.remedy)

    def tell_passed_over(self) -> None:
        """Tell people once of the hosts that would be used if they stayed."""
        for node in self._means.fleet.passed_over(self._means.clock.now()):
            self._tell(node.id, node.draining)

    def _tell(self, node: str, problem: str, remedy: str = "") -> None:
        if (node, problem) not in self._told:
            self._told.add((node, problem))
            text = f"host {node} is not used: {problem}"
            text += f"; {remedy}" if remedy else ""
            self._means.notice(Notice("host-unusable", text, unit=node, reason=problem))

    def _of_another_version(self, agent: str) -> str:
        """Returns what a person does about an agent of another version. One that an earlier leader
        has placed is replaced instead: what is installed on its host may have changed since."""
        if not self._means.is_ours(agent):
            self._means.transport.remove(agent)
            return ""
        return f"install supervise {self._means.lead.version} on each host"

    def _note(
        self, agent: str, problem: str, remedy: str = "", sure_at: float | None = None
    ) -> None:
        hosts = self._means.fleet.hosts
        if (host := hosts.get(agent)) is None:
            return
        sure_at = sure_at if remedy else None
        hosts[agent] = replace(host, problem=problem, remedy=remedy, sure_at=sure_at)
        self.tell(hosts[agent])
        self._means.place_agents()
