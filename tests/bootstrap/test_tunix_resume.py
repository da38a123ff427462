"""What a program is heard to say of Tunix: with packages that have the interface of google-tunix.

Only what is looked at is in them, under the names of google-tunix 0.1.7 and qwix 0.1.8.
"""

from __future__ import annotations

import pytest

from supervisor.protocol.messages import NoticeMessage
from tests.bootstrap.programs import Twice

QWIX = """
from types import SimpleNamespace

class LoraProvider:
    def __init__(self, rules=None, **rule):
        self._rules = rules if rules is not None else [SimpleNamespace(**{"dropout": 0.0, **rule})]
"""
TRAINER = """
class PeftTrainer:
    def __init__(self, model, optimizer, training_config):
        "The trainer."
        if model is None:
            raise ValueError("no model")
        self.config = training_config
"""
LEARNER = """
import enum

class Role(enum.Enum):
    ACTOR = "actor"
    ROLLOUT = "rollout"

class RLLearner:
    def __init__(self, rl_cluster, algo_config, reward_fns, data_shuffle_seed=None):
        self.rl_cluster, self.algo_config = rl_cluster, algo_config
        self._data_shuffle_seed = data_shuffle_seed

class GRPOLearner(RLLearner):
    pass
"""
PACKAGES = {
    "qwix.py": QWIX,
    "tunix/__init__.py": "from tunix.rl import rl_learner\nfrom tunix.sft import peft_trainer\n",
    "tunix/rl/__init__.py": "",
    "tunix/rl/rl_learner.py": LEARNER,
    "tunix/sft/__init__.py": "",
    "tunix/sft/peft_trainer.py": TRAINER,
}
BEGIN = """
from types import SimpleNamespace as Made
import qwix
from tunix.rl.rl_learner import GRPOLearner, Role
from tunix.sft.peft_trainer import PeftTrainer

def sft(dropout, root="/checkpoints"):
    qwix.LoraProvider(module_path=".*", rank=4, alpha=8.0, dropout=dropout)
    PeftTrainer("model", "optimizer", Made(checkpoint_root_directory=root))

def rl(iterations=1, seed=None, mini=8, micro=8, rollout="mesh", root="/checkpoints"):
    training = Made(
        checkpoint_root_directory=root, mini_batch_size=mini, train_micro_batch_size=micro
    )
    meshes = {Role.ACTOR: "mesh", Role.ROLLOUT: rollout}
    cluster = Made(cluster_config=Made(training_config=training, role_to_mesh=meshes))
    GRPOLearner(cluster, Made(num_iterations=iterations), None, data_shuffle_seed=seed)
"""


def said(twice: Twice, program: str, version: str = "0.1.7") -> list[str]:
    """What follows from the settings of a program, as it is told."""
    metadata = f"Metadata-Version: 2.1\nName: google-tunix\nVersion: {version}\n"
    folder = f"google_tunix-{version}.dist-info"
    twice.write({**PACKAGES, f"{folder}/METADATA": metadata, "train.py": BEGIN + program})
    outcome = twice.bootstrapped("train.py")
    assert outcome.status == 0, outcome.stderr
    notices = [message for message in twice.messages if isinstance(message, NoticeMessage)]
    assert {notice.code for notice in notices} <= {"resume-differs"}
    assert all(notice.text.startswith(f"Tunix {version}: a restart") for notice in notices)
    return [notice.text.partition("undisturbed one: ")[2] for notice in notices]


@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("sft(0.1)", "LoRA dropout is 0.1"),
        ("rl(iterations=2)", "num_iterations is 2"),
        ("rl(seed=1, micro=2)", "data_shuffle_seed is given, with micro-batches of 2"),
        ("rl(rollout='another mesh')", "the rollout has a mesh of its own"),
    ],
)
def test_what_a_checkpoint_of_tunix_lacks_is_told(twice: Twice, program: str, what: str) -> None:
    (told,) = said(twice, program)
    assert told.startswith(what)


def test_nothing_is_told_of_what_resumes_identically_or_saves_nothing(twice: Twice) -> None:
    program = (
        "sft(0.0)\nrl()\nrl(seed=1)\nrl(micro=2)\nrl(micro=None, mini=None, seed=1)\n"
        "sft(0.1, root=None)\nrl(iterations=2, root=None)"
    )
    assert said(twice, program) == []


def test_nothing_is_told_of_other_versions(twice: Twice) -> None:
    assert said(twice, "sft(0.1)\nrl(iterations=2)", version="0.2.0") == []


def test_an_error_of_our_look_never_reaches_the_program(twice: Twice) -> None:
    program = "PeftTrainer('model', 'optimizer', None)\nGRPOLearner(None, None, None)\n"
    assert said(twice, "qwix.LoraProvider(rules=[Made(dropout=0.5)])\n" + program) == []


def test_an_error_of_the_program_is_as_without_us(twice: Twice) -> None:
    twice.write({**PACKAGES, "train.py": BEGIN + "PeftTrainer(None, None, None)"})
    alone, ours = twice.plainly("train.py"), twice.bootstrapped("train.py")
    assert (ours.status, ours.stderr) == (alone.status, alone.stderr)
    assert b"no model" in ours.stderr


def test_a_package_of_that_name_without_these_classes_is_left_alone(twice: Twice) -> None:
    twice.write({"tunix.py": "", "train.py": "import tunix; print(tunix.__name__)"})
    outcome = twice.bootstrapped("train.py")
    assert (outcome.status, outcome.stdout) == (0, b"tunix\n")
