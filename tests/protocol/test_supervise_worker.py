"""The single file that any program can use: what it sends, and that it never harms the program."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.protocol import worker_path
from supervisor.protocol.messages import (
    Message,
    NoticeMessage,
    SavedMessage,
    SavesOnRequestMessage,
    SigtermMessage,
    Stage,
    StageMessage,
    StepMessage,
    decode,
    encode,
)
from supervisor.protocol.worker_path import supervise_worker
from tests.bootstrap.programs import PYTHONS

FOLDER = Path(worker_path.__file__).parent
MODERN = [PYTHONS[version] for version in sorted(PYTHONS) if version >= (3, 9)]


class Supervised:
    """Runs programs that have a progress pipe."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.stderr = ""

    def run(
        self, program: str, python: str = sys.executable, *, identity: str | None = None
    ) -> list[Message | None]:
        """Run `program`, which must exit with 0; returns what it has sent."""
        read_end, write_end = os.pipe()
        status = os.fstat(read_end)
        with os.fdopen(read_end, "rb") as pipe:
            done = subprocess.run(
                [python, "-c", f"import os, sys, supervise_worker as w\n{program}"],
                env={
                    **os.environ,
                    "PYTHONPATH": str(FOLDER),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "SUPERVISE_PROGRESS_FD": str(write_end),
                    "SUPERVISE_PROGRESS_PIPE": identity or f"{status.st_dev}:{status.st_ino}",
                },
                pass_fds=(write_end,),
                capture_output=True,
                text=True,
                timeout=120,
            )
            os.close(write_end)
            self.lines = pipe.readlines()
        self.stderr = done.stderr
        assert done.returncode == 0, done.stderr
        return [decode(line) for line in self.lines]


@pytest.fixture
def supervised() -> Supervised:
    return Supervised()


EVERYTHING = """
w.step(1, loss=0.5)
with w.stage("SAVING"):
    w.saved(1)
w.stage("EVALUATING")
w.step(2)
w.saved()
assert not w.should_stop()
os.kill(os.getpid(), 15)
assert w.should_stop()
assert w.current() == ("EVALUATING", 2)
w.stage("FINISHING")
"""


ASKED = """
import pathlib
path = pathlib.Path(os.environ["SUPERVISE_SAVE_REQUEST"])
def look():
    w._worker._next_look = 0.0
    return w.should_save()
assert not w.should_save()
path.write_text("{}")
assert not w.should_save()  # it looked a moment ago
assert look() and not look()
path.with_name("new").write_text("{}")
path.with_name("new").replace(path)
assert look() and not look()
if os.fork() == 0:
    path.unlink(); path.write_text("{}")
    os._exit(look())
assert os.wait()[1] == 0
"""


