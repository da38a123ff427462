"""`supervise init`: what it recognises of a script, and that its config validates and runs."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.cli.frameworks import recognise
from supervisor.config.named_program import named_program
from tests.forked import forked
from tests.running import JSON, Result, leaving_nothing

WORKDIR = "p.add_argument('--workdir', default='w')\n"
DEEP = " / 'checkpoints'" * 500


@pytest.mark.parametrize(
    ("source", "command", "name", "directory"),
    [
        ("import orbax.checkpoint as ocp\nocp.CheckpointManager('a/b')", "", "Orbax", "a/b"),
        (
            "import os, torch\nfrom orbax import checkpoint\n"
            "m = checkpoint.CheckpointManager(os.path.abspath('a/b/'), options=None)",
            "",
            "Orbax",
            "a/b/",
        ),
        ("import orbax\norbax.CheckpointManager(directory=Path('x'))", "", "Orbax", "x"),
        ("import orbax\norbax.CheckpointManager(somewhere)", "", "Orbax", None),
        (
            "import jax\np.add_argument('--ckpt-dir', default='out')",
            "",
            "JAX",
            "out",
        ),
        ("import jax\np.add_argument('--ckpt-dir', default='out')", "--ckpt_dir=y", "JAX", "y"),
        ("import flax\nflags.DEFINE_string('ckpt_dir', 'x', 'help')", "", "Flax", "x"),
        ("from kauldron import konfig", "--cfg.workdir=/w", "Kauldron", "/w/checkpoints"),
        ("import tunix, orbax", "--ckpt-dir w", "Tunix", "w"),
        ("import levanter", "--trainer.checkpointer.base_path gs://b/c", "Levanter", "gs://b/c"),
        ("import transformers, torch", "--output_dir o", "Hugging Face Transformers", "o"),
        ("import lightning", "", "Lightning", None),
        ("from keras import layers", "--checkpoint-dir c", "Keras", "c"),
        ("try:\n    import torch\nexcept ImportError:\n    pass", "", "PyTorch", None),
        ("import json", "--save_dir s", None, "s"),
        ("import json", "--save_dir '{model_dir}/s'", None, "{model_dir}/s"),
        ("import json", "--save_dir '$HOME/s'", None, None),
        ("import orbax\norbax.CheckpointManager('runs/{}')", "", "Orbax", None),
        ("import json", "--lr --save_dir", None, None),
        (
            "p.add_argument('-o', '--out', default='results/checkpoints')",
            "",
            None,
            "results/checkpoints",
        ),
        (
            "p.add_argument('-o', '--out', default='results/checkpoints')",
            "-o y/ckpt",
            None,
            "y/ckpt",
        ),
        ("p.add_argument('-o', '--out', default='results/checkpoints')", "-o y", None, None),
        (
            "p.add_argument('-o', '--out', default='results/checkpoints')\nargs.out = g()",
            "",
            None,
            None,
        ),
        ("p.add_argument('--load-dir', default='results/checkpoints')", "", None, None),
        (f"{WORKDIR}os.path.join(args.workdir, 'a', 'ckpt')", "", None, "w/a/ckpt"),
        (f"{WORKDIR}x = Path(args.workdir)\nd = x / 'checkpoints'", "", None, "w/checkpoints"),
        (f"{WORKDIR}Path(FLAGS.workdir).joinpath('ckpt') / str(n)", "--workdir v", None, "v/ckpt"),
        (f"{WORKDIR}x = args.workdir\nx = f(x)\nd = x + '/' / 'checkpoints'", "", None, None),
        (f"{WORKDIR}f(args.workdir + 'a', 'checkpoints', ', '.join(x))", "", None, None),
        (f"{WORKDIR}Path(args.workdir) / 'ckpt', Path(args.workdir, 'ckpts')", "", None, None),
        ("Path('a') / 'checkpoints'", "", None, None),
        ("torch.save(net, f'out/model_{step + 1}.pt')", "", None, "out"),
        ("p = f'out/ckpt-{n}.npz'\nnumpy.savez(p, w=w)", "", None, "out"),
        ("h5py.File(os.path.join('a', f'model-{n}.h5'), 'w')", "", None, "a"),
        (f"{WORKDIR}save_file(w, Path(args.workdir) / f'model_{{n}}.safetensors')", "", None, "w"),
        ("open(f'out/epoch_{n}.pkl', 'wb')", "", None, "out"),
        ("open(f'out/epoch_{n}.pkl', 'rb')", "", None, None),
        ("torch.save(x, f'data/shard_{n}.pt')", "", None, None),
        ("torch.save(x, f'{out}/model_{n}.pt')", "", None, None),
        ("torch.save(x, f'model_{n}.pt')", "", None, None),
        ("torch.save(x, f'a/model_{n}.pt'), torch.save(x, f'b/model_{n}.pt')", "", None, None),
        (f"{WORKDIR}d = Path(args.workdir){DEEP}", "", None, None),
        (f"{WORKDIR}torch.save(x, f'{{args.workdir}}/model_{{n}}.pt')", "", None, "w"),
        (f"{WORKDIR}torch.save(x, f'{{args.other}}/model_{{n}}.pt')", "", None, None),
        ("OUT = 'out'\njnp.savez(f'{OUT}/step_{n:06d}.npz', w=w)", "", None, "out"),
        ("ModelCheckpoint(filepath='c/model-{epoch:02d}.keras')", "", None, "c"),
        ("torch.save(x, 'c/model-{epoch}.pt')", "", None, None),
        (
            "import transformers\ntransformers.TrainingArguments(output_dir='./o')",
            "",
            "Hugging Face Transformers",
            "o",
        ),
        (
            "import transformers\na(output_dir='o'), b(output_dir='p')",
            "",
            "Hugging Face Transformers",
            None,
        ),
        ("import torch\nTrainingArguments(output_dir='o')", "", "PyTorch", None),
        ("import json", "--out gs://b/ckpt/", None, "gs://b/ckpt"),
        ("import json", "--model-path m/checkpoints", None, None),
        (
            f"import orbax\n{WORKDIR}orbax.CheckpointManager(Path(args.workdir) / 'saves')",
            "",
            "Orbax",
            "w/saves",
        ),
    ],
)
def test_the_framework_and_the_folder(
    source: str, command: str, name: str | None, directory: str | None
) -> None:
    argv = ["python", "train.py", *shlex.split(command)]
    found = recognise(ast.parse(source), argv, named_program(argv))
    assert (found.framework.name if found.framework else None, found.directory) == (name, directory)


@pytest.mark.parametrize(
    ("more", "directory"),
    [
        ("base_output_directory=gs://b/out run_name=r", "gs://b/out/r/checkpoints"),
        ("base_output_directory=out run_name=r", "out/r/checkpoints"),
        ("base_output_directory=out", None),
    ],
)
def test_a_module_is_recognised_by_its_name(more: str, directory: str | None) -> None:
    argv = ["python", "-m", "maxtext.train", "base.yml", *more.split()]
    found = recognise(None, argv, named_program(argv))
    assert found.framework is not None
    assert found.framework.name == "MaxText"
    assert found.directory == directory


SCRIPT = """\
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint-dir", default="out/ckpt")
parser.add_argument("--steps", type=int, default=2)
options = parser.parse_args()
for step in range(1, options.steps + 1):
    saved = pathlib.Path(options.checkpoint_dir, str(step))
    saved.mkdir(parents=True)
    (saved / "commit_success.txt").touch()
