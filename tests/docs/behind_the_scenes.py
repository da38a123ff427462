"""What a page takes for granted: programs, accidents, and jobs that have got into trouble.

A page names one of these functions in the note `first` of a block. Each gets the session.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import urllib.request
from pathlib import Path

import psutil

from tests.docs.pages import DOCS, blocks
from tests.docs.session import Session
from tests.emulators import gcs_emulator

_COUNTING = """\
import pathlib, sys, time
saves = pathlib.Path(sys.argv[-1])
step = max((int(file.parent.name) for file in saves.glob("*/commit_success.txt")), default=0)
while step < 999:
    time.sleep(0.05)
    step += 1
    print("step", step)
    if step % 20 == 0:
        (saves / str(step)).mkdir(parents=True, exist_ok=True)
        (saves / str(step) / "commit_success.txt").touch()
"""
"""Counts for a minute, and saves every twentieth step."""
_JOB = """\
trainer:
  init:
    model_dir: /data/run
    autorestart: {max_num_restarts: 3, backoff: {first: 0.1}}
  command:
    argv: [python3, train.py, "{model_dir}/checkpoints"]
    progress: {pattern: 'step (\\d+)'}
    success: {step: 100000}
"""
_SMALL_JOB = """\
trainer:
  init:
    model_dir: /data/run
    autorestart: {max_num_restarts: 3, backoff: {first: 0.1}}
  command: [bash, -c, "test $SUPERVISE_ATTEMPT -gt 1 || kill -KILL $$"]
