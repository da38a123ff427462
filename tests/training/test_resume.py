"""A trainer that is killed and started again ends where one that never was does, to the bit."""

from __future__ import annotations

import signal

import optax
import pytest

from trainer.checkpoint import newest_step
from trainer.train_state import TrainState

from .harness import MakeTrainer, assert_same_bits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_devices", "loop"),
    [(1, {"micro_batch_size": 4}), (4, {"micro_batch_size": 1, "fsdp": 2})],
    ids=["1 device", "4 devices"],
)
def test_killed_at_any_step_it_ends_with_the_same_bits(
    make_trainer: MakeTrainer, num_devices: int, loop: dict[str, int]
) -> None:
    whole = make_trainer("whole", num_devices, **loop)
    output = whole.finish()
    assert "accumulation 2" in output

    killed = make_trainer("killed", num_devices, **loop)
    # Before the first checkpoint; between two; and at a checkpoint step, before its save.
    for step in (3, 11, 15):
        assert killed.run({"step": step, "signal": "SIGKILL"}).returncode == -signal.SIGKILL
    assert newest_step(killed.checkpoints) in (5, 10)
    output = killed.finish()

    assert "restored step" in output
    assert_same_bits(killed.state(17), whole.state(17))


def test_sigterm_saves_at_the_boundary_and_kills(
    make_trainer: MakeTrainer, undisturbed: TrainState
) -> None:
    stopped = make_trainer("stopped", max_inflight_computations=1)
    twice = [{"step": 7, "signal": "SIGTERM"}, {"step": 7, "signal": "SIGTERM"}]
    assert stopped.run(*twice).returncode == -signal.SIGTERM
    assert newest_step(stopped.checkpoints) == 7
    assert "restored step 7" in stopped.finish()
    assert_same_bits(stopped.state(17), undisturbed)


def test_sigterm_at_a_committed_step_does_not_save_it_again(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(max_inflight_computations=1)
    done = trainer.run({"step": 5, "signal": "SIGTERM"})
    assert done.returncode == -signal.SIGTERM
    assert done.stdout.count("step 5  checkpoint committed") == 1


def test_what_is_not_committed_is_neither_restored_nor_in_the_way(
    make_trainer: MakeTrainer,
) -> None:
    trainer = make_trainer(max_steps=5)
    trainer.finish()
    (trainer.checkpoints / "10").mkdir()
    (trainer.checkpoints / "10" / "results.csv").write_text("1,2\n")
    temporary = trainer.checkpoints / "11.orbax-checkpoint-tmp"
    (temporary / "params").mkdir(parents=True)

    trainer.mapping["trainer"]["init"]["loop"]["max_steps"] = 10
    output = trainer.finish()

    assert "has what this job did not save: '10', '11.orbax-checkpoint-tmp'" in output
    assert "restored step 5" in output
    assert newest_step(trainer.checkpoints) == 10
    assert (trainer.checkpoints / "foreign" / "10-1" / "results.csv").read_text() == "1,2\n"
    assert (temporary / "params").is_dir()
    assert "nothing to do" in trainer.finish(), "all steps are done"


def test_a_phase_starts_from_the_one_before(make_trainer: MakeTrainer) -> None:
    first = make_trainer("first", max_steps=5)
    first.finish()
    # A learning rate that vanishes beside every parameter: what is loaded stays to the bit.
    for load, updates in (("params", 1), ("all", 6)):
        second = make_trainer(load, max_steps=1)
        second.mapping["trainer"]["start_from"] = {
            "directory": str(first.checkpoints),
            "load": load,
        }
        second.mapping["trainer"]["init"]["optimizer"] = {"name": "adamw", "learning_rate": 1e-38}
        second.mapping["trainer"]["init"]["seed"] = 7
        assert "of step 5 from" in second.finish()
        state = second.state(1)
        assert state.step == 1
        assert_same_bits(state.params, first.state(5).params)
        assert optax.tree.get(state.optimizer, "count") == updates
