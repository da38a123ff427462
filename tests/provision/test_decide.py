"""What is decided about a job's slice, case by case, and for whatever may be seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.exit_codes import ExitCode
from supervisor.ports import CloudSlice, Refusal, SliceState
from supervisor.provision.decide import (
    Action,
    Create,
    Delete,
    End,
    JobStatus,
    MachineReport,
    Observation,
    WaitUntil,
    decide,
    take_over,
)
from supervisor.provision.intent import LoopPolicy, ProvisionStage, ProvisionState, decode, encode

POLICY = LoopPolicy("config", rungs=(8, 4, 1))
NONE = Observation()
NOW = 1_000_000.0
STOCKOUT = Refusal("There is no more capacity in the zone", may_pass=True)


def there(state: SliceState, generation: int = 1, **more: object) -> Observation:
    """What is seen where there is one slice."""
    return replace(Observation({generation: CloudSlice(state)}), **more)  # type: ignore[arg-type]


def wanted() -> ProvisionState:
    """A loop that has just asked for its first slice."""
    state, actions = decide(take_over(None, "me", POLICY), NONE, NOW, POLICY)
    assert actions == (Create(1, 8), WaitUntil(NOW + POLICY.poll))
    return state


def running() -> ProvisionState:
    """A loop whose slice runs the job."""
    state, _ = decide(wanted(), there(SliceState.ACTIVE), NOW, POLICY)
    state, actions = decide(state, there(SliceState.ACTIVE, sign="a"), NOW + 60, POLICY)
    assert state.stage is ProvisionStage.SEEN
    assert state.spoken
    assert actions == (WaitUntil(NOW + 60 + POLICY.poll),)
    return state


def refuses(state: ProvisionState, generation: int, step: int | None, now: float) -> ProvisionState:
    """The job says on the next slice that it cannot use it."""
    there_is = there(SliceState.ACTIVE, generation, sign=f"s{generation}")
    state, _ = decide(state, there_is, now, POLICY)
    said = JobStatus(f"d{generation}", int(ExitCode.NO_CAPACITY), step)
    state, _ = decide(state, replace(there_is, status=said), now, POLICY)
    if state.stage is ProvisionStage.LEAVING:
        state, actions = decide(state, replace(NONE, status=said), now, POLICY)
        assert actions[0] == Create(generation + 1, 8), "the next is asked for at once"
    return state


def test_so_many_slices_in_a_row_that_the_job_cannot_use_end_it() -> None:
    state = refuses(refuses(wanted(), 1, 40, NOW), 2, 40, NOW)
    assert "2 of 3 in a row" in state.reason
    state = refuses(decode(encode(state)), 3, 40, NOW)
    assert (state.stage, state.exit_code) == (ProvisionStage.ENDING, ExitCode.FAILED)
    assert "so had 3 in a row, without a new checkpoint between" in state.reason


def test_a_new_checkpoint_between_makes_the_next_one_the_first_again() -> None:
    state = wanted()
    for generation, step in enumerate((None, None, 10, 10, 20, 30), start=1):
        state = refuses(state, generation, step, NOW)
        assert state.stage is ProvisionStage.WANTED
    assert state.unusable == 1


def test_a_creation_that_was_not_seen_is_asked_for_again() -> None:
    later = NOW + 30
    assert decide(wanted(), NONE, later, POLICY)[1][0] == Create(1, 8)


@pytest.mark.parametrize(
    "state",
    [
        SliceState.CREATING,
        SliceState.ACCEPTED,
        SliceState.WAITING_FOR_RESOURCES,
        SliceState.PROVISIONING,
        SliceState.UNKNOWN,
    ],
)
def test_a_slice_is_waited_for_and_then_the_next_smaller_one(state: SliceState) -> None:
    before, actions = decide(wanted(), there(state), NOW + POLICY.smaller_after - 1, POLICY)
    assert (before.stage, actions) == (ProvisionStage.SEEN, (WaitUntil(actions[0].at),))  # type: ignore[union-attr]
    after, actions = decide(before, there(state), NOW + POLICY.smaller_after, POLICY)
    assert (after.stage, actions[0]) == (ProvisionStage.LEAVING, Delete(1))
    after, actions = decide(after, NONE, NOW + POLICY.smaller_after + 10, POLICY)
    assert actions[0] == Create(2, 4)
    # The smallest is waited for however long it takes.
    last = replace(after, rung=1, stage=ProvisionStage.SEEN)
    assert decide(last, there(state, 2), NOW + 10**6, POLICY)[0].stage is ProvisionStage.SEEN


@pytest.mark.parametrize("state", [SliceState.SUSPENDED, SliceState.SUSPENDING, None])
def test_a_slice_that_is_lost_is_replaced_at_once_by_a_full_one(state: SliceState | None) -> None:
    small = replace(running(), rung=4)
    seen = NONE if state is None else there(state)
    left, actions = decide(small, seen, NOW + 100, POLICY)
    if state is not None:
        assert actions[0] == Delete(1)
        left, actions = decide(left, there(SliceState.DELETING), NOW + 110, POLICY)
        assert actions == (WaitUntil(NOW + 120),), "it is not asked for twice, and waited for"
        left, actions = decide(left, NONE, NOW + 120, POLICY)
    assert actions[0] == Create(2, 8)


def test_a_slice_that_is_lost_before_its_job_spoke_is_replaced_after_a_pause() -> None:
    state, _ = decide(wanted(), there(SliceState.ACTIVE), NOW, POLICY)
    state, actions = decide(state, NONE, NOW + 10, POLICY)
    assert actions == (WaitUntil(NOW + 10 + POLICY.backoff_first),)
    assert decide(state, NONE, NOW + 70, POLICY)[1][0] == Create(2, 8)


def test_no_capacity_is_asked_again_with_growing_pauses_and_then_for_a_smaller_one() -> None:
    state, now, pauses = wanted(), NOW, []
    while state.rung == 8:
        refused = replace(NONE, refusal=STOCKOUT)
        state, actions = decide(state, refused, now, POLICY)
        assert isinstance(actions[-1], WaitUntil)
        if state.rung == 8:
            pauses.append(actions[-1].at - now)
            now = actions[-1].at
    assert pauses == [60, 120, 240, 480, 600, 600]
    assert actions[0] == Create(state.generation, 4)
    assert state.reason == STOCKOUT.text
    # There it begins anew: the pauses, and the time until the next smaller one.
    state, actions = decide(state, refused, now + POLICY.smaller_after - 1, POLICY)
    assert (state.rung, actions) == (4, (WaitUntil(now + POLICY.smaller_after + 59),))


def test_a_slice_whose_job_spoke_wipes_the_slate() -> None:
    tried = replace(wanted(), refusals=5, mute=2)
    state, _ = decide(tried, there(SliceState.ACTIVE, sign="a"), NOW, POLICY)
    assert (state.refusals, state.mute, state.since, state.spoken) == (0, 0, None, True)
    state, _ = decide(state, NONE, NOW + 5000, POLICY)
    assert (state.generation, state.spoken, state.since) == (2, False, NOW + 5000)


def test_the_time_a_machine_boots_is_not_one_without_capacity() -> None:
    state, _ = decide(wanted(), there(SliceState.ACTIVE), NOW, POLICY)
    late = NOW + POLICY.boot_within + 1
    state, _ = decide(state, there(SliceState.ACTIVE), late, POLICY)
    assert (state.stage, state.rung) == (ProvisionStage.LEAVING, 8)


def test_a_request_that_is_wrong_is_not_repeated() -> None:
    wrong = Refusal("Invalid runtime", may_pass=False)
    _, actions = decide(wanted(), replace(NONE, refusal=wrong), NOW, POLICY)
    assert actions == (End(78, "the cloud refuses: Invalid runtime"),)
    late = Observation({1: CloudSlice(SliceState.FAILED, wrong)})
    state, actions = decide(wanted(), late, NOW, POLICY)
    assert actions[0] == Delete(1)
    assert isinstance(decide(state, NONE, NOW, POLICY)[1][0], End)


@pytest.mark.parametrize("code", list(ExitCode))
def test_the_exit_code_of_the_job_decides_the_end(code: ExitCode) -> None:
    told: list[dict[str, Any]] = [
        {"status": JobStatus("2", int(code))},
        {"machine": MachineReport(exit_code=int(code))},
    ]
    for seen in (there(SliceState.ACTIVE, sign="b", **each) for each in told):
        state, actions = decide(replace(running(), ended_at=NOW), seen, NOW + 90, POLICY)
        if code is ExitCode.NO_CAPACITY:
            assert (state.stage, actions[0]) == (ProvisionStage.LEAVING, Delete(1))
        elif code.run_again:
            assert state.stage is ProvisionStage.SEEN, "the unit on the slice runs it again"
        else:
            assert (state.stage, actions[0]) == (ProvisionStage.ENDING, Delete(1))
            assert isinstance(decide(state, NONE, NOW, POLICY)[1][0], End)


def test_a_machine_gets_time_to_upload_its_last_files() -> None:
    ended = there(SliceState.ACTIVE, sign="b", status=JobStatus("2", 0))
    state, actions = decide(running(), ended, NOW, POLICY)
    assert actions == (WaitUntil(NOW + POLICY.poll),)
    silent, _ = decide(state, ended, NOW + POLICY.upload_patience, POLICY)
    done, _ = decide(state, replace(ended, machine=MachineReport(exit_code=0)), NOW + 1, POLICY)
    assert silent.stage is done.stage is ProvisionStage.ENDING


def test_what_the_job_said_before_this_slice_does_not_count() -> None:
    old = replace(NONE, status=JobStatus("1", 70), sign="1")
    state, actions = decide(take_over(None, "me", POLICY), old, NOW, POLICY)
    assert actions[0] == Create(1, 8)
    state, _ = decide(state, replace(old, slices={1: CloudSlice(SliceState.ACTIVE)}), NOW, POLICY)
    assert (state.stage, state.spoken) == (ProvisionStage.SEEN, False)


def test_an_end_counts_although_its_slice_is_gone() -> None:
    seen = replace(NONE, status=JobStatus("2", 0))
    assert decide(running(), seen, NOW, POLICY)[1] == (End(0, "the job ended with exit code 0"),)


@pytest.mark.parametrize(("spoken", "limit"), [(False, "boot_within"), (True, "silent_after")])
def test_a_slice_whose_job_is_silent_is_replaced_three_times(spoken: bool, limit: str) -> None:
    begun, _ = decide(wanted(), there(SliceState.ACTIVE), NOW, POLICY)
    state = replace(begun, spoken=spoken)
    late = NOW + getattr(POLICY, limit)
    assert decide(state, there(SliceState.ACTIVE), late, POLICY)[0].stage is ProvisionStage.SEEN
    state, _ = decide(state, there(SliceState.ACTIVE), late + 1, POLICY)
    assert (state.stage, state.mute) == (ProvisionStage.LEAVING, 1)
    third = replace(state, stage=ProvisionStage.SEEN, mute=2)
    third, _ = decide(third, there(SliceState.ACTIVE), late + 1, POLICY)
    assert (third.stage, third.exit_code) == (ProvisionStage.ENDING, 70)


def test_a_machine_that_does_not_boot_is_replaced_without_waiting() -> None:
    broken = there(SliceState.ACTIVE, machine=MachineReport(failed="line 9: no network"))
    state, actions = decide(wanted(), broken, NOW, POLICY)
    assert (state.stage, state.mute, actions[0]) == (ProvisionStage.LEAVING, 1, Delete(1))
    assert "line 9: no network" in state.reason


def test_other_slices_of_the_job_are_deleted_and_waited_for() -> None:
    two = Observation({3: CloudSlice(SliceState.ACTIVE), 7: CloudSlice(SliceState.SUSPENDED)})
    state, actions = decide(take_over(None, "me", POLICY), two, NOW, POLICY)
    assert actions[:2] == (Delete(3), Delete(7))
    assert decide(state, NONE, NOW, POLICY)[1][0] == Create(8, 8), "no id is used twice"
    stray = Observation({1: CloudSlice(SliceState.ACTIVE), 7: CloudSlice(SliceState.DELETING)})
    assert decide(running(), stray, NOW, POLICY)[1] == (WaitUntil(NOW + POLICY.poll),)
    assert decide(wanted(), replace(stray, slices={7: stray.slices[7]}), NOW, POLICY)[1] == (
        WaitUntil(NOW + POLICY.poll),
    )


def test_a_changed_config_needs_another_slice() -> None:
    other = replace(POLICY, config="other", rungs=(4,))
    state, actions = decide(running(), there(SliceState.ACTIVE), NOW, other)
    assert actions[0] == Delete(1)
    state, actions = decide(state, NONE, NOW, other)
    assert (actions[0], state.config) == (Create(2, 4), "other")
    leaving = replace(running(), stage=ProvisionStage.LEAVING, rung=1)
    assert decide(leaving, NONE, NOW, other)[1][0] == Create(2, 4)


@pytest.mark.parametrize(
    ("code", "config", "begins"),
    [(0, "config", False), (0, "other", True), (70, "config", True), (79, "config", True)],
)
def test_run_again_after_the_end(code: int, config: str, begins: bool) -> None:
    ended = replace(running(), stage=ProvisionStage.ENDED, exit_code=code, mute=2)
    state = take_over(ended, "you", replace(POLICY, config=config))
    _, actions = decide(state, NONE, NOW, replace(POLICY, config=config))
    assert isinstance(actions[0], Create if begins else End)
    assert state.owner == "you"


def test_a_loop_that_was_killed_goes_on_where_it_stood() -> None:
    ending = replace(running(), stage=ProvisionStage.ENDING, exit_code=70)
    for state in (running(), ending):
        taken = take_over(decode(encode(state)), "you", POLICY)
        assert taken == replace(state, owner="you")


HUGE = b"[" * 200_000
WRONG = b'{"v": 1, "owner": "me", "config": "c", "stage": "ENDED", "generation": "x"}'


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"v": 2}', b'{"v": 1}', b'{"v": 1, "stage": "X"}', HUGE, WRONG]
)
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(data)


# --- for whatever may be seen ---------------------------------------------------------------------

SLICES = st.builds(
    CloudSlice,
    st.sampled_from(SliceState),
    st.none() | st.builds(Refusal, st.just("why"), st.booleans()),
)
CODES = st.none() | st.sampled_from([*map(int, ExitCode), 2, 137])
SEEN = st.builds(
    Observation,
    st.dictionaries(st.integers(1, 4), SLICES, max_size=3),
    st.none() | st.builds(JobStatus, st.sampled_from("ab"), CODES),
    st.builds(MachineReport, st.none() | st.just("broken"), CODES),
    st.sampled_from(["", "a", "b"]),
    st.none() | st.builds(Refusal, st.just("why"), st.booleans()),
)
TURNS = st.lists(st.tuples(SEEN, st.floats(0, 4000)), max_size=20)


@given(TURNS)
def test_at_most_one_slice_is_asked_for_and_only_where_there_is_none(
    turns: list[tuple[Observation, float]],
) -> None:
    state, now = take_over(None, "me", POLICY), NOW
    for seen, passed in turns:
        now += passed
        before = state
        state, actions = decide(state, seen, now, POLICY)
        check(before, state, seen, now, actions)
        if isinstance(actions[0], End):
            return


def check(
    before: ProvisionState,
    after: ProvisionState,
    seen: Observation,
    now: float,
    actions: tuple[Action, ...],
) -> None:
    created = [one for one in actions if isinstance(one, Create)]
    assert len(created) <= 1
    if created:
        assert not seen.slices
        assert created[0] == Create(after.generation, after.rung)
        assert after.rung in POLICY.rungs
        assert now >= after.not_before
    for one in actions:
        if isinstance(one, Delete):
            assert seen.slices[one.generation].state is not SliceState.DELETING
            assert one.generation != after.generation or after.stage in (
                ProvisionStage.LEAVING,
                ProvisionStage.ENDING,
            )
        if isinstance(one, End):
            assert not seen.slices
    assert after.generation >= before.generation
    assert isinstance(actions[-1], End) or (
        isinstance(actions[-1], WaitUntil) and now < actions[-1].at <= now + POLICY.backoff_max
    )
    assert decode(encode(after)) == after
