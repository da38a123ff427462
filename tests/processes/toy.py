"""A trainer without JAX: counts steps, commits checkpoints like Orbax, misbehaves on request.

    toy.py MODEL_DIR [--steps N] [--every N] [--once] [--at STEP] [--strike-each] [--polite]
           [--diary FILE] [MISBEHAVIOUR]

A misbehaviour strikes right after step `--at` (0: before anything is printed); with `--once` only
in the first attempt that gets there; with `--strike-each` after every multiple of that step. With
`--polite`, SIGTERM saves at the step boundary and kills. The diary tells of every start and crash,
and of a start while another worker of the job still lives.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from supervisor.protocol.adjustments import Adjustments
from supervisor.protocol.failure_record import write_failure_record
from supervisor.protocol.messages import Stage
from supervisor.protocol.reporter import Reporter
from supervisor.protocol.stacks import enable_stack_dumps


def hundred_megabytes() -> None:
    line = b"x" * 999 + b"\n"
    for _ in range(100):
        os.write(1, line * 1000)
    os._exit(3)


def not_utf8() -> None:
    os.write(1, b"\xff\xfe\x00 not text \xc3\n")
    os._exit(4)


def fail(error: BaseException) -> None:
    write_failure_record(error, stage=Stage.TRAINING, step=None)
    sys.stderr.write(f"Traceback (most recent call last):\n{type(error).__name__}: {error}\n")
    sys.stderr.flush()
    os._exit(1)


def failed_assertion() -> None:
    try:
        raise AssertionError("two is not three")
    except AssertionError as error:
        fail(error)


def await_signals() -> NoReturn:
    """Until a handler ends it. `signal.pause` misses a signal that comes just before it."""
    while True:
        time.sleep(0.05)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf to SIGTERM", flush=True)
    signal.pause()


def save_on_sigterm() -> None:
    def save(*_: object) -> None:
        os.write(1, b"saving\n")  # a print may have been interrupted
        time.sleep(options.save_seconds)
        commit(int(options.at) * 100)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    if options.saves_take is not None:
        reporter.saved(newest(), options.saves_take)
    print("ready to save", flush=True)
    await_signals()


def save_with_the_help_of_a_loader() -> None:
    """Save only what comes through a child, as a data pipeline that has to tell its position."""
    loader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def save(*_: object) -> None:
        assert loader.stdin is not None
        assert loader.stdout is not None
        loader.stdin.write(b"position\n")
        loader.stdin.flush()
        if loader.stdout.readline() == b"position\n":
            commit(int(options.at) * 100)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    print("ready to save", flush=True)
    await_signals()


def change_stages() -> NoReturn:
    """Tell of the last save, and of more changes of stage than anybody wants to know of."""
    reporter.stage(Stage.SAVING, int(options.at))
    reporter.saved(newest(), 0.1)
    for _ in range(1000):
        reporter.stage(Stage.SAVING)
        reporter.stage(Stage.TRAINING)
    print("changed", flush=True)
    await_signals()


def wait() -> None:
    print("waiting", flush=True)
    signal.pause()


def leave_grandchildren() -> None:
    hidden = "import os,signal; os.setsid(); print('grandchild', flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", hidden], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    os._exit(5)


def hide() -> None:
    """Leave a process in a session of its own that cannot be asked to end, then wait."""
    hidden = (
        "import os, signal; os.fork() and os._exit(0); os.setsid(); "
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); "
        "os.write(1, b'%d is hidden\\n' % os.getpid()); signal.sigwait([signal.SIGUSR1])"
    )
    subprocess.run([sys.executable, "-c", hidden], check=True)
    wait()


def leave_zombies() -> None:
    """Leave orphans that end at once, then wait."""
    for _ in range(3):
        subprocess.run(["sh", "-c", "sleep 0 & exit"], check=True, start_new_session=True)
    wait()


def crash() -> None:
    note("crash")
    os._exit(9)


def fill_disk() -> None:
    """Leave a record that the journal must hold, and no room to hold it in."""
    write_failure_record(RuntimeError("m" * (1 << 20)), stage=Stage.TRAINING, step=None)
    with (Path(options.model_dir) / "filler").open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"x" * 65536)
            except OSError:
                os._exit(1)


def read_only() -> None:
    """What the kernel does to a file system with errors, as far as new files are concerned."""
    # Made read-only aside, where nobody has a file open, and then put in its place as it is.
    aside = f"{options.model_dir}.aside"
    Path(aside).mkdir()
    for arguments in (
        ["--bind", options.model_dir, aside],
        ["-o", "remount,bind,ro", aside],
        ["--bind", aside, options.model_dir],
    ):
        subprocess.run(["mount", *arguments], check=True)
    os._exit(9)


def lie() -> None:
    """Write what no honest worker would on the progress pipe."""
    descriptor = int(os.environ["SUPERVISE_PROGRESS_FD"])
    os.set_blocking(descriptor, True)
    for junk in (b"\xff\xfe\n", b"[]\n", b"{}\n", b'{"v":9}\n', b"x" * 70000 + b"\n"):
        os.write(descriptor, junk)
    os.write(descriptor, b'{"v":1,"kind":"step","step":"seven"}\n')
    Path(os.environ["SUPERVISE_FAILURE_FILE"]).write_bytes(b'{"exceptions": 7' + b"[" * 5000)
    os._exit(6)


def hang() -> None:
    reporter.stage(Stage(options.stage))
    while True:  # the dump of the stacks wakes it up
        signal.pause()


def wait_for_a_loader() -> None:
    """A batch that never comes: the loader's process lives, and says nothing."""
    reporter.stage(Stage(options.stage))
    argv = [sys.executable, "-c", "import signal; signal.pause()"]
    loader = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert loader.stdout is not None
    loader.stdout.read()


