"""Has our trainer's step compiled for TPUs that are not there, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from supervisor.protocol.environment import scrubbed

_WITHOUT_A_TPU = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""libtpu looks for the TPU of this machine first, and locks it: nothing of it is needed here, and
a trainer may have it."""


class CompileAheadError(Exception):
    """Nothing could be compiled; the text says why, and what to do."""


def compile_ahead(params: dict[str, Any], rungs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What `python -m trainer.aot` answers for each of `rungs`, as it comes.

    Raises:
        CompileAheadError: libtpu is not installed, or the compiler died.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise CompileAheadError(
            "--aot needs libtpu, which is not installed: pip install '.[aot]' in a checkout"
        )
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainer.aot"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**scrubbed(os.environ), **_WITHOUT_A_TPU},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process, process.stdin as requests:
            requests.write(json.dumps({**params, "rungs": rungs}).encode())
            requests.close()
            for line in process.stdout:
                yield json.loads(line)
        if process.returncode:
            said.seek(0)
            lines = said.read().decode("utf-8", "replace").strip().splitlines() or ["nothing"]
            raise CompileAheadError(
                f"python -m trainer.aot ended with code {process.returncode} and said: {lines[-1]}"
            )
