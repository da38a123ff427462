"""What a bootstrapped program is heard to do: with a real jax and a real Orbax, on the CPU."""

from __future__ import annotations

from math import isnan
from pathlib import Path

import pytest

from supervisor.protocol import worker_path
from supervisor.protocol.messages import (
    CompiledMessage,
    SavedMessage,
    Stage,
    StageMessage,
    StepMessage,
)
from tests.bootstrap.programs import Twice

JAX = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}

TRAINING = """
import sys
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

step = jax.jit(lambda x: x @ x + 1)
x = jnp.ones((4, 4))
with ocp.CheckpointManager(sys.argv[1]) as manager:
    for number in (1, 2):
        x = step(x)
        jax.monitoring.record_scalar("mine/train/loss", 0.5, step=number)
        jax.monitoring.record_scalar("/jax/own", 1, step=99)
    manager.save(2, args=ocp.args.StandardSave({"x": x}))
    manager.wait_until_finished()
    jax.monitoring.clear_event_listeners()
    manager.restore(2)
    jax.monitoring.record_scalar("mine/train/tokens", 7, step=3)
"""


def stages(twice: Twice) -> list[Stage]:
    told = [message for message in twice.messages if isinstance(message, StageMessage)]
    assert all(message.inferred for message in told)
    return [message.stage for message in told]


def test_a_jax_program_with_orbax(twice: Twice, tmp_path: Path) -> None:
    twice.write({"train.py": TRAINING})
    outcome = twice.bootstrapped("train.py", str(tmp_path / "checkpoints"), env=JAX)
    assert outcome.status == 0, outcome.stderr
    order = list(dict.fromkeys(stages(twice)))
    assert order == [Stage.COMPILING, Stage.TRAINING, Stage.SAVING, Stage.RESTORING]
    assert stages(twice)[-1] is Stage.TRAINING
    steps = [message for message in twice.messages if isinstance(message, StepMessage)]
    assert steps[0] == StepMessage(1, {"loss": 0.5})
    assert steps[-1] == StepMessage(3)
    assert 99 not in [message.step for message in steps]
    (saved,) = [message for message in twice.messages if isinstance(message, SavedMessage)]
    assert saved.step == 2
    assert saved.seconds is not None
    assert saved.seconds > 0


def test_steps_are_left_to_the_output_where_it_has_them(twice: Twice, tmp_path: Path) -> None:
    twice.write({"train.py": TRAINING})
    env = {**JAX, "SUPERVISE_STEPS_FROM_OUTPUT": "1"}
    twice.bootstrapped("train.py", str(tmp_path / "checkpoints"), env=env)
    assert not [message for message in twice.messages if isinstance(message, StepMessage)]
    assert Stage.SAVING in stages(twice)


@pytest.mark.parametrize(
    ("body", "stage", "kind"),
    [
        ("if x > 0: return x", "COMPILING", "TracerBoolConversionError"),
        ("return jax.ffi.ffi_call('no_such_target', x)()", "COMPILING", "JaxRuntimeError"),
        ("return jax.pure_callback(lambda v: 1 / 0, x, x)", "TRAINING", "JaxRuntimeError"),
    ],
)
def test_the_record_names_the_stage(twice: Twice, body: str, stage: str, kind: str) -> None:
    program = (
        "import jax, jax.numpy as jnp\n"
        "jax.monitoring.record_scalar('loss', 1.0, step=7)\n"
        f"@jax.jit\ndef f(x):\n    {body}\n"
        "f(jnp.ones(())).block_until_ready()\n"
    )
    twice.write({"train.py": program})
    assert twice.bootstrapped("train.py", env=JAX).status == 1
    record = twice.record
    assert record is not None
    assert record.exceptions[0].type.endswith(kind)
    assert (record.stage, record.step) == (stage, 7)
    assert stages(twice)[-1] == stage


def test_jax_is_never_imported_for_the_program(twice: Twice) -> None:
    twice.write({"train.py": "import sys, threading; print('jax' in sys.modules)"})
    assert twice.bootstrapped("train.py").stdout == b"False\n"


