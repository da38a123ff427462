"""Compiles our trainer's step for TPUs that this machine does not have, in another process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from supervisor.protocol.environment import without_supervisor_variables

_WITHOUT_A_TPU = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Variables that keep libtpu from asking for this machine's TPU and from locking it: the TPU is not
needed, and a trainer may be using it."""


class CompileAheadError(Exception):
    """Compiling ahead failed; the text says why, and what to do."""


def compile_ahead(params: dict[str, Any], rungs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the answer of `python -m trainer.aot` for each of `rungs`, as soon as it comes.

    Raises:
        CompileAheadError: libtpu is not installed, or `trainer.aot` ended with an error.
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
            env={**without_supervisor_variables(os.environ), **_WITHOUT_A_TPU},
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
