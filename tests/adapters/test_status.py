"""`supervise status` of a job whose journal somebody else may have written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from supervisor.adapters.stores.journal import COMPACT_AFTER, FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.cli import exit_code_page
from supervisor.cli.job_view import quarantined
from supervisor.cli.main import main
from supervisor.cli.status import show_status
from supervisor.core.events import (
    DevicesProbed,
    LossSpiked,
    Obstacle,
    PhaseBegun,
    StopRequested,
    StopSource,
    Straggler,
    StragglerFound,
    SupervisorStarted,
    Unfit,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.quarantine import Quarantine, QuarantinedUnit
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import Failure, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.success import Success
from supervisor.files.live_status import LiveProgress
from supervisor.protocol.loss_spikes import LossSpike
from supervisor.protocol.messages import Stage, StageMessage, StepMessage
from tests.adapters.test_journal import EXITS, KILLED, STORY, tell
from tests.running import eventually


def test_nothing_in_a_journal_moves_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(tmp_path, *STORY[:2])
    journal = tmp_path / "journal.jsonl"
    hostile = json.dumps("\x1b[2J")
    journal.write_text(journal.read_text().replace('"job":"job"', f'"job":{hostile}'))
    show_status(tmp_path)
    told = capsys.readouterr().out
    assert all(line.isprintable() for line in told.splitlines())
    assert "[2J" in told


AWAY = Obstacle("the cluster does not answer: it is away", "start it again")
UNFIT = Unfit(1, "host h2: it does not see this model_dir", "share it")


@pytest.mark.parametrize(
    ("probed", "line"),
    [
        (
            DevicesProbed(3.0, 1, (), (), obstacle=AWAY),
            "no host can be used: the cluster does not answer: it is away",
        ),
        (
            DevicesProbed(3.0, 1, ("h1",), (), unfit=UNFIT),
            "not used: host h2: it does not see this model_dir",
        ),
    ],
)
def test_what_keeps_hosts_from_being_used_is_told_and_no_empty_list_of_them(
    probed: DevicesProbed, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = PhasePolicy(
        "only", 3, 2, Success(step=6), rungs=(2,), num_hosts=2, workers_are_units=True
    )
    policy = RestartPolicy(phases=(hosts,))
    started = SupervisorStarted(1.0, "job", policy, None)
    begun = PhaseBegun(2.0, 0, "20260101_000000_restartable", None)
    tell(tmp_path, started, begun, probed, policy=policy)
    show_status(tmp_path)
    told = capsys.readouterr().out.splitlines()
    assert "rung: 2 of 2 devices" in told
    assert line in told


def test_the_rank_that_keeps_the_others_waiting_is_told_until_the_next_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = StragglerFound(3.5, 1, Straggler(2, 0.7, 0.1, 1.0, "h2"))
    tell(tmp_path, *STORY[:4], found)
    show_status(tmp_path)
    assert "rank 2 on h2 keeps the others waiting: of a step of 1 s" in capsys.readouterr().out
    (tmp_path / "journal.jsonl").unlink()
    tell(tmp_path, *STORY[:4], found, *STORY[4:7])
    show_status(tmp_path)
    assert "keeps the others waiting" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "failure", "told"),
    [
        (True, replace(KILLED, root_cause="killed by SIGKILL", exit="killed by SIGKILL"), False),
        (True, replace(KILLED, root_cause="OSError: no space left", exit="exit code 1"), True),
        (False, replace(KILLED, root_cause="killed by SIGKILL", exit="killed by SIGKILL"), True),
    ],
)
def test_an_attempt_that_ended_as_it_was_asked_to_is_no_failure(
    asked: bool, failure: Failure, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = (StopRequested(4.0, StopSource.PERSON),) if asked else ()
    observed = WorkersObserved(4.1, 1, (7,), EXITS)
    tell(tmp_path, *STORY[:3], *stop, observed, WorkersGone(4.2, 1, failure, None, 6, 5))
    show_status(tmp_path)
    assert ("what to do: " in capsys.readouterr().out) == told


def test_a_success_whose_output_ends_in_a_traceback_stays_doubtful(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = WorkersGone(4.2, 1, None, None, 6, 5, doubt="ValueError: no such shard")
    tell(tmp_path, *STORY[:3], WorkersObserved(4.1, 1, (7,), EXITS), gone)
    show_status(tmp_path)
    told = capsys.readouterr().out
    assert "SUCCEEDED" in told
    assert "but its output ends in a traceback: ValueError: no such shard" in told


def test_a_config_is_no_model_dir(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "trainer.yaml"
    config.touch()
    assert main(["status", str(config)]) == 64
    assert "trainer.yaml is a file: give the job's model_dir" in capfd.readouterr().err


@pytest.mark.parametrize("verb", ["status", "quarantine list", "quarantine clear"])
def test_a_folder_without_a_job_is_a_wrong_command_line(
    verb: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb.split(), str(tmp_path)]) == ExitCode.USAGE
    assert f"{tmp_path} holds no job" in capfd.readouterr().err
    assert "model_dir without a job" in exit_code_page.page()


@pytest.mark.parametrize("until", [1e300, float("inf"), float("nan")])
def test_a_time_that_is_none_is_told_as_it_is(until: float) -> None:
    quarantine = Quarantine((QuarantinedUnit("5", "a wrong result", until),))
    (line,) = quarantined(JobState(quarantine=quarantine), PhasePolicy("p", 1, 1, Success()))
    assert f"until {until:g}" in line


@pytest.mark.parametrize(
    ("recognised", "how"), [(False, "reported"), (True, "recognised in its output")]
)
def test_a_job_without_a_checkpoint_shows_the_step_that_it_reached(
    recognised: bool, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = WorkersGone(4.2, 1, KILLED, None, 6, None, step_recognised=recognised)
    tell(tmp_path, *STORY[:3], WorkersObserved(4.1, 1, (7,), EXITS), gone)
    show_status(tmp_path)
    told = capsys.readouterr().out
    assert "no checkpoint seen yet" in told
    assert f"last completed step: 6 of attempt 1 ({how})" in told


def test_a_job_that_runs_shows_the_newest_step_on_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = (
        WorkerReported(1.0, 1, 0, StageMessage(Stage.TRAINING)),
        WorkerReported(2.0, 1, 0, StepMessage(6)),
        WorkerReported(3.0, 1, 0, StageMessage(Stage.EVALUATING)),
    )
    tell(tmp_path, *STORY[:3], *reports)
    show_status(tmp_path)
    assert "last completed step: 6 or later" in capsys.readouterr().out


def test_that_no_preemption_was_spent_is_shown_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(tmp_path, *STORY[:3])
    show_status(tmp_path)
    assert "0 of 2 restarts and 0 of 3 preemptions used" in capsys.readouterr().out


def test_a_new_journal_after_a_repair_is_told_as_what_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "20250304_050607_restartable" / "attempts" / "0001").mkdir(parents=True)
    (tmp_path / "journal.jsonl").touch()
    assert main(["repair", str(tmp_path)]) == 0
    assert main(["status", str(tmp_path)]) == ExitCode.USAGE
    told = capfd.readouterr().err
    assert "holds no job" not in told
    assert "has a new journal, and no supervisor has started since" in told
    assert "journal.jsonl is empty, but the job has run" in told


OWNER = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from supervisor.adapters.stores.lock import DirectoryLock
from supervisor.adapters.stores.storage import LocalStorage

lock = DirectoryLock(Path(sys.argv[1]))
lock.claim(LocalStorage(Path(sys.argv[1])), datetime.now(UTC), None)
print("owns it", flush=True)
{stands_still}
"""
"""A process that owns a model_dir, and then does nothing."""
STOPPED = "os.kill(os.getpid(), 19)"
STATES = {"T": psutil.STATUS_STOPPED, "D": psutil.STATUS_DISK_SLEEP}
IN_THE_KERNEL = """
os.mkfifo(sys.argv[2])
read = (os.POSIX_SPAWN_OPEN, 0, sys.argv[2], os.O_RDONLY, 0)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[read])
"""
"""The kernel lets a parent go on only when its new child runs its program, and this one waits until
somebody writes to a FIFO."""


