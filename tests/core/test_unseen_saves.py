"""When a program's checkpoints are taken to be somewhere else than where they are looked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.events import CheckpointCommitted, WorkerReported, WorkersGone
from supervisor.core.unseen_saves import UnseenSaves
from supervisor.protocol.messages import Message, SavedMessage, StepMessage


def says(*messages: Message) -> list[WorkerReported]:
    return [WorkerReported(0.0, 1, 0, message) for message in messages]


def after(
    unseen: UnseenSaves, *events: WorkerReported | CheckpointCommitted | WorkersGone
) -> UnseenSaves:
    for event in events:
        unseen = unseen.after(event)
    return unseen


def gone(committed: int | None = None) -> WorkersGone:
    return WorkersGone(0.0, 1, None, resumed_from=None, step=None, committed=committed)


def test_saves_without_a_commit_are_a_reason() -> None:
    once = after(UnseenSaves().begun(None), *says(SavedMessage(None)))
    assert once.reason is None, "its commit may be still to come"
    assert after(once, gone()).reason == "the program has saved"
    assert after(once, *says(SavedMessage(None))).reason == "the program has saved"
    assert after(once, *says(SavedMessage(None)), CheckpointCommitted(0.0, 0, 5)).reason is None
    assert after(once, gone(5)).reason is None


def test_steps_that_rise_from_attempt_to_attempt_are_a_reason() -> None:
    first = after(UnseenSaves().begun(None), *says(StepMessage(1), StepMessage(50)), gone())
    assert first.reason is None
    again = after(first.begun(None), *says(StepMessage(1)))
    assert again.reason is None
    lump = StepMessage(99, first=31, in_output=True)
    assert after(first.begun(None), *says(lump)).reason == (
        "the program goes on at step 31, so it has saved"
    )
    silent = after(first.begun(None), gone())
    assert after(silent.begun(None), *says(lump)).reason is not None, "an attempt without steps"


def test_recognised_steps_say_that_a_program_goes_on_but_are_compared_with_no_checkpoint() -> None:
    low, high = (StepMessage(step, in_output=True, recognised=True) for step in (1, 31))
    first = after(UnseenSaves().begun(None), *says(low), gone())
    assert after(first.begun(None), *says(high)).reason is not None
    other = after(UnseenSaves().begun(9000), *says(low), gone(9000))
    assert other.reason is None, "it may count batches, and the checkpoints steps"


def test_higher_steps_of_another_run_are_a_reason() -> None:
    old = after(UnseenSaves().begun(9000), CheckpointCommitted(0.0, 0, 9000), *says(StepMessage(1)))
    assert old.reason is None, "it may get there"
    ended = after(old, gone(9000))
    assert ended.reason is not None
    assert "step 9000 was there before" in ended.reason
    assert after(UnseenSaves().begun(30), *says(StepMessage(31)), gone(30)).reason is None
    assert after(old, gone(9001)).reason is None


def test_a_lower_step_that_is_new_is_a_commit_and_an_old_one_is_none() -> None:
    """Below a base model the program's own steps are lower."""
    base = after(UnseenSaves().begun(9000), *says(StepMessage(1)))
    assert after(base, CheckpointCommitted(0.0, 0, 5, new=True), gone(9000)).reason is None
    assert after(base, CheckpointCommitted(0.0, 0, 5), gone(9000)).reason is not None
    twice = (CheckpointCommitted(0.0, 0, 5, new=True), CheckpointCommitted(0.0, 0, 5))
    assert after(base, *twice, gone(9000)).reason is None


_EVENTS = st.one_of(
    st.builds(lambda step: WorkerReported(0.0, 1, 0, StepMessage(step)), st.integers(0, 9)),
    st.just(WorkerReported(0.0, 1, 0, SavedMessage(None))),
    st.builds(gone, st.none() | st.integers(0, 9)),
)


@given(st.lists(_EVENTS), st.lists(_EVENTS), st.none() | st.integers(0, 20))
def test_a_new_commit_settles_it_for_good(
    before: list[WorkerReported | WorkersGone],
    later: list[WorkerReported | WorkersGone],
    newest: int | None,
) -> None:
    seen = after(UnseenSaves().begun(newest), *before, CheckpointCommitted(0.0, 0, 21), *later)
    assert seen.reason is None
    assert after(seen.begun(21), *later, gone()).reason is None
