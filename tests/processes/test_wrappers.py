"""Commands that are no single process: shells around a trainer, pipes, daemons."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import TOY, Result, Running, Start, command_config, eventually, lives

Supervise = Callable[..., Result]

_SHELL = ("bash", "-c")


def toy(model_dir: Path, *arguments: str) -> str:
    """The toy trainer, as a shell runs it."""
    return shlex.join([sys.executable, TOY, str(model_dir), *arguments])


def shell_config(
    model_dir: Path, script: str, restart: dict[str, Any] | None = None, **command: Any
) -> dict[str, Any]:
    """A config that runs a shell script."""
    config = command_config(model_dir, restart=restart, **command)
    config["trainer"]["command"]["argv"] = [*_SHELL, script]
    return config


def ready(
    start: Start,
    config: dict[str, Any],
    said: str = "ready to save",
    env: dict[str, str] | None = None,
) -> Running:
    """A run whose trainer waits for a signal."""
    running = start(config, env=env)
    running.wait_for(said)
    return running


# --- stopping ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        "{toy}; true",
        "{toy}\nexit $?",
        "sh -c '{toy}; true'; true",
        "{toy} | tee {model_dir}/copy",
        "{toy} > >(tee {model_dir}/copy); true",
        "{toy} & wait",
        "setsid --wait {toy}; true",
        'coproc PEER {{ while read -r line; do echo "$line" >&2; done; }}\n'
        "{toy} <&${{PEER[0]}} >&${{PEER[1]}}; true",
    ],
    ids=["chain", "script", "nested", "pipe", "substitution", "background", "session", "coprocess"],
)
def test_a_trainer_below_a_shell_saves_before_it_is_killed(
    start: Start, model_dir: Path, script: str
) -> None:
    text = script.format(toy=toy(model_dir, "save-on-sigterm", "--at", "3"), model_dir=model_dir)
    running = ready(start, shell_config(model_dir, text))
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    assert result.summary["highest_committed_step"] == 300, result.log
    assert result.has_event("sigterm-reaction", ranks=[0], reason="ends-first")
    assert result.has_event("process-lives-on", reason="handled")
    assert result.has_event("attempt-stopped", saved=True, step=300, lost_steps=0)
    assert not result.has_event("workers-killed")


@pytest.mark.parametrize(
    "script",
    [
        "trap 'echo cleaning up' TERM; {toy}",
        "trap 'echo cleaning up' TERM; {toy} | tee {model_dir}/copy",
        """bash -c "trap 'echo below' TERM; {toy}; true"; true""",
        """trap 'echo cleaning up' TERM; bash -c "trap 'echo below' TERM; {toy}; true"; true""",
    ],
    ids=["chain", "pipe", "below a shell without", "nested"],
)
def test_what_a_shell_with_a_trap_waits_for_saves(
    start: Start, model_dir: Path, script: str
) -> None:
    """The trap runs only when the trainer has ended. The supervisor is a background job, too."""
    text = script.format(toy=toy(model_dir, "save-on-sigterm", "--at", "3"), model_dir=model_dir)
    in_background = ("bash", "-c", "trap '' INT QUIT; exec \"$@\"", "bash")
    running = start(shell_config(model_dir, f"{text}; exit"), prefix=in_background)
    running.wait_for("ready to save")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    assert result.summary["highest_committed_step"] == 300, result.log
    assert result.has_event("process-lives-on", reason="handled")
    assert not result.has_event("sigterm-reaction", ranks=[0], reason="handled")
    if text.startswith("trap"):
        assert result.has_event("sigterm-reaction", ranks=[0], reason="shell")
        assert b"cleaning up\n" in result.rank_log(1)


_COUNTS = """
import os, signal, time
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
os.write(1, b"ready to save\\n")
while not got: time.sleep(0.01)
while not os.path.exists(os.environ["GO"]): time.sleep(0.01)
os.write(1, b"%d times\\n" % len(got))
"""


@pytest.mark.parametrize("job_control", ["", "set -m; "], ids=["plain", "job control"])
def test_a_trap_that_passes_sigterm_on_is_left_to_do_so(
    start: Start, model_dir: Path, tmp_path: Path, job_control: str
) -> None:
    trainer = shlex.join([sys.executable, "-c", _COUNTS])
    trap = f"trap 'kill -TERM $P; touch {tmp_path}/go' TERM"
    script = f"{job_control}{trap}; {trainer} & P=$!; wait $P; wait $P; exit"
    config = shell_config(model_dir, script, env={"GO": str(tmp_path / "go")})
    running = ready(start, config)
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    assert b"1 times\n" in result.rank_log(1)
    assert not result.has_event("process-lives-on")
    assert not result.has_event("workers-killed")


def test_a_loader_of_a_trainer_below_a_shell_lives_until_it_has_saved(
    start: Start, model_dir: Path
) -> None:
    script = f"{toy(model_dir, 'save-with-loader', '--at', '3')}; true"
    running = ready(start, shell_config(model_dir, script))
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    assert result.summary["highest_committed_step"] == 300, result.log


def test_what_ignores_sigterm_below_a_shell_is_killed_after_the_grace_period(
    start: Start, model_dir: Path
) -> None:
    config = shell_config(
        model_dir, f"{toy(model_dir, 'ignore-sigterm')}; true", {"grace_period": 0.5}
    )
    running = ready(start, config, "deaf")
    running.wait_for_event("checkpoint-committed", step=2)
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    pid = result.event("process-lives-on", reason="ignored")["pid"]
    assert pid in result.event("workers-killed", reason="the grace period is over")["pids"]
    assert result.has_event("attempt-stopped", saved=False, step=2)


def test_a_second_request_shortens_the_grace_period_of_what_lives_on(
    start: Start, model_dir: Path
) -> None:
    script = f"{toy(model_dir, 'ignore-sigterm')}; true"
    running = ready(start, shell_config(model_dir, script, {"grace_period": 3000}), "deaf")
    running.signal(signal.SIGINT)
    running.wait_for_event("process-lives-on")

    def heard() -> bool:
        running.signal(signal.SIGINT)
        running.listen(0.5)
        return running.has_event("stop-hurried")

    assert eventually(heard, timeout=30.0)
    result = running.result()
    assert result.code == 79
    assert result.has_event("workers-killed", reason="the grace period is over")


def test_a_hung_trainer_below_a_shell_is_asked_to_save(start: Start, model_dir: Path) -> None:
    """A shell reports nothing: what it runs does, and is silent then."""
    script = f"{toy(model_dir, 'save-on-sigterm', '--at', '3', '--once')}; true"
    config = shell_config(
        model_dir,
        script,
        {"deadlines": {"TRAINING": 1.0}},
        success={"step": 302},
    )
    config["trainer"]["command"]["argv"][2] = script.replace("--once", "--once --steps 302")
    result = start(config).result()
    assert result.code == 0, result.log
    assert result.has_event("process-lives-on", reason="handled")
    assert not result.has_event("rank-ended", signal="SIGUSR2"), (
        "the shell does not dump its stacks"
    )
    assert result.has_event("attempt-stopped", saved=True, step=300)
    assert result.attempts == 2


def test_of_many_processes_below_a_shell_run_log_names_twenty(
    start: Start, model_dir: Path
) -> None:
    script = "for i in $(seq 30); do sleep 300 & done; echo all run; wait"
    running = ready(start, shell_config(model_dir, script), "all run")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    told = [each["pid"] for each in result.events("process-lives-on")]
    assert 20 <= len(told) <= 30, result.log
    assert told.count(None) == 1, "of the others it is told that they are"
    assert not result.has_event("workers-killed")


def test_a_shell_that_alone_gets_sigterm_takes_its_trainer_along_once_it_has_saved(
    start: Start, model_dir: Path
) -> None:
    script = f"{toy(model_dir, 'save-on-sigterm', '--once', '--steps', '302')}; true"
    running = ready(start, shell_config(model_dir, script, success={"step": 302}))
    (shell,) = running.wait_for_event("workers-started")["pids"]
    os.kill(shell, signal.SIGTERM)
    result = running.result()
    assert result.code == 0, result.log
    assert result.summary["preemptions_used"] == 0, "step 300 refilled the budget"
    assert not result.has_event("attempt-stopped")
    assert result.has_event("checkpoint-committed", step=300)
    assert result.has_event("attempt-failed", charge="preemptions")


_SAVES_AND_PRINTS = """
import os, select, signal, sys
if os.environ["SUPERVISE_ATTEMPT"] != "1": sys.exit()
def save(*_):
    pipe = select.poll()
    pipe.register(1, 0)
    pipe.poll()  # until nobody reads it
    print("saved", flush=True)
