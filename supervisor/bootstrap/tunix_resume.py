"""Says where Tunix cannot resume to the same numbers.

Tunix keeps weights, optimizer state and step in its checkpoints. A run that depends on more than
these goes on after a restart, but trains otherwise than without one, and nothing in its output says
so. Its trainers are looked at once they are made: by then all settings are known, and nothing of
the library has to be understood but a few attributes.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import ModuleType
    from typing import Any

_DISTRIBUTION = "google-tunix"
TESTED = "0.1."
"""How the versions begin of which these facts are known. Nothing is said of others."""
_DIFFERS = "a restart of this run goes on, but does not give the numbers of an undisturbed one: "


class ResumeCheck:
    """Looks at the trainers of Tunix that the program makes."""

    def __init__(
        self,
        is_here: Callable[[], bool],
        frames: AbstractContextManager[None],
        say: Callable[[bytes], bool],
    ) -> None:
        """See `SaveOnSigterm`."""
        self._is_here = is_here
        self._frames = frames
        self._say = say
        self._dropout = 0.0
        """The highest dropout of LoRA rules so far."""

    def watch_qwix(self, module: ModuleType) -> None:
        """Look at each `LoraProvider` of `module`, `qwix`."""
        self._after_init(module, "LoraProvider", self._note_dropout)

    def watch_trainer(self, module: ModuleType) -> None:
        """Look at each `PeftTrainer` of `module`, `tunix.sft.peft_trainer`."""
        self._after_init(module, "PeftTrainer", self._look_at_trainer)

    def watch_learner(self, module: ModuleType) -> None:
        """Look at each `RLLearner` of `module`, `tunix.rl.rl_learner`."""
        self._after_init(module, "RLLearner", self._look_at_learner)

    def _after_init(self, module: ModuleType, name: str, look: Callable[[Any], object]) -> None:
        """Call `look` with each instance of the class `name` of `module`, once it is initialised.
        Other versions may lack that class."""
        from functools import wraps

        made: Any = getattr(module, name, None)
        if made is None:
            return
        init, is_here, frames = made.__init__, self._is_here, self._frames

        @wraps(init)
        def initialise(instance: Any, *args: Any, **named: Any) -> None:
            with frames:
                init(instance, *args, **named)
            if is_here():
                try:
                    look(instance)
                except Exception:
                    return  # what we do not understand is none of the program's business

        made.__init__ = initialise

    def _note_dropout(self, provider: Any) -> None:
        rates = (float(getattr(rule, "dropout", 0.0)) for rule in provider._rules)
        self._dropout = max(self._dropout, *rates)

    def _look_at_trainer(self, trainer: Any) -> None:
        if self._dropout > 0.0 and _saves(trainer.config):
            self._tell(
                f"LoRA dropout is {self._dropout:g}, and the state of its random numbers is not "
                "saved"
            )

    def _look_at_learner(self, learner: Any) -> None:
        cluster = learner.rl_cluster.cluster_config
        if _saves(cluster.training_config):
            for what in _of_learner(learner, cluster):
                self._tell(what)

    def _tell(self, what: str) -> None:
        version = _version()
        if version.startswith(TESTED):
            text = f"Tunix {version}: {_DIFFERS}{what}"
            body = {"v": 1, "kind": "notice", "code": "resume-differs", "text": text}
            self._say(json.dumps(body).encode() + b"\n")


def _of_learner(learner: Any, cluster: Any) -> Iterator[str]:
    """Yields what of an RL run is not in its checkpoints."""
    training = cluster.training_config
    iterations = getattr(learner.algo_config, "num_iterations", 1)
    if iterations > 1:
        yield f"num_iterations is {iterations}, and some batches are never trained"
    mini, micro = training.mini_batch_size, training.train_micro_batch_size
    if learner._data_shuffle_seed is not None and micro is not None and micro < mini:
        yield (
            f"data_shuffle_seed is given, with micro-batches of {micro} in mini-batches of {mini}, "
            "and the state of the shuffle is not saved"
        )
    meshes = {role.value: mesh for role, mesh in cluster.role_to_mesh.items()}
    if meshes["actor"] != meshes["rollout"]:
        yield "the rollout has a mesh of its own, and samples its first step with the first weights"


def _saves(training: Any) -> bool:
    """Whether a trainer saves checkpoints at all."""
    return training.checkpoint_root_directory is not None


def _version() -> str:
    """Returns the installed version of Tunix; empty: it is not known."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return ""