"""
_HALTED = 'raise RuntimeError("INTERNAL: Accelerator device halted prematurely")'


_MODEL = DOCS.parent / "tests" / "training" / "pretrained" / "qwen3"


def pretrained_model(session: Session) -> None:
    """A model of the same kind as the one that is downloaded, but tiny."""
    shutil.copytree(_MODEL, session.cwd / "Qwen3-0.6B")


def _on_eight_devices(argv: str, *more: str) -> str:
    """Return the small job with this command, on simulated devices."""
    devices = "devices: {platform: cpu, count: 8}\n    autorestart: {"
    keys = "".join(f"{key}, " for key in ("min_num_devices: 2", *more))
    config = _SMALL_JOB.replace("autorestart: {", f"{devices}{keys}")
    return config.partition("  command")[0] + f"  command: [{argv}]\n"


def _break_devices(session: Session, broken: str) -> None:
    folder = Path(session.real("/data/run"))
    folder.mkdir()
    (folder / "simulated_devices.json").write_text(broken)


def _write(session: Session, name: str, text: str) -> Path:
    path = session.cwd / name
    path.write_text(session.real(text))
    return path


def _stop(session: Session) -> None:
    """Kill the supervisor that runs, as if its machine were lost."""
    if session.running and session.running.process.poll() is None:
        session.running.signal(signal.SIGKILL)
        session.running.wait()
    session.running = None


def _signal_program(session: Session, number: signal.Signals) -> None:
    *_, pid = re.findall(r"running as pid (\d+)", "\n".join(session.foreground.output))
    os.kill(int(pid), number)


def _new_job(session: Session, config: str, program: str = _COUNTING) -> None:
    """Write a job in place of the one that is there."""
    _stop(session)
    shutil.rmtree(session.real("/data/run"), ignore_errors=True)
    _write(session, "train.py", program)
    _write(session, "trainer.yaml", config)


def _run_on(session: Session, *texts: str) -> None:
    """Run the job until each of these was printed, one after the other."""
    session.run_on("supervise run trainer.yaml")
    for text in texts:
        session.foreground.wait_for(text)


def later_files(session: Session) -> None:
    """The files that the page shows further down."""
    for block in session.blocks:
        if "file" in block.notes:
            session.write(block)


def quick_restarts(session: Session) -> None:
    """No long waits between attempts."""
    path = session.cwd / "trainer.yaml"
    one = re.compile(r"(\{|\n +)(max_num_restarts: \d+)")
    text, count = one.subn(
        lambda found: (
            f"{found[1]}backoff: {{first: 0.1}}{', ' if found[1] == '{' else found[1]}{found[2]}"
        ),
        path.read_text(),
    )
    assert count == 1
    path.write_text(text)


def files_that_cat_shows(session: Session) -> None:
    """The files whose content the page shows by `cat FILE`."""
    text = "".join(block.text for block in session.blocks)
    for name, content in re.findall(r"^\$ cat ([\w.]+)\n((?:(?!\$ ).*\n)+)", text, re.M):
        _write(session, name, content)


def quickstart(session: Session) -> None:
    """What `make run` runs. XLA optimises, or its steps would take minutes."""
    session.env["XLA_FLAGS"] = ""
    session.running = session.run("supervise run examples/quickstart.yaml")


def program_of_the_last_tutorial(session: Session) -> None:
    folder = Path(session.real("/home/you/demo"))
    folder.mkdir()
    (block,) = (
        block
        for block in blocks(DOCS / "tutorials" / "your-own-program.md")
        if block.file == "train.py"
    )
    (folder / "train.py").write_text(block.text.replace("sleep(0.5)", "sleep(0.1)"))


def program_killed_after_step_20(session: Session) -> None:
    _run_on(session, "step 22 ")
    _signal_program(session, signal.SIGKILL)


def sigterm_to_the_program(session: Session) -> None:
    _signal_program(session, signal.SIGTERM)


# The runbook, and what else tells of a job in trouble.


def job_that_failed(session: Session) -> None:
    config = _SMALL_JOB.replace("max_num_restarts: 3", "max_num_restarts: 1")
    failing = '  command: [bash, -c, "echo no licence; exit 3"]'
    _new_job(session, re.sub(r"  command: .*", failing, config))
    session.run("supervise run trainer.yaml")


def config_without_program(session: Session) -> None:
    _new_job(session, re.sub(r"  command: .*", "  command: [nosuchprogram]", _SMALL_JOB))


def job_that_runs(session: Session) -> None:
    _new_job(session, _JOB)
    _run_on(session, "is committed")


def job_with_one_device_of_eight(session: Session) -> None:
    config = _on_eight_devices("python3, train.py, '{num_devices}'", "wait_for_capacity: 1s")
    _new_job(session, config, _HALTED)
    _break_devices(session, '{"lost": ["1", "2", "3", "4", "5", "6", "7"]}')
    _run_on(session)


def damaged_journal(session: Session) -> None:
    _new_job(session, _SMALL_JOB)
    session.run("supervise run --once trainer.yaml")
    path = Path(session.real("/data/run/journal.jsonl"))
    lines = path.read_text().splitlines()
    lines[4] = lines[4][:50]
    path.write_text("".join(f"{line}\n" for line in lines))


def guard_that_was_killed(session: Session) -> None:
    job_that_runs(session)
    (supervisor,) = psutil.Process(session.foreground.process.pid).children()
    (guard,) = supervisor.children()
    guard.kill()


def supervisor_that_was_killed(session: Session) -> None:
    job_that_runs(session)
    _signal_program(session, signal.SIGKILL)
    session.foreground.wait_for("progress, 1 charged failure forgiven")
    _stop(session)
    _run_on(session)


# Upgrading.


def journal_in_segments(session: Session) -> None:
    session.foreground.wait()
    Path(session.real("/data/run/journal")).mkdir()


def journal_of_an_older_version(session: Session) -> None:
    path = Path(session.real("/data/run/journal.jsonl"))
    path.write_text(re.sub(r"(\d\.\d+\.\d+)\+[0-9a-f]{8}", r"\1+b11d6c88", path.read_text()))


def config_that_was_changed(session: Session) -> None:
    session.foreground.signal(signal.SIGINT)
    path = session.cwd / "trainer.yaml"
    path.write_text(path.read_text().replace("100000", "99999"))
    _run_on(session)


# Programs that fail.


def program_without_a_pattern(session: Session) -> None:
    _write(session, "train.py", "")
    config = re.sub(r"    (?:progress|success): .*\n", "", _JOB)
    _write(session, "trainer.yaml", config)
    _run_on(session)


def program_that_runs_long(session: Session) -> None:
    shutil.rmtree(session.cwd / "run")
    _write(session, "train.py", _COUNTING)
    session.start("supervise run trainer.yaml").wait_for("step 2")


def program_that_runs_out_of_memory(session: Session) -> None:
    """The page's own program, with another accident."""
    program, bad = (
        session.cwd / "train.py",
        'raise FloatingPointError(f"the loss of step {step} is NaN")',
    )
    text = program.read_text()
    assert bad in text
    full = (
        'raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")'
    )
    program.write_text(text.replace(bad, f"if accumulation < 8: {full}"))
    session.run_on("supervise run trainer.yaml --set trainer.init.model_dir=./memory")
    session.foreground.wait()
    program.write_text(text)


