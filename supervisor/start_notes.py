"""Tells a person, each time a supervisor starts, what to know before the job goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from supervisor.adapters.stores.journal import History
from supervisor.adapters.stores.lock import LOCK
from supervisor.adapters.stores.permissions import find_exposures
from supervisor.adapters.telling.runlog import RunLog
from supervisor.config.command_line import DEFAULT_RESTARTS, MODEL_DIR, RESTARTS
from supervisor.config.load import Job
from supervisor.config.plan import PhasePlan
from supervisor.core.changes import Change
from supervisor.engines.checkpoint_source import unmarked_copies
from supervisor.history.writer import writer
from supervisor.host.notice import Notice
from supervisor.model_dir_ownership import ModelDirError
from supervisor.preflight import hang_warnings
from supervisor.prepare import Prepared
from supervisor.protocol.committed import unmarked_warning

HOW_TO_KEEP_OUT = (
    "they can block the job, or make this user read and run their files: take their permissions "
    "away (chown, chmod go-w), or use another model_dir"
)


def tell_start(
    log: RunLog,
    prepared: Prepared,
    history: History,
    found: Sequence[Change],
    warnings: Sequence[Notice],
    *,
    once: bool,
) -> None:
    """Have `log` tell what a person should know of this start, after the line about the start
    itself.

    Raises:
        ModelDirError: the checkpoints cannot be listed.
    """
    for told in (*_bucket(prepared.job), *_chosen(prepared.job)):
        log.say_after_start(told)
    if exposures := find_exposures(prepared.job.model_dir, LOCK, user=os.geteuid()):
        text = f"others may change the job's files: {', '.join(exposures)}; {HOW_TO_KEEP_OUT}"
        log.say_after_start(
            Notice("files-exposed", text, place=", ".join(exposures)), level="warning"
        )
    for plan in prepared.plans:
        if copies := _unmarked(plan):
            others = f" (so do {', '.join(copies[1:])})" if copies[1:] else ""
            place = f"{plan.checkpoint_dir}/{copies[0]}"
            text = unmarked_warning(place) + others
            log.say_after_start(Notice("checkpoints-unmarked", text, place=place), level="warning")
        if plan.success_is_default:
            more = "" if once else ", but is not final: the command runs again, unless with --once"
            text = f"phase {plan.name!r} names no success: exit code 0 is taken for it{more}"
            log.say_after_start(Notice("success-by-exit-code", text, phase=plan.name))
    for told in hang_warnings(prepared):
        log.say_after_start(told)
    for told in (*_lost(history), *warnings):
        log.say_after_start(told, level="warning")
    if (before_us := history.past.version) not in ("", writer()):
        text = f"this is supervise {writer()}; the supervisor before was {before_us}"
        log.say_after_start(Notice("version-changed", text, version=writer(), before=before_us))
    for change in found:
        text = f"the config changed: {change}"
        before, after = change.sides
        told = Notice(
            "config-changed",
            text,
            changed=str(change),
            key=change.path,
            before=before,
            after=after,
        )
        log.say_after_start(told, level="warning")


def _bucket(job: Job) -> Iterator[Notice]:
    """Yields where the job and its local copy are, if the job is in a bucket."""
    if job.remote is not None:
        place, here = str(job.remote), str(job.model_dir)
        text = f"the job is in {place}; here, in {here}"
        yield Notice("job-place", text, place=place, directory=here)


def _chosen(job: Job) -> Iterator[Notice]:
    """Yields which values a job without a config has by default."""
    if not job.source.chosen:
        return
    place = str(job.shown_model_dir) if MODEL_DIR in job.source.chosen else None
    restarts = DEFAULT_RESTARTS if RESTARTS in job.source.chosen else None
    parts = []
    if place is not None:
        parts.append(
            f"the job is in {place}: the same command continues it, other arguments begin "
            "another job (--model-dir chooses)"
        )
    if restarts is not None:
        parts.append(
            f"{restarts} restarts in a row are allowed without a new checkpoint (--max-restarts "
            "chooses)"
        )
    text = f"no config is given: {'; '.join(parts)}"
    yield Notice("defaults-chosen", text, place=place, max_num_restarts=restarts)


def _lost(history: History) -> Iterator[Notice]:
    """Yields what happened to the journal since the last supervisor: a repair, a torn end."""
    if history.repaired:
        text = f"the journal was repaired: {history.repaired}"
        yield Notice("journal-repaired", text, detail=history.repaired)
    if history.torn_bytes:
        kept = history.torn_file
        yield Notice("journal-torn", history.torn_text, bytes=history.torn_bytes, kept=kept)


def _unmarked(plan: PhasePlan) -> tuple[str, ...]:
    """Returns the names of checkpoints that are newer than every committed one but have no commit
    marker, because they were copied without it.

    Raises:
        ModelDirError: the checkpoints cannot be listed.
    """
    try:
        return unmarked_copies(plan.checkpoint_dir)
    except OSError as error:
        text = f"{plan.checkpoint_dir} cannot be read: {error.strerror or error}"
        raise ModelDirError(text) from error