def test_a_request_to_save_is_seen_once(
    supervised: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERVISE_SAVE_REQUEST", str(tmp_path / "save-request.json"))
    assert supervised.run(ASKED) == [SavesOnRequestMessage()]


def test_an_older_supervisor_asks_nobody(supervised: Supervised) -> None:
    assert supervised.run("assert not w.should_save() and not w.should_save()") == []


@pytest.mark.parametrize("python", MODERN)
def test_everything_is_said_from_every_python(supervised: Supervised, python: str) -> None:
    expected: list[Message] = [
        StageMessage(Stage.TRAINING, inferred=True),
        StepMessage(1, {"loss": 0.5}),
        StageMessage(Stage.SAVING, 1),
        SavedMessage(1),
        StageMessage(Stage.TRAINING, 1, inferred=True),
        StageMessage(Stage.EVALUATING, 1),
        StepMessage(2),
        SavedMessage(None),
        SigtermMessage(),
        StageMessage(Stage.FINISHING, 2),
    ]
    assert supervised.run(EVERYTHING, python) == expected
    assert supervised.lines == [encode(message) for message in expected], "in the same bytes"


def test_steps_are_throttled_and_the_last_one_is_always_sent(supervised: Supervised) -> None:
    told = supervised.run("w.STEP_INTERVAL = 1e9\nfor n in range(1, 1000): w.step(n, loss=0.5)")
    assert told[1:] == [StepMessage(1, {"loss": 0.5}), StepMessage(999)]


def test_a_step_is_not_told_twice(supervised: Supervised) -> None:
    assert supervised.run("w.step(10**6)\nw.step(10**3 * 10**3)")[1:] == [StepMessage(10**6)]


def test_the_last_step_is_sent_before_an_error_ends_the_program(supervised: Supervised) -> None:
    program = """
import subprocess
child = "import supervise_worker as w; w.STEP_INTERVAL = 1e9; w.step(1); w.step(2); 1 / 0"
descriptor = int(os.environ["SUPERVISE_PROGRESS_FD"])
assert subprocess.run([sys.executable, "-c", child], pass_fds=[descriptor]).returncode == 1
"""
    assert supervised.run(program)[1:] == [StepMessage(1), StepMessage(2)]
    assert "ZeroDivisionError" in supervised.stderr


def test_a_loss_that_is_still_computed_is_not_waited_for(supervised: Supervised) -> None:
    program = """
class Loss:
    def __init__(self, value, ready): self.value, self.ready = value, ready
    def is_ready(self): return self.ready
    def __float__(self):
        assert self.ready, "it would wait"
        return self.value
w.STEP_INTERVAL = 0.0
slow = Loss(1.0, False)
w.step(1, loss=slow)
w.step(2, loss=Loss(2.0, False))
slow.ready = True
w.step(3, loss=Loss(3.0, False))
w.step(4, loss=Loss(4.0, True))
"""
    steps = [StepMessage(1), StepMessage(2), StepMessage(3, {"loss": 1.0})]
    assert supervised.run(program)[1:] == [*steps, StepMessage(4, {"loss": 4.0})]


def test_a_failed_stage_is_not_left(supervised: Supervised) -> None:
    program = """
try:
    with w.stage("SAVING"): raise OSError
except OSError: pass
w.stage("TRAINING")
with w.stage("EVALUATING"): pass
"""
    training, evaluating = StageMessage(Stage.TRAINING), StageMessage(Stage.EVALUATING)
    told = supervised.run(program)
    assert told == [StageMessage(Stage.SAVING), training, evaluating, training]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("w.step('abc')", "TypeError"),
        ("w.step(1.5, 2)", "TypeError"),
        ("w.step(-1)", "ValueError: -1 is no step"),
        ("w.step(2**63)", "is no step"),
        ("w.step(None, loss=object())", "TypeError"),
        ("w.step(type('', (), {'is_ready': lambda self: False})())", "a device still computes"),
        ("w.step(1, loss='low')", "ValueError"),
        ("w.step(1, loss={'a': 1})", "TypeError"),
        ("w.saved('x')", "TypeError"),
        ("w.stage('saving')", "'saving' is none of STARTING, "),
        ("w.stage(None)", "None is none of"),
        ("with w.stage([1] * 10_000): w.saved(1)", "is ignored"),
        (
            "import threading\nt = threading.Thread(target=w.should_stop)\nt.start(); t.join()",
            "main",
        ),
    ],
)
def test_a_bad_call_raises_nothing_and_is_told_once(
    supervised: Supervised, call: str, why: str
) -> None:
    told = supervised.run(f"{call}\n{call}")
    (notice,) = [message for message in told if isinstance(message, NoticeMessage)]
    assert notice.code == "worker-call-ignored"
    assert why in notice.text
    assert max(map(len, supervised.lines)) <= 4096
    assert supervised.stderr == ""


