"""Records in each trainer process when an optimizer step ends; Python imports it at its start.

It watches the lines that the trainer prints, in the same way under every contestant, so that the
measurement does not depend on what a supervisor reports about itself.
"""

import builtins
import os
import re
import sys
import time

_STEP = re.compile(r"step (\d+)  loss ")


def _testify(path: str) -> None:
    record = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o666)
    say = builtins.print

    def witnessed(*values: object, **options: object) -> None:
        match = _STEP.match(str(values[0])) if values else None
        if match is not None:
            os.write(record, f"{time.monotonic()} {os.getpid()} {match[1]}\n".encode())
        say(*values, **options)  # type: ignore[call-overload]

    builtins.print = witnessed


if "BENCHMARK_WITNESS" in os.environ and "-m trainer" in " ".join(sys.orig_argv[1:4]):
    _testify(os.environ["BENCHMARK_WITNESS"])
