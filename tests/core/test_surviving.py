"""What outlives the workers of an attempt: who is waited for, how long, and what it is called."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.decisions import KillWorkers, SignalWorkers
from supervisor.core.events import DeadlineReached, SaveMeasured, StopSource, WorkersObserved
from supervisor.core.liveness import Silence
from supervisor.core.pipes import HeldPipes, left_alone
from supervisor.diagnosis.doubt import doubt
from supervisor.diagnosis.failure import Evidence, RankEvidence, Survivor, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.narrative.failure_text import success_warning
from supervisor.protocol.messages import Stage
from tests.core.history import History, policy, started

LEFT = (Survivor(7, "sleep 3600"),)
WELL = WorkerExit(0, code=0)


def ended(history: History, at: float, end: WorkerExit, left: tuple[Survivor, ...]) -> list[type]:
    """The worker has ended, and `left` lives; what is decided."""
    history.now = at
    happened = history.happens(WorkersObserved(at, 1, (1000,), (end,), left))
    return [type(decision) for decision in happened]


def running(source: StopSource | None = None) -> History:
    history = started(policy())
    history.runs()
    if source is not None:
        history.stops(source)
    return history


@given(st.lists(st.floats(0.0, 24.0), min_size=1, max_size=8), st.sampled_from([*StopSource]))
def test_a_stop_waits_for_survivors_until_exactly_the_grace_period_is_over(
    looks: list[float], source: StopSource
) -> None:
    history = running(source)
    due = history.state.deadline
    for at in sorted(looks):
        for code in (0, 1):
            assert not ended(history, at, WorkerExit(0, code=code), LEFT)
    assert history.state.deadline == due
    assert isinstance(history.waits()[0], KillWorkers)


def test_survivors_that_end_are_waited_for_no_longer() -> None:
    history = running(StopSource.SIGTERM)
    assert not ended(history, 1.0, WorkerExit(0, signal="SIGTERM"), LEFT)
    assert ended(history, 2.0, WorkerExit(0, signal="SIGTERM"), ()) == [KillWorkers]


def test_after_a_good_end_survivors_have_five_seconds_in_all() -> None:
    history = running()
    for at in (1.0, 3.0, 5.9):
        assert not ended(history, at, WELL, LEFT)
    assert history.state.deadline == 6.0
    (kill,) = history.waits()
    assert isinstance(kill, KillWorkers)
    assert kill.survivors == LEFT


@pytest.mark.parametrize("source", StopSource)
def test_a_stop_gives_the_survivors_of_a_good_end_the_whole_grace_period_once(
    source: StopSource,
) -> None:
    history = running()
    assert not ended(history, 1.0, WELL, LEFT)
    history.now = 5.5
    assert [type(decision) for decision in history.stops(source)] == [SignalWorkers]
    due = 5.5 + history.policy.grace_period
    assert not ended(history, 6.5, WELL, LEFT)
    assert history.state.deadline == due
    (kill,) = history.waits()
    assert isinstance(kill, KillWorkers)
    assert kill.reason == "the grace period is over"
    assert kill.survivors == (), "it is not to blame for being killed"


@pytest.mark.parametrize("code", [0, 1])
def test_of_several_workers_one_that_failed_leaves_no_time(code: int) -> None:
    history = started(policy())
    history.runs(workers=2)
    exits = (WorkerExit(0, code=0, told_to_stop=True), WorkerExit(1, code=code))
    decided = history.happens(WorkersObserved(1.0, 1, (1000, 1001), exits, LEFT))
    assert [type(each) for each in decided] == [SignalWorkers if code == 0 else KillWorkers]


def test_so_does_the_end_of_a_notice() -> None:
    """The notice left time to train, in which the worker came to a good end."""
    history = History(replace(policy(), preemption_notice=100.0))
    history.starts()
    history.runs()
    history.happens(SaveMeasured(0.0, 1, 5.0))
    assert history.stops(StopSource.PREEMPTION) == ()
    assert not ended(history, 1.0, WELL, LEFT)
    history.now = 5.5
    assert [type(decision) for decision in history.stops()] == [SignalWorkers]
    assert history.state.deadline == 5.5 + history.policy.grace_period


def test_after_a_failure_nothing_is_waited_for() -> None:
    assert ended(running(), 1.0, WorkerExit(0, code=1), LEFT) == [KillWorkers]


@pytest.mark.parametrize(
    "end",
    [
        WorkerExit(0, signal="SIGTERM"),
        WorkerExit(0, code=143),
        WorkerExit(0, code=0, told_to_stop=True),
        WorkerExit(0, code=1, told_to_stop=True),
    ],
    ids=str,
)
def test_a_sigterm_of_somebody_else_is_passed_on_once_with_the_grace_period(
    end: WorkerExit,
) -> None:
    history = running()
    assert ended(history, 1.0, end, LEFT) == [SignalWorkers]
    assert not ended(history, 2.0, end, LEFT)
    assert history.state.deadline == 1.0 + history.policy.grace_period
    (kill,) = history.waits()
    assert isinstance(kill, KillWorkers)
    assert kill.survivors == (), "it is not to blame for being killed"


@pytest.mark.parametrize("success", [Success(), Success(step=3), Success(step=9)])
def test_survivors_are_a_fault_unless_a_declared_success_is_met(success: Success) -> None:
    evidence = Evidence((RankEvidence(WELL),), step=3, survivors=LEFT)
    failure = judge(evidence, success)
    if success.step == 3:
        assert failure is None
        return
    assert failure is not None
    assert (failure.rule, failure.verdict) == ("background", Verdict.FATAL)
    assert failure.root_cause == "exit code 0, but still running: pid 7 (sleep 3600)"


TRACEBACK = """\
step 1
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
  File "train.py", line 2, in main
    raise ValueError("no such shard")