def linger() -> None:
    """Take long in a stage, as a compilation, an evaluation or a save may."""
    reporter.stage(Stage(options.stage))
    time.sleep(1.0)
    reporter.stage(Stage.TRAINING)


def stop() -> None:
    reporter.stage(Stage(options.stage))
    os.kill(os.getpid(), signal.SIGSTOP)


def hold_the_interpreter_lock() -> None:
    reporter.stage(Stage(options.stage))
    while True:
        ctypes.PyDLL(None).pause()


def run_out_of_device_memory() -> None:
    """Need more than there is, unless asked to do with less."""
    asked = Adjustments.from_environment()
    print(f"asked to adjust: {asked}", flush=True)
    if max(asked.inflight, asked.accumulation) < options.need:
        fail(RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes."))


def eat_memory() -> None:
    """Until the kernel ends it, in a cgroup that is there to be filled."""
    eaten: list[bytes] = []
    while len(eaten) < 64:
        eaten.append(b"x" * (64 << 20))
    os._exit(9)


MISBEHAVIOUR: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "SIGABRT": os.abort,
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exit0": lambda: os._exit(0),
    "exit9": lambda: os._exit(9),
    "hundred-megabytes": hundred_megabytes,
    "not-utf8": not_utf8,
    "huge-message": lambda: fail(RuntimeError("m" * (1 << 20))),
    "assertion": failed_assertion,
    "runtime-error": lambda: fail(RuntimeError("bad luck")),
    "ignore-sigterm": ignore_sigterm,
    "save-on-sigterm": save_on_sigterm,
    "save-with-loader": save_with_the_help_of_a_loader,
    "change-stages": change_stages,
    "wait": wait,
    "hang": hang,
    "loader": wait_for_a_loader,
    "linger": linger,
    "stop": stop,
    "gil": hold_the_interpreter_lock,
    "grandchildren": leave_grandchildren,
    "lie": lie,
    "hide": hide,
    "zombies": leave_zombies,
    "crash": crash,
    "fill-disk": fill_disk,
    "read-only": read_only,
    "device-memory": run_out_of_device_memory,
    "eat-memory": eat_memory,
    "nan": lambda: fail(FloatingPointError("invalid value (nan) encountered in jit(step)")),
    "busy": lambda: fail(RuntimeError("The TPU is already in use by process with pid 5")),
    "expired": lambda: fail(RuntimeError("invalid_grant: Token has been expired or revoked.")),
    "no-capacity": lambda: fail(RuntimeError("There is no more capacity in the zone")),
}


def note(what: str) -> None:
    """One line in the diary, whole or not at all, with the attempt it belongs to."""
    if options.diary is None:
        return
    line = f"{what} {os.environ['SUPERVISE_ATTEMPT']} {os.getpid()}\n"
    diary = os.open(options.diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(diary, line.encode())
    os.close(diary)


def begin() -> None:
    """Note the start, and whether another worker of the job still lives; leave a helper behind."""
    if options.diary is None:
        return
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    alone = os.open(f"{options.diary}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note("OVERLAP")
    note("start")


def checkpoints() -> Path:
    return Path(options.model_dir) / "checkpoints"


def commit(step: int) -> None:
    if (checkpoints() / str(step)).exists():
        return  # told to stop right after a save
    temporary = checkpoints() / f"{step}.orbax-checkpoint-tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    (temporary / "commit_success.txt").touch()
    temporary.rename(checkpoints() / str(step))


def newest() -> int:
    marks = checkpoints().glob("*/commit_success.txt")
    return max(
        (int(mark.parent.name) for mark in marks if "tmp" not in mark.parent.name), default=0
    )


def misbehave(step: int) -> None:
    if step != options.at and not (options.strike_each and step and step % options.at == 0):
        return
    struck = Path(options.model_dir) / f"struck{step if options.strike_each else ''}"
    if options.once and struck.exists():
        return
    struck.touch()
    MISBEHAVIOUR[options.misbehaviour]()


def main() -> None:
    begin()
    enable_stack_dumps(reporter)
    misbehave(0)
    step = newest()
    reporter.stage(Stage.RESTORING)
    reporter.restored(step or None)
    print(f"starts after step {step}", flush=True)
    reporter.stage(Stage.TRAINING, step)
    reporter.adjustable(options.adjustable)
    asked: list[int] = []
    if options.polite:
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    while step < options.steps:
        if asked:
            commit(step)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        step += 1
        time.sleep(options.seconds)
        reporter.step(step, {"loss": 1.0 / step})
        print(f"completed step: {step}", flush=True)
        misbehave(step)
        if step % options.every == 0:
            commit(step)
    reporter.stage(Stage.FINISHING, step)
    print("all done", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model_dir")
    parser.add_argument("misbehaviour", nargs="?", default="none", choices=MISBEHAVIOUR)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--saves-take", type=float)
    parser.add_argument("--save-seconds", type=float, default=0.0)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--polite", action="store_true")
    parser.add_argument("--strike-each", action="store_true")
    parser.add_argument("--diary")
    parser.add_argument("--adjustable", nargs="*", default=[])
    parser.add_argument("--need", type=int, default=2)
    parser.add_argument("--stage", default="TRAINING")
    options = parser.parse_args()
    reporter = Reporter.connect()
    main()
