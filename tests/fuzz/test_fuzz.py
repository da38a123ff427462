"""Some seconds of fuzzing with a fixed seed; CI fuzzes one more minute, with another seed each
time."""

from __future__ import annotations

import subprocess
import sys


def test_whatever_is_read_is_a_value_or_the_readers_own_error() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", "8", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 things wrong" in done.stdout
