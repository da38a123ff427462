"""The programs of `examples/programs`, one row each: how long they run, and what they can promise.

Each is a file that knows nothing of this project. Its head names its libraries (PEP 723);
`environments` makes an environment of them, and `test_programs` runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "programs"


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and how it is run."""

    name: str
    script: str
    """Its file in `examples/programs`: a `.py`, or a `.sh` that bash runs."""
    steps: int
    every: int
    """Steps between two saves."""
    counts_epochs: bool = False
    """Whether its checkpoints have the number of an epoch, which is as long as `every`."""
    python: tuple[int, int] = (3, 11)
    """The version of Python of its environment."""
    deterministic: bool = True
    """Whether a run that was interrupted ends with the bits of one that was not."""
    in_ci: bool = False
    """Whether CI runs it too, in the environment of this project, which must have all it needs."""
    why_not_deterministic: str = ""
    uses_jax: bool = True
    """Whether it uses JAX, without which no standby of it is made."""
    is_paced: bool = True
    """Whether its option `--step-seconds` says how long a step takes at least."""
    options: tuple[str, ...] = ()
    """Options of `supervise run` that it cannot do without."""

    @property
    def path(self) -> Path:
        """The file of the program."""
        return FOLDER / self.script

    @property
    def last_number(self) -> int:
        """The number of its last checkpoint."""
        return self.steps // self.every if self.counts_epochs else self.steps

    @property
    def last_stop(self) -> int:
        """The number of the checkpoint that has room for five more behind it: on a machine whose
        disk is busy, a commit may be told while the program makes the next ones."""
        return self.last_number - 5 * self._apart

    @property
    def _apart(self) -> int:
        return 1 if self.counts_epochs else self.every

    def is_due(self, number: int) -> bool:
        """Whether it saves a checkpoint of this number in any case, so not because of SIGTERM."""
        return number % self._apart == 0

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the program is started with, by itself and under supervise."""
        return ("--workdir", "out", "--steps", str(self.steps), "--every", str(self.every))

    @property
    def unpaced(self) -> tuple[str, ...]:
        """The further arguments with which it runs as fast as it can."""
        return ("--step-seconds", "0") if self.is_paced else ()


PROGRAMS = (
    Program("orbax", "orbax_loop.py", 800, 40, in_ci=True),
    Program("orbax v1", "orbax_v1_loop.py", 800, 40),
    Program("flax msgpack", "flax_msgpack.py", 800, 40),
    Program("torch", "torch_loop.py", 800, 40, uses_jax=False),
    Program(
        "bash",
        "bash_loop.sh",
        800,
        40,
        in_ci=True,
        uses_jax=False,
        options=("--set", r"trainer.init.checkpoint.pattern=step-(\d+)\.txt"),
    ),
    Program("equinox", "equinox_loop.py", 800, 40),
    Program("Keras", "keras_fit.py", 800, 40, counts_epochs=True),
    Program("Lightning", "lightning_trainer.py", 800, 40, uses_jax=False),
    Program("Levanter", "levanter_checkpointer.py", 800, 40, python=(3, 12)),
    Program("Tunix, fine-tuning", "tunix_sft.py", 320, 20),
    Program("Tunix, GRPO", "tunix_grpo.py", 320, 20),
    Program("Hugging Face Trainer", "hugging_face_trainer.py", 480, 20, uses_jax=False),
    Program("flax gemma", "flax_gemma.py", 800, 40),
    Program("Kauldron", "kauldron_autoencoder.py", 320, 20, python=(3, 12)),
    Program("MaxText", "maxtext_train.py", 800, 40, python=(3, 12), is_paced=False),
)