signal.signal(signal.SIGTERM, save)
os.write(1, b"ready to save\\n")  # a print might be interrupted by the one in `save`
signal.pause()
"""


def test_sigterm_to_the_process_group_of_a_pipe_is_a_preemption(
    start: Start, model_dir: Path
) -> None:
    """It ends `tee` too: what the trainer then prints breaks the pipe."""
    trainer = shlex.join([sys.executable, "-c", _SAVES_AND_PRINTS])
    script = f"{trainer} | tee {model_dir}/copy"
    running = ready(start, shell_config(model_dir, script, {"max_num_restarts": 0}))
    (leader,) = running.wait_for_event("workers-started")["pids"]
    os.killpg(leader, signal.SIGTERM)
    result = running.result()
    assert b"BrokenPipeError" in result.rank_log(1)
    assert result.code == 0, result.log
    assert result.has_event("attempt-failed", charge="preemptions")
    assert result.attempts == 2


_LAUNCHER = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
trainer = subprocess.Popen(sys.argv[1:])
sys.exit(trainer.wait())
"""


def test_a_launcher_that_exits_0_on_sigterm_takes_its_trainer_along_once_it_has_saved(
    start: Start, model_dir: Path
) -> None:
    argv = shlex.split(toy(model_dir, "save-on-sigterm", "--once", "--steps", "302"))
    config = command_config(model_dir, success={"step": 302})
    config["trainer"]["command"]["argv"] = [sys.executable, "-c", _LAUNCHER, *argv]
    running = ready(start, config)
    (launcher,) = running.wait_for_event("workers-started")["pids"]
    os.kill(launcher, signal.SIGTERM)
    result = running.result()
    assert result.code == 0, result.log
    assert result.has_event("rank-ended", attempt=1, rank=0, code=0)
    assert result.has_event("process-lives-on", reason="handled")
    assert result.has_event("checkpoint-committed", step=300)
    assert result.has_event("attempt-failed", charge="preemptions")
    assert result.attempts == 2