def program_that_overwrites_one_file(session: Session) -> None:
    program = """\
import os, pathlib, sys
saves = pathlib.Path(sys.argv[1])
saves.mkdir(exist_ok=True)
step = int(saves.joinpath("last.pkl").read_text()) if saves.joinpath("last.pkl").exists() else 0
step += 1
print("step", step)
saves.joinpath("last.pkl").write_text(str(step))
os._exit(9)
"""
    _write(session, "train.py", program)
    shutil.rmtree(session.cwd / "run")
    quick_restarts(session)
    session.run_on("supervise run trainer.yaml")


def job_on_devices(session: Session) -> None:
    _stop(session)
    shutil.rmtree(session.cwd / "run", ignore_errors=True)
    _run_on(session, "running as pid")


def wrong_device(session: Session) -> None:
    job_on_devices(session)
    (session.cwd / "run" / "simulated_devices.json").write_text('{"wrong": ["3"]}')
    session.foreground.wait_for("starting attempt 2")


def wrong_device_on_call(session: Session) -> None:
    """The same in /data/run."""
    program = f"import sys\nif sys.argv[1] == '8': {_HALTED}\n"
    _new_job(session, _on_eight_devices("python3, train.py, '{num_devices}'"), program)
    _break_devices(session, '{"wrong": ["3"]}')
    session.run("supervise run trainer.yaml")


# Coming from another tool.


def program_that_saves(session: Session) -> None:
    _write(session, "train.py", _COUNTING)


def program_that_loses_rank_1(session: Session) -> None:
    program = _COUNTING.replace("step < 999", "step < 100").replace(
        'print("step", step)',
        """print("step", step)
    if (step, os.environ["SUPERVISE_ATTEMPT"], os.environ["JAX_PROCESS_ID"]) == (50, "1", "1"):
        os.kill(os.getpid(), 9)""",
    )
    _write(session, "train.py", f"import os\n{program}")


def program_that_sleeps(session: Session) -> None:
    path = session.cwd / "trainer.yaml"
    text = re.sub(r"TRAINING: \w+ *", "TRAINING: 3s  ", path.read_text())
    path.write_text(text.replace("max_num_restarts: 3", "max_num_restarts: 0"))
    _write(
        session,
        "train.py",
        "import time\nfor step in 1, 2, 3:\n    print('step', step)\ntime.sleep(999)\n",
    )


def program_that_is_killed_at_step_5050(session: Session) -> None:
    path = session.cwd / "train.py"
    kill = 'step == 5050 and os.environ["SUPERVISE_ATTEMPT"] == "1" and os.kill(os.getpid(), 9)'
    text = path.read_text()
    assert "\n    if step % 1000" in text
    text = text.replace("\n    if step % 1000", f"\n    {kill}\n    if step % 1000")
    path.write_text(f"import os\n{text}")


def config_with_a_key_of_cerebras(session: Session) -> None:
    path = session.cwd / "trainer.yaml"
    (session.cwd / "moved.yaml").write_text(path.read_text())
    path.write_text(re.sub(r"min_num_devices: 2", "min_num_csx: 2", path.read_text()))


def config_without_it(session: Session) -> None:
    (session.cwd / "moved.yaml").rename(session.cwd / "trainer.yaml")


# A bucket.


def store_without_the_bucket(session: Session) -> None:
    session.env |= session.until_the_end.enter_context(gcs_emulator()).env


def bucket(session: Session) -> None:
    url = f"{session.env['STORAGE_EMULATOR_HOST']}/storage/v1/b"
    kind = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url, b'{"name": "my-bucket"}', kind)).close()
