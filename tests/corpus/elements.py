"""What each word, type and code of a rule is for: a failure that it decides about (elements.txt).

Each line is the last one of a traceback in the user's own code. A section begins with the name of
its rule, and says what else is known: `told` (it got a SIGTERM), `restoring`, `library` (which
raised it), `restore` (a function of the user's), `loading` (a file of the user's about
checkpoints), `orbax`, `after` (it was raised while another error was handled), `printed` (there is
no traceback), `compiled` (by JAX), `native` (the line is the frame of a check that failed) and
`silent` (the line is the signal or exit code of an end without a word).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.protocol.messages import Stage

_TEXT = Path(__file__).with_name("elements.txt")
_PLACES = {
    "library": "/opt/venv/lib/python3.11/site-packages/gateway/client.py:ask",
    "restore": "/app/train.py:restore_state",
    "loading": "/app/checkpoint_io.py:read",
    "orbax": "/opt/venv/lib/python3.11/site-packages/orbax/checkpoint/handlers.py:read",
    "compiled": "/opt/venv/lib/python3.11/site-packages/jax/_src/compiler.py:backend_compile",
}
_OWN = "/app/train.py:main"
_HEAD = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    main()\n'
)
_EARLIER = (
    f'{_HEAD}  File "/app/train.py", line 9, in main\nRuntimeError: x\n\n'
    "During handling of the above exception, another exception occurred:\n\n"
)
_CHECK = "F1121 09:17:01.7 7 x.cc:1] Check failed: a == b (5 vs. 4)\n    @ 0x7f00  absl::Flush()\n"


@dataclass(frozen=True, slots=True)
class Element:
    """One line of the text: the rule that decides about it, and the failure."""

    rule: str
    line: str
    evidence: Evidence


def elements() -> Iterator[Element]:
    """All lines of the text."""
    rule, conditions = "", frozenset[str]()
    for line in _TEXT.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            rule, *words = line.removeprefix("== ").split()
            conditions = frozenset(words)
        elif line and not line.startswith("# "):
            text = line.replace("\\n", "\n").replace("\\t", "\t")
            yield Element(rule, line, _evidence(text, conditions))


def _evidence(text: str, conditions: frozenset[str]) -> Evidence:
    if "silent" in conditions:
        return Evidence((RankEvidence(_end(text)),))
    ended = WorkerExit(0, code=1, told_to_stop="told" in conditions)
    stage = Stage.RESTORING if "restoring" in conditions else None
    return Evidence((RankEvidence(ended, output=_output(text, conditions), stage=stage),))


def _end(text: str) -> WorkerExit:
    return WorkerExit(0, code=int(text)) if text.isdecimal() else WorkerExit(0, signal=text)


def _output(text: str, conditions: frozenset[str]) -> str:
    if "printed" in conditions:
        return f"{text}\n"
    if "native" in conditions:
        return f"{_CHECK}    @ 0x7f01  {text}\n"
    place = next((_PLACES[each] for each in conditions if each in _PLACES), _OWN)
    path, _, function = place.partition(":")
    raised = f'{_HEAD}  File "{path}", line 7, in {function}\n{text}\n'
    return _EARLIER + raised if "after" in conditions else raised