def test_a_stop_after_exit_code_0_gives_what_lives_on_the_whole_grace_period(
    start: Start, model_dir: Path
) -> None:
    """Longer than the seconds that are left of those for survivors without a stop."""
    trainer = toy(model_dir, "save-on-sigterm", "--at", "3", "--save-seconds", "6")
    script = f"{trainer} & until [ -e {model_dir}/go ]; do sleep 0.05; done"
    running = ready(start, shell_config(model_dir, script))
    (model_dir / "go").touch()
    running.wait_for_event("rank-ended", rank=0, code=0)
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    assert result.summary["highest_committed_step"] == 300, result.log
    assert result.event("process-lives-on", reason="handled")
    assert result.has_event("attempt-stopped", saved=True, step=300)


# --- exit code 0 ---------------------------------------------------------------------------------

_FORMS = {
    "nohup": "nohup {sleep} > /dev/null 2>&1 &",
    "double fork": "( {sleep} & ) & wait",
    "setsid": "setsid {sleep} &",
}


@pytest.mark.parametrize("form", _FORMS.values(), ids=_FORMS)
def test_a_command_that_goes_on_in_the_background_is_no_success(
    supervise: Supervise, model_dir: Path, form: str
) -> None:
    result = supervise(shell_config(model_dir, form.format(sleep="sleep 3600")))
    assert result.code == 70, result.log
    failure = result.events("attempt-failed", code="background")[-1]
    assert failure["cause"] == "the command went on in the background"
    assert "(sleep 3600)" in failure["root_cause"]
    assert "Run the program in the foreground" in result.events("advice")[-1]["advice"]


def test_what_a_finished_program_leaves_behind_is_named_and_does_no_harm(
    supervise: Supervise, model_dir: Path
) -> None:
    script = f"{toy(model_dir)}; sleep 3600 & echo $! > {model_dir}/left"
    result = supervise(shell_config(model_dir, script, success={"step": 6}))
    assert result.code == 0, result.log
    left, killed = int((model_dir / "left").read_text()), result.event("workers-killed")
    assert killed["pids"] == [left]
    assert f"pid {left} (sleep 3600)" in killed["text"], "a person may not know the number"
    assert not lives(left)