@pytest.mark.parametrize(
    ("stands_still", "state", "said"),
    [
        (STOPPED, "T", "it is stopped (state T) and watches nothing: `kill -CONT"),
        (IN_THE_KERNEL, "D", "it waits in the kernel (state D)"),
    ],
    ids=["stopped", "in the kernel"],
)
def test_a_supervisor_that_does_nothing_is_not_told_as_one_that_runs(
    stands_still: str, state: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(tmp_path, *STORY[:3])
    program = OWNER.format(stands_still=stands_still)
    argv = [sys.executable, "-c", program, str(tmp_path), str(tmp_path / "fifo")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "owns it\n"
            assert eventually(lambda: psutil.Process(owner.pid).status() == STATES[state])
            show_status(tmp_path)
        finally:
            for each in psutil.Process(owner.pid).children():
                each.kill()
            owner.kill()
    told = capsys.readouterr().out
    assert f"supervisor: pid {owner.pid} on " in told
    assert said in told
    assert "last known: RUNNING" in told


def failed_job(place: Path) -> Failure:
    """A job in `place` that goes on after this failure."""
    failure = replace(KILLED, cause="it broke", advice="Mend it.", where="/a/train.py:3 in f")
    gone = WorkersGone(4.2, 1, failure, None, 6, None)
    tell(place, *STORY[:3], WorkersObserved(4.1, 1, (7,), EXITS), gone)
    return failure


def test_a_failure_is_told_with_its_place_what_to_do_and_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = failed_job(tmp_path)
    show_status(tmp_path)
    told = capsys.readouterr().out
    assert f"last failure: it broke: {failure.root_cause}, at /a/train.py:3 in f\n" in told
    assert f"(rule '{failure.rule}'): {failure.reason}\nwhat to do: Mend it.\n" in told
    assert "log: " not in told, "it is not there"
    log = next(iter(_logs(tmp_path)))
    log.parent.mkdir(parents=True)
    log.touch()
    show_status(tmp_path)
    assert f"log: {log}\n" in capsys.readouterr().out


def _logs(place: Path) -> list[Path]:
    directory = FileJournal(LocalStorage(place)).peek().state.directory
    assert directory is not None
    return [place / directory / "attempts" / "0001" / "rank0.log"]


def test_programs_read_json_and_the_exit_code_of_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = failed_job(tmp_path)
    assert main(["status", "--json", "--exit-code", str(tmp_path)]) == 3, "it has not ended"
    told = json.loads(capsys.readouterr().out)
    assert (told["v"], told["attempt"], told["failure"]["advice"]) == (1, 2, failure.advice)
    assert (told["exit_code"], told["failure"]["log"]) == (None, None)
    assert main(["status", str(tmp_path)]) == 0
    done = tmp_path / "done"
    done.mkdir()
    fatal = replace(KILLED, verdict=Verdict.FATAL, certain=True)
    tell(done, *STORY[:5], WorkersGone(4.2, 1, fatal, None, 6, None))
    assert main(["status", "--exit-code", str(done)]) == 70
    capsys.readouterr()
    assert main(["status", "--exit-code", "--json", str(tmp_path / "none")]) == 66
    assert capsys.readouterr().out == ""


def test_an_end_is_told_with_why_when_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fatal = replace(KILLED, verdict=Verdict.FATAL, certain=True, reason="It is wrong.")
    tell(tmp_path, *STORY[:5], WorkersGone(4.2, 1, fatal, None, 6, None))
    show_status(tmp_path)
    told = capsys.readouterr().out
    assert re.search(
        r"^ended .* ago\) with supervise's exit code 70 \(another attempt would fail in the same "
        r"way\): It is wrong\.$",
        told,
        re.MULTILINE,
    )
    assert "next: nothing runs it again by itself; once the cause is mended, " in told
    assert main(["status", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["ended"]["reason"] == "It is wrong."


@pytest.mark.parametrize("message", ["killed by SIGKILL", "another one"])
def test_an_earlier_failure_that_was_the_same_is_told_in_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], message: str
) -> None:
    first = WorkersGone(4.2, 1, replace(KILLED, root_cause=message), None, 6, None)
    second = WorkersGone(6.2, 2, KILLED, None, 6, None)
    again = WorkersStarted(5.0, 2, (8,))
    told = WorkersObserved(6.1, 2, (8,), EXITS)
    tell(tmp_path, *STORY[:3], WorkersObserved(4.1, 1, (7,), EXITS), first, again, told, second)
    show_status(tmp_path)
    lines = capsys.readouterr().out
    is_same = message == KILLED.root_cause
    assert ("before that, attempt 1: the same\n" in lines) == is_same
    assert (f"before that, attempt 1: killed: {message} (rule" in lines) == (not is_same)


def test_losses_that_stand_out_are_told_with_the_replay_of_their_steps(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spiked = LossSpiked(2.5, 1, LossSpike(812, 9.25, 2.0, 2.5))
    tell(tmp_path, *STORY[:3], spiked)
    show_status(tmp_path)
    text = (
        "note: the loss of step 812 stands out: 9.25, where those before it were about 2 and up to "
        f"2.5 would have been usual: supervise replay {tmp_path} --step 812"
    )
    assert text in capfd.readouterr().out.splitlines()
    assert main(["explain", str(tmp_path)]) == 64
    told = capfd.readouterr().err
    assert "no attempt of this job has failed (1 so far). Yet: the loss of step 812 " in told


@pytest.mark.parametrize("after", [COMPACT_AFTER, 2])
def test_a_loss_that_stood_out_in_an_earlier_phase_is_told_too(
    after: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also once the journal, which is compacted `after` records, begins behind that phase."""
    one = PhasePolicy("capitals", 3, 2, Success(step=6, committed=True))
    two_phases = RestartPolicy((one, replace(one, name="more")))
    failure = replace(KILLED, step=None)
    events = (
        SupervisorStarted(0.0, "job", two_phases, None),
        PhaseBegun(0.1, 0, "20250304_050607_restartable", None),
        WorkersStarted(0.2, 1, (7,)),
        LossSpiked(0.5, 1, LossSpike(185, 6.75, 0.0004, 0.0021)),
        WorkersObserved(1.0, 1, (7,), (WorkerExit(0, code=0),)),
        WorkersGone(1.2, 1, None, 6, 6, None),
        PhaseBegun(1.3, 1, "20250304_050608_restartable", None),
        WorkersStarted(1.4, 2, (8,)),
        WorkersObserved(2.0, 2, (8,), EXITS),
        WorkersGone(2.2, 2, failure, None, None, None),
    )
    tell(tmp_path, *events, after=after, policy=two_phases)
    note = (
        "note: the loss of step 185 of phase 'capitals' stands out: 6.75, where those before it "
        "were about 0.0004 and up to 0.0021 would have been usual: "
        f"supervise replay {tmp_path} --phase capitals --step 185"
    )
    show_status(tmp_path)
    assert note in capfd.readouterr().out.splitlines()
    assert main(["status", "--json", str(tmp_path)]) == 0
    (spike,) = json.loads(capfd.readouterr().out)["loss_spikes"]
    assert (spike["phase"], spike["step"]) == ("capitals", 185)
    assert main(["explain", str(tmp_path)]) == 0
    assert note in capfd.readouterr().out.splitlines()


def test_the_page_names_what_is_printed_of_the_live_step_and_of_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    behind = StragglerFound(2.6, 1, Straggler(1, 3.0, 0.5, 4.0, "h2"))
    tell(tmp_path, *STORY[:3], LossSpiked(2.5, 1, LossSpike(812, 9.25, 2.0, 2.5)), behind)
    assert main(["status", "--json", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    section = page.partition("\n## supervise status\n")[2].partition("\n## ")[0]
    findings = {key: told[key][0] for key in ("loss_spikes", "stragglers")}
    keys = {*findings, *LiveProgress.model_fields}.union(*findings.values())
    assert keys <= set(re.findall(r"`(\w+)`", section))