"""


def test_what_it_writes_validates_and_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with leaving_nothing() as mark:
        env = {**os.environ, **mark}
        written = forked(
            "init", "--success-step", "3", "train.py", "--", "--steps", "3", cwd=tmp_path
        )
        assert (written.returncode, written.stderr) == (0, "")
        assert "recognised: no known framework; checkpoints in out/ckpt" in written.stdout
        config = tmp_path / "trainer.yaml"
        assert "# The step that the program must have completed" in config.read_text()
        assert forked("validate", str(config), cwd=tmp_path).returncode == 0
        done = forked("run", str(config), *JSON, env=env, cwd=tmp_path)
    (place,) = (tmp_path / "runs").iterdir()
    result = Result(done.returncode, done.stdout, done.stderr, place)
    assert result.code == 0, result.err
    assert result.event("attempt-ended")["newest_committed_step"] == 3


@pytest.mark.parametrize(
    ("model_dir", "told"),
    [("run", "where it saves is found while it runs"), ("gs://b/run", "set checkpoint.directory")],
)
def test_what_becomes_of_a_folder_that_is_not_recognised_is_told(
    model_dir: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    result = forked("init", "--model-dir", model_dir, "train.py", cwd=tmp_path)
    shown = (
        f"recognised: no known framework; the folder of its checkpoints was not recognised: {told}"
    )
    assert result.stdout.startswith(f"{shown}\n"), result.stderr
    assert f"which {shown}." in (tmp_path / "trainer.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "is_told"),
    [([], True), (["--config", "c"], False), (["--conf=c"], False), (["-cx"], False)],
)
def test_a_required_option_that_the_command_lacks_is_told(
    words: list[str], is_told: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "parser.add_argument('-c', '--config', required=True)\n"
        "parser.add_argument('--lr', required=False)\n"
    )
    done = forked("init", "train.py", "--", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("note: train.py requires --config: add it to command.argv" in done.stdout) == is_told
    assert "--lr" not in done.stdout


def test_a_required_option_of_absl_may_be_given(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("flags.DEFINE_string('w', None, 'help', required=True)\n")
    assert "train.py requires --w: " in forked("init", cwd=tmp_path).stdout
    words = ("--output", "b.yaml", "train.py", "--", "--w=x")
    assert "requires" not in forked("init", *words, cwd=tmp_path).stdout


def test_options_of_subcommands_are_not_required(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "fit = parser.add_subparsers().add_parser('fit')\n"
        "fit.add_argument('--config', required=True)\n"
    )
    assert "requires" not in forked("init", cwd=tmp_path).stdout


def test_what_only_a_person_knows_is_told_with_an_example(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import json")
    done = forked("init", cwd=tmp_path)
    assert "note: command.success is not set: exit code 0 alone means success" in done.stdout
    assert "note: command.progress is not set: " in done.stdout
    config = tmp_path / "trainer.yaml"
    config.write_text(re.sub(r"# (progress|success): ", r"\1: ", config.read_text()))
    shown = forked("validate", "trainer.yaml", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "pattern: ^step +(\\d+)\n" in shown.stdout
    assert "step: 1000\n" in shown.stdout
    given = forked("init", "--success-step", "3", "--output", "b.yaml", cwd=tmp_path)
    assert "command.success is not set" not in given.stdout
    assert "# success" not in (tmp_path / "b.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        ([], ["train.py"]),
        (["train.py", "--", "--a", "b"], ["train.py", "--a", "b"]),
        (["--", "nice", "python3", "train.py"], ["nice", "python3", "train.py"]),
        (["run.sh", "--", "x"], ["./run.sh", "x"]),
    ],
)
def test_the_command_in_it(words: list[str], argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    done = forked("init", "--output", "c.yaml", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    shown = forked("validate", "c.yaml", cwd=tmp_path).stdout.splitlines()[0]
    assert shown.split(": ", 1)[1].split()[-len(argv) :] == argv


def test_the_environment_of_the_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import jax")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = forked("init", env=env, cwd=tmp_path)
    told = "train.py imports jax, but its interpreter finds no jax: .venv/bin/python; name the"
    assert f"note: {told}" in done.stdout
    assert "- .venv/bin/python\n" in (tmp_path / "trainer.yaml").read_text()
    assert f"# {told}" in forked("validate", "trainer.yaml", cwd=tmp_path).stdout
    forked("init", "--output", "b.yaml", env={**env, "VIRTUAL_ENV": "/else"}, cwd=tmp_path)
    assert ".venv" not in (tmp_path / "b.yaml").read_text()


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (os.mkfifo, "is a FIFO, not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device, not a regular file"),
        (Path.mkdir, "is a directory, not a regular file"),
        (lambda path: path.write_bytes(b"#" * ((1 << 20) + 1)), "has more than 1 MiB"),
        (lambda path: path.write_text("x = 1\nx = (" + "(" * 100_000), "is not Python 3."),
        (lambda path: path.write_bytes(b"\0"), "is not Python 3."),
    ],
    ids=["fifo", "link to a device", "directory", "large", "nested", "zeros"],
)
def test_a_script_that_cannot_be_read_is_told(
    plant: Callable[[Path], object], why: str, tmp_path: Path
) -> None:
    plant(tmp_path / "train.py")
    done = forked("init", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (note,) = (line for line in done.stdout.splitlines() if line.startswith("note: train.py"))
    assert note.startswith(f"note: train.py {why}")
    assert note.endswith("nothing in the config comes from it: check that it is your script")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "train.py: no such file in {cwd}; name the script: supervise init path/to/train.py"),
        (["gone.py"], "gone.py: no such file in {cwd}"),
        (["there.py", "x"], "before the arguments of the script: supervise init there.py -- x"),
        (["--"], "there is no command behind --"),
        (["there.py", "--output", "there.py"], "--output: there.py exists, and is not overwritt"),
        (["there.py", "--output", ""], "--output: the name of the file is empty"),
    ],
)
def test_what_it_refuses(words: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "there.py").touch()
    done = forked("init", *words, cwd=tmp_path)
    assert done.returncode == 64
    assert told.replace("{cwd}", str(tmp_path)) in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["there.py"]
