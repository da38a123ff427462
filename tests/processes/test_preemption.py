"""A preemption is announced: the job saves at once and leaves, free of charge."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.platforms.allocation_end import AllocationEnd
from supervisor.adapters.platforms.gce_metadata import GceEvent, GceMaintenance, is_over
from supervisor.adapters.platforms.preemption import AnnouncementFile
from supervisor.cli.status import show_status
from supervisor.config.schema import Preemption
from supervisor.engines.preemption_sources import preemption_sources
from supervisor.host.notice import Notice
from tests.processes.metadata_server import MetadataServer
from tests.running import Result, Start, command_config, shared_guard

Supervise = Callable[..., Result]
PREEMPTED = "says instance/preempted is TRUE"
TERMINATE = "TERMINATE_ON_HOST_MAINTENANCE"


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    with MetadataServer().serving() as server:
        yield server


def saving(model_dir: Path, **restart: Any) -> dict[str, Any]:
    """A job whose trainer waits for SIGTERM, and then saves step 300."""
    toy = ("save-on-sigterm", "--once")
    return command_config(model_dir, *toy, restart=restart, success={"step": 500})


def assert_drained(result: Result, announced: str) -> None:
    assert result.code == 75, result.log
    assert announced in result.event("stop-requested", code="PREEMPTION")["detail"]
    assert result.has_event("workers-told-to-stop", reason="a preemption is announced")
    assert result.has_event("notice-used", saved=True, step=300)
    assert result.attempts == 1
    assert result.summary["attempts"][0]["status"] == "DRAINED"
    assert result.summary["highest_committed_step"] == 300
    assert result.summary["preemptions_used"] == result.summary["restarts_used"] == 0


@pytest.mark.parametrize(
    ("key", "value"), [("preempted", "TRUE"), ("maintenance-event", TERMINATE)]
)
def test_the_metadata_server_announces(
    start: Start, model_dir: Path, metadata: MetadataServer, key: str, value: str
) -> None:
    metadata.failures = 2
    running = start(saving(model_dir), env={"GCE_METADATA_HOST": metadata.host})
    running.wait_for("ready to save")
    metadata.wait_for_waiting(key)
    metadata.set(key, value)
    said = f"the metadata server at {metadata.host} says"
    assert_drained(running.result(), f"{said} instance/{key} is {value}")
    assert len(metadata.requests) <= 8, "it is asked politely"


def test_a_live_migration_is_told_and_the_job_stays(
    start: Start, model_dir: Path, metadata: MetadataServer
) -> None:
    running = start(saving(model_dir), env={"GCE_METADATA_HOST": metadata.host})
    running.wait_for("ready to save")
    metadata.wait_for_waiting("maintenance-event")
    metadata.set("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
    told = running.wait_for_event("maintenance-announced")
    assert "instance/maintenance-event is MIGRATE_ON_HOST_MAINTENANCE" in told["text"]
    metadata.set("maintenance-event", "NONE")
    metadata.wait_for_waiting("maintenance-event")
    metadata.set("preempted", "TRUE")
    assert_drained(running.result(), PREEMPTED)


WINDOW = {
    "can_reschedule": "false",
    "latest_window_start_time": "2126-12-01T19:00:01Z",
    "maintenance_status": "PENDING",
    "type": "UNSCHEDULED",
    "window_end_time": "2126-12-01T21:00:01Z",
    "window_start_time": "2126-12-01T19:00:01Z",
}
"""As in Google's page on monitoring host maintenance."""
ONGOING = WINDOW | {"maintenance_status": "ONGOING"}
POLICY = "scheduling/on-host-maintenance"
WINDOW_END = datetime(2126, 12, 1, 21, 0, 1, tzinfo=UTC).timestamp()
BEFORE = WINDOW_END - 86400
TOLD = "says that maintenance of this host (UNSCHEDULED) is {}, window 2126-12-01T19:00:01Z to "


