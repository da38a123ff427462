"""Makes the engine of a job whose hosts are in a Ray cluster. Only such a job imports it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from supervisor.config.many_hosts import hosts_per_slice
from supervisor.config.schema import Init
from supervisor.core.events import Noticed
from supervisor.engines.engine import Engine
from supervisor.engines.fleet.fleet_engine import FleetEngine
from supervisor.engines.fleet.fleet_means import Leadership
from supervisor.engines.fleet.helper_messages import Cluster
from supervisor.engines.fleet.ray_transport import (
    ClusterRefusedError as ClusterRefusedError,
)
from supervisor.engines.fleet.ray_transport import (
    ClusterUnreachableError as ClusterUnreachableError,
)
from supervisor.engines.fleet.ray_transport import RayTransport
from supervisor.engines.host_port import Compilations, EventLoop, Host
from supervisor.history.writer import writer
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Clock
from supervisor.protocol.environment import Owner
from supervisor.protocol.location import Uri

_PATIENCE = 60.0
"""Seconds to wait for the cluster to answer."""
_RESOURCES = {"gpu": "GPU", "tpu": "TPU"}
"""What Ray calls the accelerators of a host, by the platform of the job."""
_GOODBYE = 3.0
"""Seconds to wait for the end of all agents."""


def lost_after_in(config: Sequence[Mapping[str, Any]] | None) -> float:
    """Returns `init.hosts.lost_after` of a config as the journal has it; 0: it has none."""
    hosts = config[0]["trainer"]["init"].get("hosts") if config else None
    found = hosts.get("lost_after") if isinstance(hosts, Mapping) else None
    return float(found) if isinstance(found, int | float) else 0.0


def engine_on_ray(
    init: Init,
    platform: str | None,
    job: str,
    epoch: int,
    owner: Owner | None,
    check: Callable[[], None],
    reactor: EventLoop,
    clock: Clock,
    machine: Host,
    cache: Compilations,
    redact: Callable[[str], str],
    before: Sequence[Mapping[str, Any]] | None,
    is_stop_asked: Callable[[], bool],
    tell_now: Tell,
    stack: ExitStack,
) -> Engine:
    """Returns the engine, once the cluster answers, or once the job is asked to stop. When `stack`
    ends, its agents are ended.

    Only hosts with accelerators of the `platform` are used; of any other, all of the cluster.
    `epoch` and `owner` are those of model_dir's lease, and `check` raises once it is not ours.
    `before` is the config that the job last ran with, `is_stop_asked` tells whether a person has
    asked for the job's end in model_dir, and `tell_now` tells people before the main loop runs.

    Raises:
        ClusterRefusedError: the cluster can never be used as it is.
        ClusterUnreachableError: it does not answer.
    """

    def notice(told: Notice) -> None:
        reactor.post(Noticed(clock.now(), told))

    hosts = init.hosts
    assert hosts is not None
    resource = _RESOURCES.get(platform or "", "")
    cluster = Cluster(hosts.address, f"supervise-{job}", epoch, str(Path.cwd()), resource)
    transport = RayTransport(cluster, reactor, notice)
    stack.callback(transport.close)
    transport.join(_PATIENCE, tell_now, lambda: reactor.stop_requests > 0 or is_stop_asked())
    comparable = owner if owner is not None and Uri.parse(owner.file) is None else None
    leadership = Leadership(
        epoch,
        writer(),
        hosts.lost_after,
        f"{job}-{epoch}",
        comparable.file if comparable is not None else "",
        comparable.token if comparable is not None else None,
        lost_after_in(before),
        init.autorestart.preemption.source,
        hosts.address,
    )
    engine = FleetEngine(
        transport,
        reactor,
        clock,
        machine,
        os.environ,
        cache,
        leadership,
        hosts.count + hosts.spares,
        check,
        redact,
        hosts_per_slice(init.devices),
    )
    stack.callback(_end_agents, engine, reactor, clock)
    return engine


def _end_agents(engine: FleetEngine, reactor: EventLoop, clock: Clock) -> None:
    """End the agents, and wait for a moment until they have ended. One that does not hear of it
    ends by itself, as no leader answers it."""
    engine.end_agents()
    until = clock.now() + _GOODBYE
    while engine.agents and clock.now() < until:
        reactor.wait(until)