SAVES_AND_LEAVES = """
import os, pickle, subprocess, sys
os.makedirs("out", exist_ok=True)
if "saves" in sys.argv:
    for step in range(3):
        with open(f"out/step_{step}.pkl", "wb") as file:
            pickle.dump(step, file)
busy = [sys.executable, "-c", "while True: pass"]
print(subprocess.Popen(busy if "busy" in sys.argv else ["sleep", "3600"]).pid)
"""


@pytest.mark.parametrize(
    ("words", "code"), [(["saves"], 0), ([], 70), (["saves", "busy"], 70)], ids=str
)
def test_an_idle_helper_of_a_program_that_has_saved_does_no_harm(
    supervise: Supervise,
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
) -> None:
    here = model_dir.parent
    monkeypatch.chdir(here)
    (here / "train.py").write_text(SAVES_AND_LEAVES)
    config = command_config(model_dir)
    config["trainer"]["command"]["argv"] = [sys.executable, "train.py", *words]
    config["trainer"]["init"]["checkpoint"] = {}
    result = supervise(config)
    assert result.code == code, result.out
    killed = result.events("workers-killed")
    assert len(killed) == result.attempts
    assert (result.attempts == 1) is (code == 0)
    assert not any(lives(pid) for each in killed for pid in each["pids"])


def test_what_ends_soon_after_the_program_is_no_issue(
    supervise: Supervise, model_dir: Path
) -> None:
    result = supervise(shell_config(model_dir, f"{toy(model_dir)}; sleep 0.3 &"))
    assert result.code == 0, result.log
    assert not result.has_event("workers-killed")


def test_a_frozen_process_is_waited_for_no_longer(supervise: Supervise, model_dir: Path) -> None:
    result = supervise(shell_config(model_dir, "sleep 3600 & kill -STOP $!"))
    assert result.code == 70, result.log
    assert "still running: pid " in result.events("attempt-failed")[-1]["root_cause"]


def test_a_success_by_a_step_that_nothing_tells_says_what_is_missing(
    supervise: Supervise, model_dir: Path
) -> None:
    restart = {"max_num_restarts": 0}
    result = supervise(shell_config(model_dir, "echo 100", restart, success={"step": 100}))
    assert result.code == 76, result.log
    assert "`success.step` cannot hold" in result.event("verdict")["reason"]
    assert "Say how the output tells a step (`--set " in result.events("advice")[-1]["advice"]


# --- a pipe hides the exit code -----------------------------------------------------------------


_BREAKS = "def main(): raise ValueError('no such shard')\nmain()"


def test_a_traceback_behind_a_pipe_is_a_failure(supervise: Supervise, model_dir: Path) -> None:
    script = f"{shlex.join([sys.executable, '-c', _BREAKS])} 2>&1 | tee {model_dir}/copy"
    result = supervise(shell_config(model_dir, script))
    assert result.code == 70, result.log
    failure = result.events("attempt-failed")[-1]
    assert failure["root_cause"] == "ValueError: no such shard"
    assert "set -o pipefail" in result.event("config-doubtful", code="pipe-hides-failure")["text"]


def test_a_declared_success_behind_a_pipe_stands_and_the_traceback_is_told(
    supervise: Supervise, model_dir: Path
) -> None:
    script = f"echo done; {shlex.join([sys.executable, '-c', _BREAKS])} 2>&1 | tee {model_dir}/copy"
    result = supervise(shell_config(model_dir, script, success={"pattern": "done"}))
    assert result.code == 0
    doubt = result.event("success-doubted", exception="ValueError: no such shard")
    assert "set -o pipefail" in doubt["text"]
    (attempt,) = result.summary["attempts"]
    assert attempt["output_ends_in"] == "ValueError: no such shard"


def test_a_program_behind_a_pipe_that_succeeds_has_succeeded(
    supervise: Supervise, model_dir: Path
) -> None:
    script = f"{toy(model_dir)} 2>&1 | tee {model_dir}/copy"
    result = supervise(shell_config(model_dir, script))
    assert result.code == 0
    assert not result.has_event("success-doubted")


def test_with_pipefail_the_same_fails(supervise: Supervise, model_dir: Path) -> None:
    script = f"set -o pipefail; {shlex.join([sys.executable, '-c', _BREAKS])} 2>&1 | cat"
    result = supervise(shell_config(model_dir, script))
    assert result.code != 0
    assert result.has_event("attempt-failed")
