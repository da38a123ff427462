"""Measures our trainer beside Tunix's `PeftTrainer`, on a tiny Llama.

    python -m benchmarks.fine_tuning [--quick] [--json FILE]

Both train a model of the same shape with the same batch size and optimizer on one CPU device, all
weights (`full`) or adapters of rank 4 (`lora`), with an Orbax checkpoint every 200 steps. Neither
has a supervisor. They run in turns, each in a folder of its own with JAX's compilation cache (ours
also keeps its compiled steps). In every round

* it starts, and the seconds to the end of its first step are measured: `cold` in the first round,
  where the cache is empty, `start` in the others;
* steps 51 to 190 give the tokens a second;
* after step 250, when the checkpoint is committed, its peak memory is read, and it is killed by
  SIGKILL;
* it starts again: `resume` is the time to the end of the first step.

Our trainer reads and tokenizes files and tells each step when it is complete; Tunix gets ready
arrays. A step of Tunix is witnessed by its own hook.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.contest import ROOT, FailedError, run_contestant, wait_for
from benchmarks.peers import Peer, UnavailableError
from benchmarks.report import Report, options
from benchmarks.training import cache
from supervisor.prepare import prepare
from supervisor.protocol.committed import committed_steps
from supervisor.protocol.environment import EXECUTABLES, NUM_CPU_DEVICES

_EVERY = 200
_MEASURED = (50, 190)
"""The steps between which the rate is measured: there is no save among them."""
_KILLED = 250
_TOKENS = 8 * 32
"""Of a step."""
_LONGEST = 300.0
KINDS = ("full", "lora")
NAMES = ("ours", "tunix")
TUNIX = Peer(
    "tunix",
    (
        "google-tunix==0.1.7",
        "flax==0.12.8",
        "jax==0.10.2",
        "numpy==2.4.6",
        "optax==0.2.8",
        "orbax-checkpoint==0.12.8",
        "qwix==0.1.8",
    ),
    lambda bin_, argv, folder: [str(bin_ / "python"), *argv],
)

Steps = list[tuple[float, int]]
"""When each step ended, and its number."""


def main() -> None:
    """Measure in turns and report."""
    given = options(__doc__)
    rounds = 2 if given.quick else 10
    report = Report("fine_tuning")
    for kind in KINDS:
        found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        with tempfile.TemporaryDirectory() as place:
            for number in range(rounds + 1):
                for name in NAMES:
                    try:
                        measured = _round(name, kind, Path(place) / name)
                    except (FailedError, UnavailableError) as error:
                        report.left_out[f"{kind}_{name}"] = str(error)
                        continue
                    for what, value in measured.items():
                        is_cold = number == 0
                        if is_cold and what == "start":
                            found[name, "cold"].append(value)
                        elif not is_cold:
                            found[name, what].append(value)
        _reported(report, kind, found)
    report.finish(given.json)


def _reported(report: Report, kind: str, found: dict[tuple[str, str], list[float]]) -> None:
    units = {"cold": "s", "start": "s", "resume": "s", "rate": "tokens_per_s", "memory": "mb"}
    for what, unit in units.items():
        for name in NAMES:
            report.spread(f"{kind}_{what}_{name}", unit, found[name, what])
        ours, theirs = (f"{kind}_{what}_{name}_{unit}" for name in NAMES)
        report.ratio(f"{kind}_{what}_over_tunix", ours, theirs)


def _round(name: str, kind: str, place: Path) -> dict[str, float]:
    """Returns what one round in `place` measures; caches there are used."""
    work = place / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    start, environ = _contestant(name, kind, place)
    with run_contestant(start, environ, place) as process:
        began, steps = time.monotonic(), _Witness(place / "steps")
        first = steps.wait(bool, process)[0][0]
        found = steps.wait(lambda found: found[-1][1] >= _KILLED, process)
        wait_for("commit", partial(_has_commit, work / "checkpoints"), process, _LONGEST)
        memory = _peak_memory(process.pid)
        process.send_signal(signal.SIGKILL)
    at = {number: when for when, number in found}
    seconds = at[_MEASURED[1]] - at[_MEASURED[0]]
    with run_contestant(start, environ, place) as process:
        again, steps = time.monotonic(), _Witness(place / "steps")
        resumed = steps.wait(bool, process)[0]
    if resumed[1] <= _EVERY:
        raise FailedError(f"{name} did not resume: it went on with step {resumed[1]}")
    return {
        "start": first - began,
        "rate": (_MEASURED[1] - _MEASURED[0]) * _TOKENS / seconds,
        "memory": memory,
        "resume": resumed[0] - again,
    }


def _has_commit(checkpoints: Path) -> bool:
    return any(step for step, _ in committed_steps(checkpoints))


class _Witness:
    """The steps that a process records from now on."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._skipped = record.stat().st_size if record.exists() else 0

    def wait(self, condition: Callable[[Steps], bool], process: Any) -> Steps:
        """Wait until the condition holds of the steps so far, of which there is one; returns
        them."""

        def holds() -> bool:
            steps = self._steps()
            return bool(steps) and condition(steps)

        wait_for("the next step", holds, process, _LONGEST)
        return self._steps()

    def _steps(self) -> Steps:
        if not self._record.exists():
            return []
        with self._record.open() as file:
            file.seek(self._skipped)
            words = [line.split() for line in file.read().rpartition("\n")[0].splitlines()]
        return [(float(at), int(number)) for at, _, number in words]


