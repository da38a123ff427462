"""Bugs planted in the real code: the simulation finds each of them within few seeds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from supervisor import runtime
from supervisor.adapters.stores.journal import FileJournal
from supervisor.core import capacity_check, ending, machine, running, transitions
from supervisor.core.allowance import Allowance
from supervisor.core.budget import Budget, Charge
from supervisor.core.capacity_check import Shortage, choose
from supervisor.core.doing import Alive, Ended, Failed, Killing
from supervisor.core.events import DeadlineReached, WorkersGone, WorkersObserved
from supervisor.core.exit_codes import ExitCode
from supervisor.core.guesses import Guess, Guesses
from supervisor.core.ladder import Ladder, Placement
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.remediation import Course, Remediation, answer
from supervisor.core.snapshot_use import SnapshotUse, refusal
from supervisor.core.stage_times import StageTimes
from supervisor.core.state import JobState
from supervisor.core.transitions import StepResult, finish, start
from supervisor.diagnosis.failure import Failure
from supervisor.engines import snapshot_keeper
from supervisor.ports import Transition
from supervisor.protocol.messages import Stage
from tests.simulation.planted import first_violation

WITHIN = 2000
"""Number of seeds within which each bug is found; most need a handful."""

Plant = Callable[[pytest.MonkeyPatch], None]


def one_restart_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    charge = Budget.charge

    def bug(self: Budget, kind: Charge, policy: PhasePolicy) -> Budget | None:
        return charge(self, kind, replace(policy, max_num_restarts=policy.max_num_restarts + 1))

    monkeypatch.setattr(Budget, "charge", bug)


def one_restart_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    charge = Budget.charge

    def bug(self: Budget, kind: Charge, policy: PhasePolicy) -> Budget | None:
        return charge(self, kind, replace(policy, max_num_restarts=policy.max_num_restarts - 1))

    monkeypatch.setattr(Budget, "charge", bug)


def stale_gone_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(state: JobState, event: WorkersGone, policy: RestartPolicy) -> StepResult:
        return ending.workers_gone(state, replace(event, attempt=state.attempt), policy)

    monkeypatch.setitem(machine._HANDLERS, WorkersGone, bug)


def stale_observation_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(state: JobState, event: WorkersObserved, policy: RestartPolicy) -> StepResult:
        return running.workers_observed(state, replace(event, attempt=state.attempt), policy)

    monkeypatch.setitem(machine._HANDLERS, WorkersObserved, bug)


def next_attempt_before_the_last_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = ending.kill

    def bug(
        state: JobState, group: Alive, at: float, reason: str, policy: RestartPolicy
    ) -> StepResult:
        killed, decisions = kill(state, group, at, reason, policy)
        started, more = start(killed, reason, at, policy)
        return started, (*decisions, *more)

    monkeypatch.setattr(running, "kill", bug)


def same_step_is_progress_again(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = Budget.committed

    def bug(self: Budget, step: int | None, **more: Any) -> Budget:
        again = step is not None and step == self.highest
        return Budget(highest=step) if again else committed(self, step, **more)

    monkeypatch.setattr(Budget, "committed", bug)


def progress_refills_what_nothing_refills(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = Budget.committed

    def bug(self: Budget, step: int | None, **more: Any) -> Budget:
        after = committed(self, step, **more)
        return after if after == self else replace(after, total=0)

    monkeypatch.setattr(Budget, "committed", bug)


def the_same_failure_may_come_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "repetition_limit", lambda self, policy: 0)


def another_failure_counts_as_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "repetitions", lambda self, signature: len(self.signatures))


def acts_before_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "NEEDS_DURABLE_JOURNAL", ())


def writes_but_not_durably(monkeypatch: pytest.MonkeyPatch) -> None:
    append = FileJournal.append

    def bug(self: FileJournal, transition: Transition, *, durable: bool) -> None:
        append(self, transition, durable=False)

    monkeypatch.setattr(FileJournal, "append", bug)


def kill_is_never_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(state: JobState, event: DeadlineReached, policy: RestartPolicy) -> StepResult:
        if isinstance(state.doing, Killing):
            return replace(state, doing=replace(state.doing, deadline=inf)), ()
        return machine._deadline_reached(state, event, policy)

    monkeypatch.setitem(machine._HANDLERS, DeadlineReached, bug)


def memory_runs_out_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(remediation: Remediation, *rest: Any) -> Course:
        return answer(replace(remediation, memory_tries=0), *rest)

    monkeypatch.setattr(ending, "answer", bug)


def only_the_last_batch_stays_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(remediation: Remediation, *rest: Any) -> Course:
        course = answer(remediation, *rest)
        asked = course.remediation.adjustments
        asked = replace(asked, skip_steps=asked.skip_steps[-1:])
        return replace(course, remediation=replace(course.remediation, adjustments=asked))

    monkeypatch.setattr(ending, "answer", bug)


def skipped_batches_are_forgotten_by_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Remediation, "fresh", lambda self: Remediation())


def a_busy_device_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*given: Any) -> Course:
        return replace(answer(*given), ahead=0)

    monkeypatch.setattr(ending, "answer", bug)


def a_snapshot_counts_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(state: JobState, event: WorkersGone, policy: RestartPolicy) -> StepResult:
        state = replace(state, budget=state.budget.committed(event.resumed_from))
        return ending.workers_gone(state, event, policy)

    monkeypatch.setitem(machine._HANDLERS, WorkersGone, bug)


def a_snapshot_is_used_whatever_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "distrust", lambda failure: "")


def a_snapshot_is_tried_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(distrust: str, use: SnapshotUse) -> str | None:
        return refusal(distrust, replace(use, declined=True))

    monkeypatch.setattr(snapshot_keeper, "refusal", bug)


def lost_devices_are_charged_to_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "bad_units_in_use", lambda *given: ())


def it_shrinks_by_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(state: JobState, found: Collection[str], *rest: Any) -> Placement | Shortage:
        return choose(state, sorted(found)[1:], *rest)

    monkeypatch.setattr(ending, "choose", bug)


def quarantine_is_for_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_check, "usable", lambda state, found: frozenset(found))


def a_rung_that_is_too_small_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ladder, "strike", lambda self, num_devices, reason: self)


def a_guess_ends_the_job_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guesses, "knows", lambda self, guess: True)


def a_guess_may_come_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guesses, "knows", lambda self, guess: False)


def any_other_guess_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guesses, "knows", lambda self, guess: bool(self.known))


def a_guess_is_the_same_at_the_same_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(self: Guess, earlier: Guess) -> bool:
        return (self.signature, self.step) == (earlier.signature, earlier.step)

    monkeypatch.setattr(Guess, "is_again", bug)


def a_checkpoint_proves_any_guess_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(self: Guess, earlier: Guess) -> bool:
        return (self.signature, self.highest) == (earlier.signature, earlier.highest)

    monkeypatch.setattr(Guess, "is_again", bug)


def a_checkpoint_proves_no_guess_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guess, "is_again", lambda self, other: self.signature == other.signature)


def what_is_certain_gets_one_more_attempt_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failure, "is_certain", False)


def a_bad_machine_that_is_replaced_ends_the_job_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "on_another_machine", lambda self, limits: None)


def a_guess_without_a_restart_left_has_only_spent_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bug(state: JobState, end: Ended, reason: str) -> StepResult:
        spent = "cannot be tried" in reason
        return finish(state, Failed(ExitCode.BUDGET_SPENT) if spent else end, reason)

    monkeypatch.setattr(ending, "finish", bug)


def a_flood_of_stages_fills_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Allowance, "take", lambda self, now: (True, self))


def the_time_of_stages_that_are_not_told_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = StageTimes.entered

    def bug(self: StageTimes, stage: Stage | None, at: float) -> tuple[bool, StageTimes]:
        is_told, after = entered(self, stage, at)
        return is_told, after if is_told else after.told()

    monkeypatch.setattr(StageTimes, "entered", bug)


PLANTED: dict[Plant, int] = {
    a_flood_of_stages_fills_the_journal: 6,
    the_time_of_stages_that_are_not_told_is_lost: 6,
    lost_devices_are_charged_to_the_job: 8,
    it_shrinks_by_guess: 14,
    quarantine_is_for_show: 8,
    a_rung_that_is_too_small_is_tried_again: 63,
    a_snapshot_counts_as_progress: 151,
    a_snapshot_is_used_whatever_went_wrong: 4,
    a_snapshot_is_tried_again_and_again: 402,
    a_guess_ends_the_job_the_first_time: 4,
    a_guess_may_come_for_ever: 68,
    any_other_guess_is_the_same: 17,
    a_guess_is_the_same_at_the_same_step_alone: 90,
    a_checkpoint_proves_any_guess_wrong: 281,
    a_checkpoint_proves_no_guess_wrong: 71,
    what_is_certain_gets_one_more_attempt_too: 111,
    a_guess_without_a_restart_left_has_only_spent_its_budget: 57,
    a_bad_machine_that_is_replaced_ends_the_job_for_good: 155,
    memory_runs_out_for_ever: 3,
    only_the_last_batch_stays_skipped: 87,
    skipped_batches_are_forgotten_by_the_next_run: 1,
    a_busy_device_is_tried_at_once: 4,
    one_restart_too_many: 0,
    one_restart_too_few: 4,
    stale_gone_is_believed: 23,
    stale_observation_is_believed: 6,
    next_attempt_before_the_last_is_gone: 4,
    same_step_is_progress_again: 1,
    progress_refills_what_nothing_refills: 15,
    the_same_failure_may_come_for_ever: 236,
    another_failure_counts_as_the_same: 68,
    acts_before_it_writes: 0,
    writes_but_not_durably: 0,
    kill_is_never_repeated: 2,
}
"""Each bug with a seed that finds it. If histories are drawn in another way by now, the test
searches for another seed, and warns."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_simulation_finds(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    plant(monkeypatch)
    found = first_violation(PLANTED[plant], WITHIN)
    assert "unexpected keyword argument" not in str(found.violation), "the bug itself is broken"
    record_property("seeds", found.seed + 1)
    print(f"found by seed {found.seed}: {found.violation}")