def test_maintenance_is_told_with_its_window_and_drains_once_it_is_ongoing(
    start: Start, model_dir: Path, metadata: MetadataServer, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata.set("upcoming-maintenance", json.dumps(WINDOW))
    running = start(saving(model_dir), env={"GCE_METADATA_HOST": metadata.host})
    running.wait_for("ready to save")
    assert TOLD.format("PENDING") in running.wait_for_event("maintenance-announced")["text"]
    show_status(model_dir)
    assert (
        f"announced: the metadata server at {metadata.host} {TOLD.format('PENDING')}"
        in capsys.readouterr().out
    )
    metadata.wait_for_waiting("upcoming-maintenance")
    metadata.set("upcoming-maintenance", json.dumps(ONGOING))
    assert_drained(running.result(), TOLD.format("ONGOING"))


def test_ongoing_maintenance_of_a_machine_that_is_migrated_live_is_told_and_the_job_goes_on(
    start: Start, model_dir: Path, metadata: MetadataServer
) -> None:
    metadata.set(POLICY, "MIGRATE")
    metadata.set("upcoming-maintenance", json.dumps(ONGOING))
    running = start(saving(model_dir), env={"GCE_METADATA_HOST": metadata.host})
    running.wait_for("ready to save")
    told = running.wait_for_event("maintenance-announced")
    assert "the machine is migrated live, so the job goes on" in told["text"]
    metadata.set("preempted", "TRUE")
    assert_drained(running.result(), PREEMPTED)


@pytest.mark.parametrize(
    ("policy", "ends_machine"), [("MIGRATE", False), ("TERMINATE", True), ("", True), (None, True)]
)
def test_only_a_machine_that_is_migrated_live_outlives_its_maintenance(
    metadata: MetadataServer, policy: str | None, ends_machine: bool
) -> None:
    """What does not answer for the policy may be stopped: a drain costs less."""
    if policy is not None:
        metadata.set(POLICY, policy)
    metadata.set("upcoming-maintenance", json.dumps(ONGOING))
    found = GceMaintenance(metadata.host, unix_time=lambda: BEFORE).look()
    assert found is not None
    assert found.ends_machine == ends_machine
    assert ("migrated live" in found.text) != ends_machine


def test_a_policy_that_nobody_answers_for_holds_up_no_drain(metadata: MetadataServer) -> None:
    metadata.slow.add(POLICY)
    metadata.set("upcoming-maintenance", json.dumps(ONGOING))
    found = GceMaintenance(metadata.host, unix_time=lambda: BEFORE).look()
    assert found is not None
    assert found.ends_machine


def test_a_metadata_server_that_is_slow_holds_up_nothing(
    start: Start, model_dir: Path, metadata: MetadataServer
) -> None:
    metadata.slow |= {"preempted", "maintenance-event", "upcoming-maintenance"}
    running = start(saving(model_dir), env={"GCE_METADATA_HOST": metadata.host})
    running.wait_for("ready to save")
    metadata.set("preempted", "TRUE")
    metadata.answer("preempted")
    assert_drained(running.result(), PREEMPTED)


def camel(fields: dict[str, str]) -> dict[str, str]:
    """The names as the API writes them."""
    words = {name: name.title().replace("_", "") for name in fields}
    return {word[0].lower() + word[1:]: fields[name] for name, word in words.items()}


@pytest.mark.parametrize("form", [WINDOW, camel(WINDOW), {"Upcoming maintenance": WINDOW}])
def test_each_form_of_a_maintenance_is_understood_and_told_once(
    metadata: MetadataServer, form: dict[str, Any]
) -> None:
    source = GceMaintenance(metadata.host, itertools.count(0, 60).__next__, lambda: BEFORE)
    metadata.set("upcoming-maintenance", json.dumps(form))
    found = source.look()
    assert found is not None
    assert TOLD.format("PENDING") in found.text
    assert not found.ends_machine
    metadata.set("upcoming-maintenance", json.dumps(form))
    assert source.look() is None, "only the ETag has changed"
    metadata.set("upcoming-maintenance", json.dumps(form).replace("T19:", "T18:"))
    moved = source.look()
    assert moved is not None
    assert "window 2126-12-01T18:00:01Z" in moved.text
    metadata.set("upcoming-maintenance", "{}")
    withdrawn = source.look()
    assert withdrawn is not None
    assert withdrawn.text.endswith("announces no maintenance of this host any more")
    assert not withdrawn.ends_machine
    metadata.set("upcoming-maintenance", "NONE")
    assert source.look() is None


def test_a_window_that_changes_all_the_time_is_told_once_a_minute(metadata: MetadataServer) -> None:
    now = 0.0
    source = GceMaintenance(metadata.host, lambda: now, lambda: BEFORE)
    told = []
    for second in range(90):
        now = float(second)
        window = WINDOW | {"window_start_time": f"2126-12-01T19:00:{second % 59:02d}Z"}
        metadata.set("upcoming-maintenance", json.dumps(window))
        told += [second] if source.look() is not None else []
    assert told == [0, 60]
    metadata.set("upcoming-maintenance", json.dumps(ONGOING))
    ongoing = source.look()
    assert ongoing is not None, "what ends the job is told at once"
    assert ongoing.ends_machine


@pytest.mark.parametrize(
    ("after", "ends_machine"),
    [(-3600, True), (0, True), (86000, True), (86500, False), (1e9, False)],
)
def test_a_maintenance_that_is_long_over_is_told_and_ends_no_job(
    metadata: MetadataServer, after: float, ends_machine: bool
) -> None:
    metadata.set("upcoming-maintenance", json.dumps(ONGOING))
    found = GceMaintenance(metadata.host, unix_time=lambda: WINDOW_END + after).look()
    assert found is not None
    assert found.ends_machine == ends_machine
    assert ("long over, so nothing is done" in found.text) != ends_machine


@pytest.mark.parametrize("end", ["an unknown time", "", "2126-13-01T00:00:00Z", "0001-01-01T00:00"])
def test_a_window_whose_end_cannot_be_read_is_not_over(end: str) -> None:
    assert is_over(end, BEFORE) == end.startswith("0001")


NOTHING_YET = '{ "error": "no notifications have been received yet, try again later" }'


@pytest.mark.parametrize("value", ["NONE", '"NONE"', "{}", NOTHING_YET, '{"type": {}}'])
def test_no_maintenance_is_no_news(metadata: MetadataServer, value: str) -> None:
    metadata.set("upcoming-maintenance", value)
    assert GceMaintenance(metadata.host).look() is None


def test_a_server_without_maintenance_notices_is_asked_seldom(metadata: MetadataServer) -> None:
    source = GceMaintenance(metadata.host)
    assert source.look() is None  # 404
    seldom = source.pause
    metadata.set("upcoming-maintenance", "{}")
    assert source.look() is None
    assert source.pause < seldom, "this one tells of a change"
    metadata.failures, metadata.failure = 1, NOTHING_YET
    assert source.look() is None
    assert source.pause == seldom


@pytest.mark.parametrize(("value", "failures"), [("[1]", 0), ("not json", 0), ("{}", 1)])
def test_an_answer_that_says_nothing_is_an_error(
    metadata: MetadataServer, value: str, failures: int
) -> None:
    metadata.set("upcoming-maintenance", value)
    metadata.failures = failures
    with pytest.raises(OSError, match=r"upcoming-maintenance|status 503"):
        GceMaintenance(metadata.host).look()


def test_an_announcement_during_backoff_ends_the_job_at_once(
    start: Start, model_dir: Path, metadata: MetadataServer
) -> None:
    restart = {"max_num_restarts": 5, "backoff": {"first": 3000, "max": 3000}}
    job = command_config(model_dir, "SIGKILL", "--at", "0", restart=restart)
    running = start(job, env={"GCE_METADATA_HOST": metadata.host})
    running.wait_for_event("attempt-failed", attempt=2)
    running.wait_for_event("backoff")
    metadata.wait_for_waiting("preempted")
    metadata.set("preempted", "TRUE")
    result = running.result()
    assert result.code == 75
    assert result.attempts == 2
    assert PREEMPTED in result.event("stop-requested", code="PREEMPTION")["detail"]


def test_nothing_is_started_on_a_host_that_is_doomed_already(
    supervise: Supervise, model_dir: Path, metadata: MetadataServer
) -> None:
    """The service manager starts us again after 75, as long as the machine lives."""
    metadata.set("preempted", "TRUE")
    result = supervise(saving(model_dir), env={"GCE_METADATA_HOST": metadata.host})
    assert result.code == 75
    assert PREEMPTED in result.event("preemption-announced")["reason"]
    assert not result.has_event("attempt-started")
    again = supervise(command_config(model_dir, success={"step": 6}))
    assert again.code == 0


def test_a_metadata_server_that_is_none_does_no_harm(
    start: Start, model_dir: Path, metadata: MetadataServer
) -> None:
    """A proxy or a captive portal that says TRUE to everything."""
    metadata.genuine = False
    metadata.set("preempted", "TRUE")
    running = start(saving(model_dir), env={"GCE_METADATA_HOST": metadata.host})
    running.wait_for_event("preemption-unheard", reason="the answer is not from a metadata server")
    metadata.genuine = True
    assert_drained(running.result(), PREEMPTED)


def test_an_answer_that_is_no_http_is_told_once_and_asked_for_again(
    start: Start, model_dir: Path, metadata: MetadataServer
) -> None:
    config = saving(model_dir)
    metadata.garbled = 12
    running = start(config, env={"GCE_METADATA_HOST": metadata.host})
    why = "ValueError: read length must be non-negative or -1"
    running.wait_for_event("preemption-unheard", reason=why)
    metadata.garbled = 0
    metadata.set("preempted", "TRUE")
    assert_drained(running.result(), PREEMPTED)


def test_how_long_a_save_takes_decides_when_it_begins(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "going"
    toy = ("save-on-sigterm", "--once", "--saves-take", "0.5")
    restart = {"preemption": {"file": str(file), "notice": "8.4s"}}
    running = start(command_config(model_dir, *toy, restart=restart, success={"step": 500}))
    running.wait_for("ready to save")
    file.touch()
    postponed = running.wait_for_event("stop-postponed")
    assert round(postponed["seconds"]) == 2, "then there is time for another one"
    assert "the longest save so far took 0.5 s" in postponed["text"]
    result = running.result()
    assert result.code == 75, result.log
    order = ["stop-requested", "stop-postponed", "workers-told-to-stop", "notice-used"]
    assert result.names(*order) == order
    told = result.event("workers-told-to-stop", seconds=25.0)
    assert told["reason"] == "a preemption is announced; the longest save so far took 0.5 s"
    assert result.has_event("notice-used", saved=True, step=300)


def test_a_notice_that_no_checkpoint_comes_of_is_told(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "going"
    job = command_config(model_dir, "wait", restart={"preemption": {"file": str(file)}})
    running = start(job)
    running.wait_for("waiting")
    running.wait_for_event("checkpoint-committed", step=2)
    file.touch()
    result = running.result()
    assert result.code == 75
    assert result.has_event("notice-used", level="warning", saved=False, step=2)


def test_a_file_announces(start: Start, model_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "going"
    running = start(saving(model_dir, preemption={"file": str(file)}))
    running.wait_for("ready to save")
    file.write_text("spot market: outbid\nand more\n")
    assert_drained(running.result(), f"the file {file} is there: spot market: outbid")


def test_a_command_announces_with_a_line_and_exit_0(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    """It says that it was started and waits to hear what to say; exit 1 takes the line back."""
    script = 'echo > started; read line < answer; echo "$line"; test "$line" != "not yet"'
    command = ["sh", "-c", f"cd {tmp_path} && {script}"]
    started, answer = tmp_path / "started", tmp_path / "answer"
    for pipe in (started, answer):
        os.mkfifo(pipe)
    running = start(saving(model_dir, preemption={"command": command}))
    running.wait_for("ready to save")
    for line in ("not yet", "the queue takes this node back"):
        started.read_text()
        answer.write_text(f"{line}\n")
    assert_drained(running.result(), f"the command 'sh' says: {line}")


def fail(notice: Notice) -> None:
    raise AssertionError(notice)


def test_gce_is_asked_only_where_there_is_evidence_of_it(tmp_path: Path) -> None:
    def kinds(source: str, environ: dict[str, str], product: str) -> list[str]:
        file = tmp_path / "product_name"
        file.write_text(product)
        config = Preemption.model_validate({"source": source})
        return [
            type(one).__name__
            for one in preemption_sources(config, environ, shared_guard(), lambda: 30.0, fail, file)
        ]

    gce = [GceEvent.__name__, GceEvent.__name__, GceMaintenance.__name__]
    assert kinds("auto", {}, "Google Compute Engine\n") == gce
    assert kinds("auto", {"GCE_METADATA_HOST": "host"}, "KVM\n") == gce
    assert kinds("auto", {}, "KVM\n") == []
    assert kinds("none", {"GCE_METADATA_HOST": "host"}, "Google Compute Engine\n") == []
    assert kinds("gce", {}, "KVM\n") == gce
    slurm = {"SLURM_JOB_END_TIME": str(int(time.time()) + 3600)}
    assert kinds("auto", slurm, "KVM\n") == [AllocationEnd.__name__]
    assert kinds("none", slurm, "KVM\n") == []
    nowhere = tmp_path / "nowhere"
    assert preemption_sources(Preemption(), {}, shared_guard(), lambda: 30.0, fail, nowhere) == []
    by_file = Preemption(source="none", file="x")
    (only,) = preemption_sources(by_file, {}, shared_guard(), lambda: 30.0, fail)
    assert isinstance(only, AnnouncementFile)


def slurm(seconds: float) -> dict[str, str]:
    """The environment of a Slurm job that ends in so many seconds."""
    return {"SLURM_JOB_END_TIME": str(int(time.time() + seconds)), "SLURM_JOB_ID": "77"}


def test_a_job_saves_before_its_slurm_allocation_ends_and_goes_on_in_the_next_one(
    start: Start, supervise: Supervise, model_dir: Path
) -> None:
    """It is asked to stop 5.5 s before the end: the grace period, and a margin."""
    job = saving(model_dir, grace_period=0.5)
    first = start(job, env=slurm(12))
    first.wait_for("ready to save")
    stopped = first.result()
    assert_drained(stopped, "the allocation of Slurm job 77 ends at 2")
    assert 3 < stopped.event("notice-used")["notice_seconds"] < 5.6
    longer = command_config(model_dir, "--steps", "302", success={"step": 302})
    again = supervise(longer, env=slurm(3600))
    assert again.code == 0, again.log
    assert again.event("attempt-started")["step"] == 300


def test_nothing_is_started_where_no_time_is_left_to_save(
    supervise: Supervise, model_dir: Path
) -> None:
    result = supervise(saving(model_dir), env=slurm(20))
    assert result.code == 75
    assert "Slurm job 77" in result.event("preemption-announced")["reason"]
    assert not result.has_event("attempt-started")


def test_a_slurm_end_that_has_passed_is_told_and_ignored(
    supervise: Supervise, model_dir: Path
) -> None:
    result = supervise(command_config(model_dir, success={"step": 6}), env=slurm(-60))
    assert result.code == 0, result.log
    assert "that has passed" in result.event("allocation-end-unusable")["reason"]


def test_an_end_in_the_config_that_has_passed_is_refused(
    supervise: Supervise, model_dir: Path
) -> None:
    result = supervise(saving(model_dir, preemption={"until": "2026-01-01T00:00:00+01:00"}))
    assert result.code == 78
    assert "has passed (2025-12-31 23:00:00 UTC): give the end of this allocation" in result.err