def _peak_memory(pid: int) -> float:
    """Returns the most megabytes that a process has held at once."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) / 1024


def _contestant(name: str, kind: str, place: Path) -> tuple[list[str], dict[str, str]]:
    environ = {"BENCHMARK_WITNESS": str(place / "steps"), "JAX_PLATFORMS": "cpu", **cache(place)}
    if name == "tunix":
        program = str(ROOT / "benchmarks" / "tunix_loop.py")
        argv = [program, str(place / "work"), str(_EVERY), kind]
        return TUNIX.prepared(argv, place), environ | {"PYTHONPATH": ""}
    path = place / "trainer.yaml"
    path.write_text(yaml.safe_dump(config(kind, place / "work")))
    plan = prepare(path, ()).plans[0]
    params = place / "params.yaml"
    params.write_text(yaml.safe_dump(plan.params, sort_keys=False))
    witness = os.pathsep.join((str(ROOT / "benchmarks" / "witness"), str(ROOT)))
    environ |= {"PYTHONPATH": witness, EXECUTABLES: str(place / "executables")}
    environ |= {**plan.env, NUM_CPU_DEVICES: "1"}
    return [part.replace("{params}", str(params)) for part in plan.argv], environ


def config(kind: str, model_dir: Path) -> dict[str, Any]:
    """Returns our config of what `tunix_loop` trains."""
    lora = {"lora": {"rank": 4, "alpha": 8.0}} if kind == "lora" else {}
    init = {
        "model_dir": str(model_dir),
        "model": {
            "num_layers": 2,
            "hidden_size": 64,
            "mlp_size": 128,
            "num_heads": 4,
            "num_kv_heads": 2,
            "vocab_size": 264,
        },
        "optimizer": {"name": "adamw", "learning_rate": 1e-3},
        "loop": {"max_steps": 1_000_000, "global_batch_size": 8, "log_every": 1},
        "checkpoint": {"every": _EVERY, "keep": 2},
        "devices": {"platform": "cpu", "count": 1},
        "autorestart": {"max_num_restarts": 0},
        **lora,
    }
    data = {"paths": "stdlib/json/*.py", "sequence_length": 32}
    return {"trainer": {"init": init, "fit": {"train_dataloader": data}}}


if __name__ == "__main__":
    main()
