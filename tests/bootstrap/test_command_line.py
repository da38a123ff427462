"""Which command lines run a Python program, and where the bootstrap goes in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.engines.ahead.standby_pool import why_no_standby
from supervisor.engines.python_program import (
    START,
    bootstrapped,
    from_interpreter,
    script_of,
    shell_before,
)
from supervisor.engines.python_script import with_interpreter


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("python train.py -c x", "python START train.py -c x"),
        ("python3 -u train.py", "python3 -u START train.py"),
        ("/opt/bin/python3.11 -m package.train a", "/opt/bin/python3.11 START -m package.train a"),
        ("python3.13t -c code a", "python3.13t START -c code a"),
        ("python -W error -X dev -OO -I t.py", "python -W error -X dev -OO -I START t.py"),
        ("python -Werror -Xdev -m t", "python -Werror -Xdev START -m t"),
        ("python -uW ignore t.py", "python -uW ignore START t.py"),
        ("python -um t -u", "python -u START -m t -u"),
        ("python -mt", "python START -mt"),
        (
            "python --check-hash-based-pycs always t.py",
            "python --check-hash-based-pycs always START t.py",
        ),
        (f"{sys.executable} t.py", f"{sys.executable} START t.py"),
        # --- behind a command that becomes the interpreter
        ("env python t.py", "env python START t.py"),
        ("/usr/bin/env A=1 B= python -u t.py A=1", "/usr/bin/env A=1 B= python -u START t.py A=1"),
        ("nohup nice -n -5 python -m t", "nohup nice -n -5 python START -m t"),
        ("nice -n5 python t.py", "nice -n5 python START t.py"),
        ("nice -5 python t.py", "nice -5 python START t.py"),
        ("nice --adjustment=5 python t.py", "nice --adjustment=5 python START t.py"),
        ("stdbuf -oL -e 0 --input=0 python t.py", "stdbuf -oL -e 0 --input=0 python START t.py"),
        ("taskset -c 0-3,5:2 python t.py", "taskset -c 0-3,5:2 python START t.py"),
        ("taskset 0xff python t.py", "taskset 0xff python START t.py"),
        ("ionice -c2 -n 7 -t python t.py", "ionice -c2 -n 7 -t python START t.py"),
        (
            "numactl --cpunodebind=0 -m 0 -l python t.py",
            "numactl --cpunodebind=0 -m 0 -l python START t.py",
        ),
        # --- other programs
        ("nohup", "nohup"),
        ("env A=1", "env A=1"),
        ("env -i python t.py", "env -i python t.py"),
        ("env -S python t.py", "env -S python t.py"),
        ("./env python t.py", "./env python t.py"),
        ("nice -n python t.py", "nice -n python t.py"),
        ("nice torchrun python t.py", "nice torchrun python t.py"),
        ("setsid python t.py", "setsid python t.py"),
        ("timeout 9 python t.py", "timeout 9 python t.py"),
        ("bash python train.py", "bash python train.py"),
        ("pythonista train.py", "pythonista train.py"),
        ("torchrun train.py", "torchrun train.py"),
    ],
)
def test_where_it_goes(argv: str, expected: str) -> None:
    assert bootstrapped(argv.split()) == (expected.replace("START", START).split(), None)


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["bash", "-c", "python t.py --lr=1e-3"], "python START t.py --lr=1e-3"),
        (["sh", "-ec", " exec  python -m t "], "python START -m t"),
        (["nice", "/bin/bash", "-lc", "nohup python -u t.py"], "nohup python -u START t.py"),
        (["bash", "-eu", "-o", "pipefail", "-c", "A=1 python t.py"], "env A=1 python START t.py"),
        (["bash", "-c", "python t.py '*.txt' \"it's\""], "python START t.py *.txt it's"),
    ],
)
def test_a_shell_becomes_the_program_that_its_text_is(argv: list[str], command: str) -> None:
    words, why_not = bootstrapped(argv)
    assert (words[: len(argv) - 1], why_not) == (argv[:-1], None)
    run_words = 'exec "$0" "$@"' if "exec" in argv[-1] else '"$0" "$@"'
    assert words[len(argv) - 1 :] == [run_words, *command.replace("START", START).split()]
    assert script_of(argv) is None
    shell = next(Path(word).name for word in argv if word.endswith("sh"))
    assert why_no_standby(argv, {}) == (
        f"{shell} may set variables for Python: run it without {shell}"
    )


def test_a_function_and_a_trap_of_the_shell_are_what_they_would_be(tmp_path: Path) -> None:
    before = tmp_path / "before.sh"
    before.write_text('python() { echo mine "${@: -1}"; }; trap "echo the end" EXIT')
    words, _ = bootstrapped(["bash", "-c", "python t.py"])
    env = os.environ | {"BASH_ENV": str(before)}
    assert subprocess.run(words, env=env, capture_output=True, text=True).stdout == (
        "mine t.py\nthe end\n"
    )


@pytest.mark.parametrize(
    "argv",
    [
        *(
            ["bash", "-c", text]
            for text in (
                *(
                    "python t.py; true",
                    "cd x && python t.py",
                    "python t.py | tee log",
                    "python t.py &",
                ),
                *(
                    "python $X",
                    'python "$X"',
                    "python *.py",
                    "python t.py >log",
                    "python t.py\n",
                    "",
                ),
                *(
                    "python ~/t.py",
                    "python {a,b}.py",
                    "python t.py # x",
                    "(python t.py)",
                    "python 't",
                ),
                *(
                    "'A=1' python t.py",
                    "torchrun t.py",
                    "time python t.py",
                    "exec -a x python t.py",
                    "python",
                ),
            )
        ),
        ["bash", "-ic", "python t.py"],
        ["bash", "-c", "python t.py", "name"],
        ["bash", "-c"],
        ["bash"],
    ],
)
def test_a_shell_whose_text_may_mean_more_runs_as_it_is(argv: list[str]) -> None:
    assert bootstrapped(argv)[0] == argv


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ("python", "Python reads the program from standard input"),
        ("python -u", "Python reads the program from standard input"),
        ("python - x", "option -"),
        ("python -i t.py", "option -i"),
        ("python -xu t.py", "option -xu"),
        ("python --version", "option --version"),
        ("python -- t.py", "option --"),
    ],
)
def test_what_runs_as_it_is(argv: str, why: str) -> None:
    found, why_not = bootstrapped(argv.split())
    assert found == argv.split()
    assert why_not is not None
    assert why_not.endswith(why)


def test_a_command_that_sets_variables_has_no_standby() -> None:
    """The standby is told its environment when it becomes the worker, after the command."""
    why = why_no_standby(["nice", "env", "A=1", "python", "t.py"], {})
    assert why == "env sets variables for Python: set them in command.env instead"
    assert why_no_standby(["nice", "-n", "5", "python", "t.py"], {}) is None
    assert why_no_standby(["python", "t.py"], {}) is None


def test_a_shell_stands_before_an_interpreter_only() -> None:
    assert shell_before(["nice", "bash", "-c", "nice python t.py"]) == "bash"
    assert shell_before(["bash", "-c", "ls -l"]) is None
    assert shell_before(["python", "t.py"]) is None


def test_a_standby_has_become_the_interpreter_already() -> None:
    assert from_interpreter(["nice", "-n", "5", "python", "-u", "t.py"]) == ["python", "-u", "t.py"]
    assert from_interpreter(["python", "nice"]) == ["python", "nice"]
    assert from_interpreter(["nice", "train"]) == ["nice", "train"]


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("t.py", "#!/usr/bin/env python3", ["python3"]),
        ("t.py", "#! /opt/bin/python3.12  -u ", ["/opt/bin/python3.12", "-u"]),
        ("t.py", "#!/usr/bin/python -u -O", ["/usr/bin/python", "-u -O"]),
        ("t.py", "#!/usr/bin/env -S python3 -u", []),
        ("t.py", "#!/usr/bin/env", []),
        ("t.py", "#!python3", []),
        ("t.py", "#!/bin/sh", []),
        ("t.py", "#!/usr/bin/env python3\r", []),
        ("t.py", "import jax", []),
        ("torchrun", "#!/usr/bin/env python3", []),
    ],
)
def test_an_executable_script_is_started_by_the_interpreter_that_it_names(
    tmp_path: Path, name: str, line: str, words: list[str]
) -> None:
    """As the kernel does it: one argument at most."""
    script = tmp_path / name
    script.write_text(f"{line}\nprint(1)\n", newline="")
    assert with_interpreter([str(script), "a"]) == [*words, str(script), "a"]


def test_a_script_that_is_not_there_or_found_on_the_path_is_left_to_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert with_interpreter(["./t.py"]) == ["./t.py"]
    (tmp_path / "t.py").write_text("#!/usr/bin/env python3\n")
    assert with_interpreter(["t.py"]) == ["t.py"]
    assert with_interpreter(["./t.py"]) == ["python3", "./t.py"]


def test_an_executable_script_whose_arguments_change_has_a_standby(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text("#!/usr/bin/env python3\n")
    assert why_no_standby([str(script), "{resume_step}"], {}) is None