def test_children_that_import_jax_say_nothing(twice: Twice) -> None:
    program = (
        "import os\nif (pid := os.fork()) == 0:\n"
        "    import jax.numpy as jnp\n    print(jnp.ones(3).sum(), flush=True)\n    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    twice.write({"train.py": program})
    assert twice.bootstrapped("train.py", env=JAX).stdout == b"3.0\n"
    assert stages(twice) == []


def test_a_program_that_speaks_for_itself_is_not_interrupted(twice: Twice) -> None:
    program = (
        "from supervisor.protocol.reporter import Reporter\n"
        "from supervisor.protocol.messages import Stage\n"
        "import jax.numpy as jnp\n"
        "Reporter.connect().stage(Stage.EVALUATING)\n"
        "jnp.ones(3).sum()\n"
    )
    twice.write({"train.py": program})
    env = {**JAX, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert twice.bootstrapped("train.py", env=env).status == 0
    told = [message for message in twice.messages if isinstance(message, StageMessage)]
    assert told == [StageMessage(Stage.EVALUATING)]


def test_what_the_program_reports_itself_is_not_inferred(twice: Twice) -> None:
    program = (
        "import jax, jax.numpy as jnp, supervise_worker\n"
        "supervise_worker.step(1)\n"
        "jax.monitoring.record_scalar('mine/loss', 0.5, step=99)\n"
        "jnp.ones(3).sum()\n"
        "supervise_worker.stage('EVALUATING')\n"
        "jnp.ones(4).sum()\n"
        "raise ValueError\n"
    )
    twice.write({"train.py": program})
    folder = str(Path(worker_path.__file__).parent)
    assert twice.bootstrapped("train.py", env={**JAX, "PYTHONPATH": folder}).status == 1
    steps = [message for message in twice.messages if isinstance(message, StepMessage)]
    assert steps == [StepMessage(1)]
    told = [message for message in twice.messages if isinstance(message, StageMessage)]
    assert Stage.COMPILING in [message.stage for message in told], "it had named no stage"
    assert told[-1] == StageMessage(Stage.EVALUATING, 1)
    assert twice.record is not None
    assert (twice.record.stage, twice.record.step) == ("EVALUATING", 1)


def test_a_compilation_that_was_given_up_is_no_cause(twice: Twice) -> None:
    program = (
        "import jax, jax.numpy as jnp\n"
        "try: jax.jit(lambda x: 1 if x else 2)(True)\nexcept Exception: pass\n"
        "try: [][1]\nexcept IndexError: jnp.ones(3).sum()\n"
        "raise ValueError\n"
    )
    twice.write({"train.py": program})
    twice.bootstrapped("train.py", env=JAX)
    assert twice.record is not None
    assert twice.record.stage == "TRAINING"


def test_long_compilations_are_told(twice: Twice) -> None:
    """In the words of jax: one that really takes long would cost the suite as much."""
    program = (
        "import jax\nfor seconds in (0.5, 12.25):\n"
        "    jax.monitoring.record_event_duration_secs(\n"
        "        '/jax/core/compile/backend_compile_duration', seconds, fun_name='jit(step)')\n"
    )
    twice.write({"train.py": program})
    twice.bootstrapped("train.py", env=JAX)
    told = [message for message in twice.messages if isinstance(message, CompiledMessage)]
    assert told == [CompiledMessage(12.25, "jit(step)")]


LOSSES = """
import jax, jax.numpy as jnp, numpy as np, time
for number, (name, value) in enumerate({
    "actor/train/loss": np.float32(0.5),
    "train/loss ": 9.0,
    "/train/train_loss": jnp.asarray(2.0).block_until_ready(),
    "eval/loss": 3.0,
    "train/kl_loss": 3.0,
    "loss": np.ones(2),
    "LOSS": float("nan"),
}.items(), 1):
    jax.monitoring.record_scalar(name, value, step=number)
    time.sleep(0.11)  # a step that comes sooner is not sent
"""


def test_only_the_loss_of_the_training_is_reported_whatever_number_it_is(twice: Twice) -> None:
    """Tunix gives arrays of numpy. One that a device has not computed is not waited for."""
    twice.write({"train.py": LOSSES})
    assert twice.bootstrapped("train.py", env=JAX).status == 0
    steps = [message for message in twice.messages if isinstance(message, StepMessage)]
    losses = {message.step: message.metrics.get("loss") for message in steps}
    assert isnan(losses.pop(7) or 0.0)
    assert losses == {1: 0.5, 2: None, 3: 2.0, 4: None, 5: None, 6: None}
