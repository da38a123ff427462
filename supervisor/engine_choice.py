"""Chooses the engine of a job by its config, and makes it. No other module names an
engine; `on_ray` makes the second one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from supervisor.adapters.stores.compile_cache import CompileCache
from supervisor.adapters.telling.runlog import RunLog
from supervisor.config.problems import ConfigError
from supervisor.engines.engine import Engine
from supervisor.engines.local import LocalEngine
from supervisor.engines.probing.device_probe import DeviceProbe
from supervisor.engines.this_host import ThisHost
from supervisor.host.notice import Notice, Tell
from supervisor.observers import Display
from supervisor.open_model_dir import OpenModelDir
from supervisor.ports import Clock
from supervisor.supervision import Supervision


class NoClusterError(Exception):
    """The cluster that has the hosts of the job does not answer."""


def engine_of(
    supervision: Supervision,
    opened: OpenModelDir,
    host: ThisHost,
    display: Display,
    cache: CompileCache,
    helper_environ: Mapping[str, str],
    log: RunLog,
) -> Engine:
    """Returns the engine of the job, which ends with the run.

    Probes have the environment `helper_environ`.

    Raises:
        ConfigError: the cluster of the hosts can never be used as it is.
        NoClusterError: it does not answer.
    """
    job, reactor, clock = supervision.prepared.job, supervision.reactor, supervision.clock
    tell_now = partial(log.say, level="warning")  # the main loop does not run yet
    if job.phases[0].init.hosts is None:
        probe = DeviceProbe(reactor, clock, host, helper_environ)
        redact, known = supervision.redactor.text, frozenset(opened.history.past.stepped)
        until = _may_live_on_hosts_until(opened, clock, tell_now)
        return LocalEngine(
            *(reactor, clock, host, os.environ, display.mirror, cache, probe, redact, known),
            elsewhere_until=until,
        )
    from supervisor import on_ray  # a job on one machine needs none of it

    try:
        return on_ray.engine_on_ray(supervision, opened, host, cache, tell_now)
    except on_ray.ClusterRefusedError as error:
        raise ConfigError([job.problem(0, ("init", "hosts"), str(error))]) from error
    except on_ray.ClusterUnreachableError as error:
        told = (
            "start it (on one host: ray start --head --port=6379; on each other one: ray start "
            "--address=HOST:6379), or correct trainer.init.hosts.address, then run the same command"
        )
        raise NoClusterError(f"{error}; {told}: nothing was started") from error


def _may_live_on_hosts_until(opened: OpenModelDir, clock: Clock, tell_now: Tell) -> float:
    """Returns until when an attempt may live on the hosts that the config had earlier; 0: there is
    none. The agents there kill it by then: see `engines.fleet.fleet`."""
    lost_after = opened.history.longest_lost_after
    if opened.history.state.group is None or not lost_after:
        return 0.0
    from supervisor.engines.fleet.fleet import MARGIN  # a job on one machine needs none of it

    seconds = lost_after + MARGIN - opened.ownership.quiet
    if seconds <= 0:
        return 0.0
    text = (
        "the last attempt may have run on several hosts (trainer.init.hosts), which this config "
        f"does not have, and may live there for {seconds:g} s more: nothing starts here before that"
    )
    tell_now(Notice("hosts-left", text, seconds=seconds))
    return clock.now() + seconds
