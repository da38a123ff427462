"""Shows the job over HTTP while it runs (`supervise run --http`): starts `supervise serve` as a
process of its own.

Nothing of that process can hurt the job: it only reads files, has a lower priority, and the kernel
kills it when this process ends, however that happens. If it ends by itself, a line says so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from supervisor.host.notice import Notice
from supervisor.protocol.messages import printable

WARNING = "supervise: warning: "
"""How a line of `supervise serve` begins that warns of its address."""
_SHOWN = re.compile(r" shown at (http://\S+)$")
"""The line that says that it listens."""
_CHILD = """
import os, sys
from supervisor.host.birth import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
os.nice(10)
from supervisor.__main__ import main
sys.exit(main())
"""
"""What it runs: `python -m supervisor`, tied to this process. The option -P keeps modules of the
working directory from taking the place of ours."""
_MAX_LINE = 4096
"""Bytes of a line that are told."""
_END_TIMEOUT = 2.0
"""Seconds to wait for the end of a killed process."""


class Loop(Protocol):
    """The main loop, which tells us that there is output to read."""

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `descriptor` can be read, until `forget`."""
        ...

    def forget(self, descriptor: int) -> None:
        """Stop watching `descriptor`."""
        ...


Say = Callable[[Notice, bool], None]
"""Tells a person something; the second value is whether it is normal."""


@contextmanager
def shown_over_http(address: str, place: str, loop: Loop, say: Say) -> Iterator[None]:
    """Show the job in `place`, its model_dir, at `address` for the block. `say` gets where it is
    shown, or why it is not (any more)."""
    try:
        process = _started(address, place)
    except OSError as error:
        say(_not_shown(address, f"no process can be started: {error.strerror}"), False)
        yield
        return
    child = _HttpChild(process, address, loop, say)
    try:
        yield
    finally:
        child.end()


def _started(address: str, place: str) -> subprocess.Popen[bytes]:
    """Start it in our session, so that it is not taken for a process of the job, but in a process
    group of its own: Ctrl-C asks the job to save, and it is shown until it has."""
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-c", _CHILD, str(os.getpid())),
            *("serve", "--http", address, "--", place),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )


class _HttpChild:
    """The process, and what it prints: where it shows the job, or last why it does not."""

    def __init__(
        self, process: subprocess.Popen[bytes], address: str, loop: Loop, say: Say
    ) -> None:
        assert process.stdout is not None
        self._process = process
        self._output = process.stdout
        self._address = address
        self._loop = loop
        self._say = say
        self._unread = b""
        self._last = ""
        os.set_blocking(self._output.fileno(), False)
        loop.watch(self._output.fileno(), self._read)

    def end(self) -> None:
        """Kill it, as it has nothing to save. One that hangs in the kernel is left to that."""
        self._loop.forget(self._output.fileno())
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_TIMEOUT)
        self._output.close()

    def _read(self) -> None:
        data = os.read(self._output.fileno(), 65536)
        *lines, rest = (self._unread + data).split(b"\n")
        self._unread = rest[-_MAX_LINE:]
        for line in lines:
            self._take(printable(line[-_MAX_LINE:].decode(errors="replace")))
        if not data:  # nobody else has its output, so it ends now
            self._loop.forget(self._output.fileno())
            self._say(_not_shown(self._address, self._last or "its process was killed"), False)

    def _take(self, line: str) -> None:
        if (found := _SHOWN.search(line)) is not None:
            text = f"the job is shown at {found[1]}"
            self._say(Notice("http-shown", text, address=found[1]), True)
        elif line.startswith(WARNING):
            text = line.removeprefix(WARNING)
            self._say(Notice("http-exposed", text, address=self._address), False)
        else:
            self._last = line.removeprefix("supervise: ")


def _not_shown(address: str, why: str) -> Notice:
    text = f"the job is not shown at {address}: {why}; the job goes on without it"
    return Notice("http-not-shown", text, address=address, reason=why)
