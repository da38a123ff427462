"""What programs print while they train: the lines of well-known libraries, and what is no step.

The lines have the form that the libraries give them; the numbers are made up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Log:
    """Lines, one a second, and the step that a person reads from them."""

    lines: tuple[str, ...]
    step: int | None
    """None: the lines do not say which step of the training it is."""


def _rising(line: Callable[[int], str], *, by: int = 1, number: int = 20) -> tuple[str, ...]:
    return tuple(line(step) for step in range(by, by * number + 1, by))


def _bar(name: str, done: int, total: int, after: str = "", unit: str = "it/s") -> str:
    percent = 100 * done // total
    drawn = "█" * (percent // 10) + " " * (10 - percent // 10)
    times = f"[00:{done % 60:02d}<01:12,  1.19{unit}{after}]"
    return f"{name}{percent:3d}%|{drawn}| {done}/{total} {times}"


def _trainer_bar(quote: str = "", total: int = 900) -> Iterator[str]:
    """The bar of the Hugging Face Trainer, and the metrics that it prints beside it; newer ones
    `quote` them."""
    yield from (_bar("Map: ", 50 * n, 1000, unit=" examples/s") for n in range(1, 21))
    for step in range(1, 31):
        yield _bar("", step, total)
        if step % 10 == 0:
            yield f"{{'loss': {quote}{3 / step:.4f}{quote}, 'epoch': {quote}0.02{quote}}}"
            yield from (_bar("", n, 8) for n in range(1, 9))


def _keras(epochs: int, total: int = 6) -> Iterator[str]:
    for epoch in range(1, epochs + 1):
        yield f"Epoch {epoch}/9"
        for batch in range(1, total + 1):
            yield f"{batch}/{total} [==>....] - ETA: 3s - loss: {1 / batch:.4f} - accuracy: 0.51"
        yield f"{total}/{total} [======] - 3s 12ms/step - loss: 0.1000 - val_loss: 0.2000"


def _keras_3() -> Iterator[str]:
    """What Keras 3 prints into a pipe: with colours, and backspaces over the last picture."""
    for epoch in range(1, 4):
        yield f"Epoch {epoch}/3"
        yield from (_keras_3_bar(batch) for batch in range(1, 21))
    yield from (_keras_3_bar(batch) for batch in range(1, 21))  # an evaluation


def _keras_3_bar(batch: int) -> str:
    bold, plain = "\x1b[1m", "\x1b[0m"
    drawn = f"\x1b[32m{'━' * batch}{plain}\x1b[37m{'━' * (20 - batch)}{plain}"
    picture = f"{bold}{batch:2d}/20{plain} {drawn} {bold}0s{plain} 31ms/step - loss: 2.2040"
    return picture + "\b" * 87


def _within_epochs(line: Callable[[int, int], str]) -> tuple[str, ...]:
    return tuple(line(epoch, batch) for epoch in range(1, 4) for batch in range(1, 13))


LOGS: Mapping[str, Log] = {
    "a plain loop": Log(_rising(lambda n: f"step {n}"), 20),
    "with a loss": Log(_rising(lambda n: f"step {n} loss {1 / n:.4f}", by=10), 200),
    "with a total": Log(_rising(lambda n: f"Step: {n}/900, loss: {1 / n:.3e}"), 20),
    "in brackets": Log(_rising(lambda n: f"[Step {n}] took {n % 7}.2s"), 20),
    "with a bar": Log(_rising(lambda n: f"Step {n:4d} | loss {1 / n:6.3f} | lr 3.0e-04"), 20),
    "JSON lines": Log(_rising(lambda n: f'{{"loss": {1 / n:.4f}, "step": {n}, "lr": 0.1}}'), 20),
    "a dictionary": Log(_rising(lambda n: f"{{'train/loss': 0.1, 'global_step': {n}}}"), 20),
    "structlog": Log(
        _rising(lambda n: f"2026-11-22 18:0{n % 10}:36 [info     ] train step={n} loss=0.3"), 20
    ),
    "MaxText": Log(
        _rising(
            lambda n: (
                f"I0317 10:00:13.65{n:04d} 12534 metric_logger.py:181] completed step: {n}, "
                f"seconds: 0.277, TFLOP/s/device: 370.7, total_weights: 31850, loss: {9 / n:.3f}"
            )
        ),
        20,
    ),
    "absl": Log(
        _rising(lambda n: f"I1121 09:08:{n:02d}.278659   32226 trainer.py:129] step {n} loss 2.8"),
        20,
    ),
    "a file that trains and evaluates": Log(
        _rising(lambda n: f"I1121 09:08:{n:02d}.2 32 train_and_eval.py:129] step {n} loss 2.8"), 20
    ),
    "CLU": Log(
        _rising(
            lambda n: f"I1127 10:22:26.1408{n:02d} 1399 logging_writer.py:48] [{n}] loss=2.3, lr=0",
            by=100,
        ),
        2000,
    ),
    "of a total": Log(_rising(lambda n: f"[{n}/300] loss={1 / n:.3f}", by=10), 200),
    "of a total, with a colon": Log(_rising(lambda n: f"[{n:4d}/900]: loss={1 / n:.3f}"), 20),
    "of a total, with its name": Log(
        _rising(lambda n: f"train: [{n:4d}/900] loss={1 / n:.3f}"), 20
    ),
    "of a total, behind a logger": Log(
        _rising(lambda n: f"2026-09-11 12:06:{n:02d} INFO Training [{n}/900]: Loss: {1 / n:.3f}"),
        20,
    ),
    "of a total, after a time": Log(
        _rising(lambda n: f"[2026-09-11 12:06:{n:02d}] [{n:3d}/300] Loss: {1 / n:.3f}"), 20
    ),
    "T5X": Log(
        _rising(lambda n: f"I0709 15:29:52.0{n:05d} 83 trainer.py:509] Training: step {n}"), 20
    ),
    "Megatron": Log(
        _rising(
            lambda n: (
                f" [2026-09-11 12:06:{n:02d}] iteration {n:8d}/  95367 | consumed samples: "
                f"{n * 96:12d} | elapsed time per iteration (ms): 24379.9 | lm loss: 1.1E+01 |"
            )
        ),
        20,
    ),
    "DeepSpeed": Log(
        _rising(
            lambda n: (
                f"[2026-09-11 12:06:{n % 60:02d},987] [INFO] [logging.py:96:log_dist] "
                f"[Rank 0] step={n}, skipped=0, lr=[0.0003], mom=[(0.9, 0.95)]"
            ),
            by=10,
        ),
        200,
    ),
    "nanoGPT": Log(
        tuple(
            line
            for n in range(0, 200, 10)
            for line in (
                *([f"step {n}: train loss 4.2874, val loss 4.2823"] if n % 100 == 0 else []),
                f"iter {n}: loss {4 / (n + 1):.4f}, time {1972 + n}.52ms, mfu 0.19%",
            )
        ),
        190,
    ),
    "MLX": Log(
        tuple(
            line
            for n in range(10, 210, 10)
            for line in (
                f"Iter {n}: Train loss 2.100, It/sec 1.2, Tokens/sec 300.1",
                *([f"Iter {n - 5}: Val loss 1.800, Val took 3.1s"] if n % 50 == 0 else []),
            )
        ),
        200,
    ),
    "Detectron": Log(_rising(lambda n: f"eta: 0:10:{n:02d}  iter: {n * 20}  total_loss: 4.3"), 400),
    "Tunix": Log(
        _rising(lambda n: _bar("Actor Training: ", n, 100, ", train_loss=2.3, step_time=0.8")), 20
    ),
    "tqdm with a loss": Log(_rising(lambda n: _bar("", n, 900, ", loss=2.3")), 20),
    "a bar named train": Log(_rising(lambda n: _bar("train: ", n, 900, unit="s/it")), 20),
    "Hugging Face": Log(tuple(_trainer_bar()), 30),
    "Hugging Face 5": Log(tuple(_trainer_bar("'")), 30),
    "Keras": Log(tuple(_keras(3)), 18),
    "Keras 3": Log(tuple(_keras_3()), 60),
    "ranks in one pipe": Log(
        tuple(f"step {n + late} loss 2.1" for n in range(1, 20) for late in (0, 1, 0, 1)), 20
    ),
    "global step beside one within the epoch": Log(
        _within_epochs(
            lambda epoch, n: f"epoch {epoch} step {n}/12 global_step {(epoch - 1) * 12 + n} loss 1"
        ),
        36,
    ),
    "one count for all epochs": Log(
        _within_epochs(lambda epoch, n: f"train epoch: {epoch}, step: {(epoch - 1) * 12 + n}"), 36
    ),
    # --- these tell no step of the training -----------------------------------------------------
    "within each epoch": Log(
        _within_epochs(lambda epoch, n: f"epoch {epoch}, step {n}/12, loss 0.1"), None
    ),
    "torchvision": Log(
        _within_epochs(lambda epoch, n: f"Epoch: [{epoch}] [{n:3d}/300] eta: 0:01 loss: 0.1"), None
    ),
    "epochs of a total": Log(
        (
            *_rising(lambda n: f"[{n}/30] epoch done, loss=0.1"),
            *_rising(lambda n: f"Epoch [{n}/30] loss=0.1"),
        ),
        None,
    ),
    "a validation of a total": Log(
        (
            *_rising(lambda n: f"[{n}/30] val_loss=0.1"),
            *_rising(lambda n: f"val: [{n}/30] loss=0.1"),
            *_rising(lambda n: f"eval after train: [{n}/30] loss=0.1"),
            *_rising(lambda n: f"[eval] [{n}/30] loss=0.1"),
        ),
        None,
    ),
    "two counts": Log(_rising(lambda n: f"train: [{n}/30] [{10 * n}/900] loss=0.1"), None),
    "two counts without a name": Log(
        _rising(lambda n: f"[{n}/30] [ {10 * n}/900]: loss=0.1"), None
    ),
    "epochs behind their name": Log(
        _rising(lambda n: f"train: [{n}/30]: epoch done, loss=0.1"), None
    ),
    "another word": Log(_rising(lambda n: f"distrain: [{n}/30] loss=0.1"), None),
    "Lightning": Log(
        _within_epochs(lambda epoch, n: _bar(f"Epoch {epoch}: ", n, 12, ", v_num=0, loss=1.2")),
        None,
    ),
    "Levanter": Log(
        _rising(lambda n: f"Progress on:train {n / 100:.2f}kit/10.0kit rate:1.8s/it loss:2.1"), None
    ),
    "epochs": Log(_rising(lambda n: f"Epoch {n}/30, loss 0.1"), None),
    "metrics without a step": Log(
        _rising(lambda n: f"{{'loss': 0.1, 'epoch': {n / 9:.2f}}}"), None
    ),
    "an evaluation": Log(_rising(lambda n: f"eval step {n} loss 0.1"), None),
    "a file that evaluates": Log(
        _rising(lambda n: f"I1121 09:08:{n:02d}.2 32 evaluator.py:129] step {n} loss 2.8"), None
    ),
    "a validation": Log(_rising(lambda n: f"step {n}: val loss 0.1", by=100), None),
    "evaluation bars": Log(_rising(lambda n: _bar("Evaluating: ", n, 30, ", loss=0.1")), None),
    "checkpoints": Log(_rising(lambda n: f"Saving checkpoint at step {n}", by=100), None),
    "Orbax": Log(
        tuple(
            line
            for n in range(1, 21)
            for line in (
                f"I1121 08:55:36.3 1405 checkpoint_manager.py:1610] [process=0][step={n}] Starting "
                "CheckpointManager Save Finalize thread",
                f"I1121 08:55:36.3 1405 standard_logger.py:34] {{'step': {n}, 'event': 'save'}}",
            )
        ),
        None,
    ),
    "downloads": Log(_rising(lambda n: _bar("Fetching 30 files: ", n, 30)), None),
    "reading before training": Log(_rising(lambda n: _bar("", n, 30)), None),
    "a plan": Log(
        tuple(
            f"Step {n}/6: {what}"
            for n, what in enumerate(
                ("read the data", "tokenize", "shuffle", "build the model", "compile", "train"), 1
            )
        ),
        None,
    ),
    "time stamps": Log(_rising(lambda n: f"step {1795252783 + n} ok"), None),
    "durations": Log(_rising(lambda n: f"step {n}.5s, step_time={n}, steps/s 3, step {n}ms"), None),
    "limits": Log(_rising(lambda n: f"max_steps={n} warmup_step={n} total step {n}"), None),
    "a countdown": Log(tuple(f"step {n}" for n in range(30, 0, -1)), None),
    "thousands with commas": Log(_rising(lambda n: f"step {n},000 loss 0.1"), None),
}
