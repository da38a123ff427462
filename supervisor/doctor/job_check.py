"""Checks of a job: what `supervise run` would refuse or warn of, and the standby of one that
runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator

from supervisor.adapters.kernel.inspection import describe_process
from supervisor.adapters.kernel.process_facts import command_line, variable_of
from supervisor.config.problems import ConfigError
from supervisor.doctor.examination import Finding, Level, note, ok, wrong
from supervisor.host import tree
from supervisor.host.identity import Identity
from supervisor.preflight import hang_warnings, problems_beside_model_dir, start_warnings
from supervisor.prepare import Prepared
from supervisor.protocol.environment import STANDBY as MARK
from supervisor.remote import cache_trust

CONFIG, STANDBY = "config", "standby"
_HURTS = frozenset({"tpu-lock-unusable", "jax-missing"})
"""The warnings, by event or code, without whose remedy the program cannot start."""


def config(prepared: Prepared) -> Iterator[Finding]:
    """Yields what `supervise run` would refuse or warn of before it starts anything, but for the
    place of the job."""
    redact = prepared.redactor(os.environ).text
    problems = [*problems_beside_model_dir(prepared)]
    try:
        cache_trust(prepared.job)
    except ConfigError as error:
        problems += error.problems
    found = [wrong(CONFIG, redact(str(problem))) for problem in problems]
    for each in (*start_warnings(prepared), *hang_warnings(prepared)):
        kinds = {each.event, each.keys.get("code")}
        if "driver-missing" not in kinds:  # the check of the devices says it
            found.append((wrong if _HURTS & kinds else note)(CONFIG, redact(each)))
    yield from found
    if not any(each.level is Level.WRONG for each in found):
        yield ok(CONFIG, f"{prepared.job.source.name} is valid, and its program can be started")


def standby(
    owner: Identity, workers: Collection[int], redact: Callable[[str], str]
) -> Iterator[Finding]:
    """Yields the standbys of the supervisor `owner`, which runs here: processes that were started
    as standbys, and are none of its `workers`."""
    if not _may_look(owner.pid):
        text = "the standby is not seen: another user runs the job"
        yield note(STANDBY, text, "run supervise doctor as that user")
        return
    marked = {
        pid: (kind, seen.parent)
        for pid, seen in tree.descendants(owner.pid, frozenset())
        if (kind := variable_of(pid, MARK)) is not None
    }
    found = 0
    for pid, (kind, parent) in marked.items():
        if pid in workers or parent in marked:  # a fork has the variables of its parent
            continue
        found += 1
        state = describe_process(pid)
        text = f"pid {pid} ({command_line(pid, redact)}) is a standby of kind"
        yield ok(STANDBY, f"{text} {kind.rpartition(':')[2]!r}, state {state}")
    if not found:
        yield note(
            STANDBY,
            "no standby is seen: the next attempt starts cold, which takes longer",
            "the events standby-* in run.log say why; one comes some time after an attempt began",
        )


def _may_look(pid: int) -> bool:
    try:
        os.close(os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
