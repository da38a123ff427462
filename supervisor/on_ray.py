"""Makes the engine of a job whose hosts are in a Ray cluster. Only such a job imports it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from supervisor.adapters.stores.compile_cache import CompileCache
from supervisor.adapters.stores.requests import is_stop_asked
from supervisor.config.many_hosts import hosts_per_slice
from supervisor.config.schema import Init
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
from supervisor.engines.host_port import EventLoop
from supervisor.engines.this_host import ThisHost
from supervisor.history.writer import writer
from supervisor.host import gang_config
from supervisor.host.identity import Identity
from supervisor.host.notice import Tell
from supervisor.open_model_dir import OpenModelDir
from supervisor.ports import Clock
from supervisor.protocol.location import Uri
from supervisor.supervision import Supervision

_PATIENCE = 60.0
"""Seconds to wait for the cluster to answer."""
_RESOURCES = {"gpu": "GPU", "tpu": "TPU"}
"""What Ray calls the accelerators of a host, by the platform of the job."""
_GOODBYE = 3.0
"""Seconds to wait for the end of all agents."""
_GLANCE = 0.05
"""Seconds between two looks at that."""


def engine_on_ray(
    supervision: Supervision,
    opened: OpenModelDir,
    host: ThisHost,
    cache: CompileCache,
    tell_now: Tell,
) -> Engine:
    """Returns the engine, once the cluster answers, or once the job is asked to stop. When the run
    ends, its agents are ended.

    Only hosts with accelerators of the job's platform are used; of any other, all of the cluster.
    `tell_now` tells people before the main loop runs.

    Raises:
        ClusterRefusedError: the cluster can never be used as it is.
        ClusterUnreachableError: it does not answer.
    """
    reactor, clock, stack = supervision.reactor, supervision.clock, supervision.stack
    init = supervision.prepared.job.phases[0].init
    hosts = init.hosts
    assert hosts is not None
    leadership = _leadership(init, opened, clock)  # it takes seconds to join the cluster
    transport = _joined(supervision, opened, hosts.address, tell_now)
    engine = FleetEngine(
        transport,
        reactor,
        clock,
        host,
        os.environ,
        cache,
        leadership,
        hosts.count + hosts.spares,
        opened.ownership.check,
        supervision.redactor.text,
        hosts_per_slice(init.devices),
        wait_for_capacity=init.autorestart.wait_for_capacity,
    )
    stack.callback(_end_agents, engine, reactor, clock)
    return engine


def _leadership(init: Init, opened: OpenModelDir, clock: Clock) -> Leadership:
    """Returns what agents must agree with from now on: that the owner of model_dir leads."""
    own, owner, hosts = opened.ownership, opened.ownership.owner, init.hosts
    assert hosts is not None
    comparable = owner if owner is not None and Uri.parse(owner.file) is None else None
    return Leadership(
        own.epoch,
        writer(),
        hosts.lost_after,
        f"{opened.job}-{own.epoch}",
        comparable.file if comparable is not None else "",
        comparable.token if comparable is not None else None,
        opened.history.longest_lost_after,
        init.autorestart.preemption.source,
        hosts.address,
        os.environ.get(gang_config.VARIABLE, ""),
        clock.now() - own.quiet,
    )


def _joined(
    supervision: Supervision, opened: OpenModelDir, address: str, tell_now: Tell
) -> RayTransport:
    """Returns the transport of the cluster at `address` once it answers, or once a person has asked
    for the job's end. Raises what `engine_on_ray` raises."""
    prepared, reactor = supervision.prepared, supervision.reactor
    resource = _RESOURCES.get(prepared.plans[0].platform or "", "")
    epoch = opened.ownership.epoch
    cluster = Cluster(address, f"supervise-{opened.job}", epoch, str(Path.cwd()), resource)
    transport = RayTransport(cluster, reactor, supervision.notice)
    supervision.stack.callback(transport.close)
    is_asked = partial(is_stop_asked, prepared.job.model_dir, Identity.of_this_process())
    transport.join(_PATIENCE, tell_now, lambda: reactor.stop_requests > 0 or is_asked())
    return transport


def _end_agents(engine: FleetEngine, reactor: EventLoop, clock: Clock) -> None:
    """End the agents, and wait for a moment until they have ended. One that does not hear of it
    ends by itself, as no leader answers it."""
    engine.end_agents()
    until = clock.now() + _GOODBYE
    while engine.agents and clock.now() < until:
        reactor.wait(min(until, clock.now() + _GLANCE))  # nothing is posted when one has ended