ValueError: no such shard
"""


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("", None),
        ("step 1\nall done\n", None),
        (TRACEBACK, "ValueError: no such shard"),
        (TRACEBACK + "wandb: synced\n", "ValueError: no such shard"),
        (TRACEBACK + "".join(f"step {n}\n" for n in range(50)), None),
    ],
)
def test_the_end_of_the_output_is_what_counts(output: str, told: str | None) -> None:
    assert doubt(Evidence((RankEvidence(WELL, output=output),))) == told


@pytest.mark.parametrize("line", ["t.sh: line 1:  42 Killed   python3 train.py", "Killed"])
def test_a_kill_that_a_later_command_hides_is_told(line: str) -> None:
    evidence = Evidence((RankEvidence(WELL, output=f"step 1\n{line}\nfinished\n"),))
    assert doubt(evidence) == line
    assert "set -e" in success_warning(line)
    assert doubt(evidence, is_proven=True) is None
    later = f"{line}\n" + "".join(f"step {n}\n" for n in range(50))
    assert doubt(Evidence((RankEvidence(WELL, output=later),))) is None


@given(st.text())
def test_any_output_can_be_doubted(output: str) -> None:
    doubt(Evidence((RankEvidence(WELL, output=output),)))


def test_what_reads_from_another_ends_with_its_input() -> None:
    trainer = HeldPipes(frozenset(), frozenset({"pipe:[1]"}))
    tee = HeldPipes(frozenset({"pipe:[1]"}), frozenset({"pipe:[2]"}))
    loner = HeldPipes(frozenset({"pipe:[3]"}), frozenset({"pipe:[3]"}))
    assert left_alone({1: trainer, 2: tee, 3: loner}, {1, 3}) == {2}
    assert left_alone({2: tee}, set()) == set()


@given(
    st.dictionaries(
        st.integers(1, 6),
        st.builds(HeldPipes, *2 * [st.frozensets(st.sampled_from("abcd"))]),
        min_size=1,
    ),
    st.frozensets(st.integers(1, 6)),
)
def test_somebody_is_always_asked_and_whoever_waits_has_one_to_wait_for(
    found: dict[int, HeldPipes], handling: frozenset[int]
) -> None:
    waiting = left_alone(found, handling)
    assert found.keys() - waiting
    for pid in waiting:
        assert any(found[pid].reads & found[one].writes for one in found.keys() - {pid})


@pytest.mark.parametrize(
    ("handling", "waiting"), [({1}, {2, 3}), ({1, 2}, {3}), ({2}, {1, 3}), (set(), {3})]
)
def test_of_those_that_feed_each_other_the_handlers_of_sigterm_get_it_first(
    handling: set[int], waiting: set[int]
) -> None:
    trainer = HeldPipes(frozenset({"back"}), frozenset({"there"}))
    coprocess = HeldPipes(frozenset({"there"}), frozenset({"back", "copy"}))
    tee = HeldPipes(frozenset({"copy"}), frozenset())
    assert left_alone({1: trainer, 2: coprocess, 3: tee}, handling) == waiting


def test_survivors_of_a_group_whose_start_was_never_told_are_asked_to_stop_too() -> None:
    history = started(policy())
    history.stops()
    assert ended(history, 1.0, WELL, LEFT) == [SignalWorkers]
    assert history.state.deadline == history.policy.grace_period


def test_what_lives_on_where_a_worker_ends_while_its_stacks_are_dumped_is_asked_to_save() -> None:
    """A shell dies of the signal that asks for stacks; the trainer below it handles SIGTERM."""
    history = running()
    history.happens(DeadlineReached(60.0, Silence(1, Stage.TRAINING, 50.0)))
    assert not ended(history, 60.1, WorkerExit(0, signal="SIGUSR2"), LEFT)
    assert [type(decision) for decision in history.waits()] == [SignalWorkers]
    due = history.now + history.policy.grace_period
    assert history.state.deadline == due
    assert [type(decision) for decision in history.waits()] == [KillWorkers]