def test_without_a_supervisor_nothing_happens() -> None:
    program = (
        "import signal, supervise_worker as w\n"
        "w.step('x'); w.saved('x'); w.step(3)\n"
        "with w.stage('x'): assert not w.should_stop()\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_descriptor_that_is_not_the_pipe_is_left_alone(supervised: Supervised) -> None:
    assert supervised.run("w.step(1)\nw.stage('SAVING')", identity="1:1") == []


def test_forked_children_say_nothing_and_die_of_sigterm(supervised: Supervised) -> None:
    program = """
import multiprocessing, time
def load():
    w.step(99); w.stage("SAVING")
    ready.set()
    time.sleep(600)
w.should_stop()
w.step(1)
context = multiprocessing.get_context("fork")
ready = context.Event()
child = context.Process(target=load)
child.start()
ready.wait()
child.terminate()
child.join()
assert child.exitcode == -15, child.exitcode
os.kill(os.getpid(), 15)
assert w.should_stop()
"""
    first = StageMessage(Stage.TRAINING, inferred=True)
    assert supervised.run(program) == [first, StepMessage(1), SigtermMessage()]


def test_the_handler_of_the_program_is_called_too(supervised: Supervised) -> None:
    program = """
import signal
seen = []
signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
w.should_stop()
os.kill(os.getpid(), 15)
assert w.should_stop() and seen == [15]
"""
    assert supervised.run(program) == [SigtermMessage()]


def test_a_handler_outside_python_is_left_in_place(supervised: Supervised) -> None:
    """As jax.distributed sets one: who replaces it breaks the stop that it agrees among ranks."""
    program = """
import ctypes
seen = []
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(seen.append)
ctypes.CDLL(None).signal(15, handler)
assert not w.should_stop()
os.kill(os.getpid(), 15)
assert seen == [15] and not w.should_stop()
"""
    (notice,) = supervised.run(program)
    assert isinstance(notice, NoticeMessage)
    assert "reached_preemption" in notice.text


def test_a_signal_handler_may_call_in_the_middle_of_a_call(supervised: Supervised) -> None:
    program = """
write = os.write
def interrupted(descriptor, line):
    os.write = write
    w.saved(7)
    return write(descriptor, line)
os.write = interrupted
w.saved(8)
"""
    assert supervised.run(program) == [SavedMessage(8), SavedMessage(7)]


def test_threads_may_call_together(supervised: Supervised) -> None:
    program = """
import threading
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=lambda: [w.saved(8) for _ in range(40)]) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
"""
    assert supervised.run(program) == [SavedMessage(8)] * 320


def test_batches_end_at_a_stop(supervised: Supervised) -> None:
    program = """
seen = []
for batch in w.until_stop(range(10)):
    seen.append(batch)
    if batch == 3: os.kill(os.getpid(), 15)
assert seen == [0, 1, 2, 3]
"""
    assert supervised.run(program) == [SigtermMessage()]


def test_the_trainer_of_hugging_face_saves_and_ends_at_a_stop(supervised: Supervised) -> None:
    """The stand-in for the library calls a callback as the real one does."""
    program = """
import types
library = types.ModuleType("transformers")
library.TrainerCallback = type("TrainerCallback", (), {})
sys.modules["transformers"] = library
callback = w.hugging_face_callback()
w.STEP_INTERVAL = 0.0
for n in (1, 2, 3):
    state = types.SimpleNamespace(global_step=n)
    control = types.SimpleNamespace(
        should_evaluate=n == 2, should_save=n == 2, should_training_stop=False
    )
    if n == 3: os.kill(os.getpid(), 15)
    callback.on_step_end(None, state, control, model=None)
    callback.on_log(None, state, control, logs={"loss": 1.0 / n})
    if control.should_evaluate:
        control.should_evaluate = False
        callback.on_evaluate(None, state, control, metrics={})
    if control.should_save:
        control.should_save = False
        callback.on_save(None, state, control)
    if control.should_training_stop: break
assert control.should_training_stop
"""
    trains = StageMessage(Stage.TRAINING, inferred=True)
    assert supervised.run(program) == [
        trains,
        StepMessage(1),
        StepMessage(2, {"loss": 1.0}),
        StageMessage(Stage.EVALUATING, 2),
        replace(trains, step=2),
        StageMessage(Stage.SAVING, 2),
        SavedMessage(2),
        replace(trains, step=2),
        SigtermMessage(),
        StepMessage(3, {"loss": 0.5}),
        StageMessage(Stage.SAVING, 3),
        SavedMessage(3),
        replace(trains, step=3),
    ]


_ORBAX = """
import tempfile, time
import numpy as np, orbax.checkpoint as ocp
options = ocp.CheckpointManagerOptions(save_interval_steps=2)
w.STEP_INTERVAL = 0.0
with w.orbax_manager(ocp.CheckpointManager(tempfile.mkdtemp(), options=options)) as manager:
    for n in range(1, 10):
        if n == 5: os.kill(os.getpid(), 15)
        is_saved = manager.save(n, args=ocp.args.StandardSave({"x": np.ones(2)}))
        assert is_saved == (n in (1, 2, 4, 5)), n  # the first one always
        assert manager.should_save(6) and manager.should_save(7) == (n == 5)
        if manager.reached_preemption(n): break
    assert n == 5 and sorted(manager.all_steps()) == [1, 2, 4, 5]
    assert not manager.save(5, args=ocp.args.StandardSave({"x": np.ones(2)}))  # it is there
"""


_MANAGER = """
import copy, pathlib
class Manager:
    saves = []
    def should_save(self, step): return step % 500 == 0 and step not in self.saves
    def latest_step(self): return max(self.saves, default=None)
    def wait_until_finished(self): pass
    def save(self, step, force=False):
        is_saved = force or self.should_save(step)
        if is_saved: self.saves.append(step)
        return is_saved
manager = w.orbax_manager(Manager())
"""


def test_a_manager_that_saves_nothing_sends_no_stage(supervised: Supervised) -> None:
    program = """
w.STEP_INTERVAL = 1000.0
for n in range(1, 1001): assert manager.save(n) == (n % 500 == 0)
assert manager.save(1001, force=True)
"""
    messages = supervised.run(_MANAGER + program)
    assert [each.step for each in messages if isinstance(each, StepMessage)] == [1, 501, 1001]
    stages = [each for each in messages if isinstance(each, StageMessage)]
    assert [each.step for each in stages if each.stage == Stage.SAVING] == [500, 1000, 1001]
    assert len(stages) == 1 + 2 * 3


def test_force_may_be_given_by_its_position(supervised: Supervised) -> None:
    manager = _MANAGER.replace("force=False", "items=None, save_kwargs=None, metrics=None, force=0")
    program = """
assert not manager.save(1, {}, None, None, False) and manager.save(2, {}, None, None, True)
os.kill(os.getpid(), 15)
assert manager.save(3, {}, None, None, False) and manager.save(4, {}) and manager.saves == [2, 3, 4]
"""
    messages = supervised.run(manager + program)
    stages = [each for each in messages if isinstance(each, StageMessage)]
    assert [each.step for each in stages if each.stage == Stage.SAVING] == [2, 3, 4]


def test_a_request_at_a_saved_step_has_the_next_one_saved(
    supervised: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERVISE_SAVE_REQUEST", str(tmp_path / "save-request.json"))
    program = """
w.LOOK_INTERVAL = 0.0
manager.save(500)
pathlib.Path(os.environ["SUPERVISE_SAVE_REQUEST"]).write_text("{}")
manager.save(500)
manager.save(501)
assert manager.saves == [500, 501], manager.saves
assert not manager.save(502)
"""
    saved = [each for each in supervised.run(_MANAGER + program) if isinstance(each, SavedMessage)]
    assert saved == [SavedMessage(501)]


def test_a_manager_of_orbax_can_be_copied(supervised: Supervised) -> None:
    supervised.run(f"{_MANAGER}assert copy.copy(manager).save(500)")


@pytest.mark.slow
def test_a_manager_of_orbax_saves_at_a_stop(supervised: Supervised) -> None:
    """The real library: what it does with `force` and an existing step decides."""
    messages = supervised.run(_ORBAX)
    steps = [each.step for each in messages if isinstance(each, StepMessage)]
    assert steps == [1, 2, 3, 4, 5, 5]
    assert [each for each in messages if isinstance(each, SavedMessage)] == [SavedMessage(5)]
    assert SigtermMessage() in messages


def test_it_is_one_file_that_needs_nothing() -> None:
    (path,) = [each for each in FOLDER.iterdir() if each.stem != "__init__" and each.is_file()]
    modules = re.findall(r"^\s*(?:import|from) (\S+)", path.read_text(), re.M)
    assert {name.partition(".")[0] for name in modules} - {"supervise_worker"} <= {
        *sys.stdlib_module_names,
        "transformers",
    }


def test_its_stages_are_those_of_the_protocol() -> None:
    assert tuple(Stage) == supervise_worker.STAGES


def test_every_call_has_a_meaning() -> None:
    for name in supervise_worker.__all__:
        value = getattr(supervise_worker, name)
        assert not callable(value) or inspect.getdoc(value)


def test_what_is_sent_late_comes_when_there_is_room(supervised: Supervised) -> None:
    """A supervisor that does not read for a while: stages are kept, steps are not."""
    program = """
descriptor = int(os.environ["SUPERVISE_PROGRESS_FD"])
other_read, other_write = os.pipe()
w._worker = worker = w._Worker(w.ProgressPipe(other_write))
os.set_blocking(other_write, False)
filled = 0
for size in (4096, 1):
    try:
        while True: filled += os.write(other_write, b"\\n" * size)
    except BlockingIOError: pass
w.stage("COMPILING")
w.step(1)
w.saved(2)
os.read(other_read, filled)
w.stage("TRAINING")
os.set_blocking(other_read, False)
os.write(descriptor, os.read(other_read, 1 << 16))
"""
    compiling, training = StageMessage(Stage.COMPILING), StageMessage(Stage.TRAINING, 1)
    assert supervised.run(program) == [compiling, SavedMessage(2), training]


def test_the_signals_name_is_that_of_the_kernel() -> None:
    assert supervise_worker._is_caught(signal.SIGINT), "Python handles it"
    assert not supervise_worker._is_caught(signal.SIGKILL)
