"""Draws the picture of a real session that the README shows.

    make picture

Runs the quickstart in a terminal (tmux), waits until it goes on after its drill, and writes what
the terminal then shows to `docs/_static/session.svg`.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

_ROOT = Path(__file__).parents[1]
_PICTURE = _ROOT / "docs" / "_static" / "session.svg"
_COLUMNS, _LINES = 118, 52
_SHOWN = re.compile(r"checkpoint of step 200 is committed")
"""What the terminal shows last."""
_PATIENCE = 600.0
"""Longest wait in seconds; most of it is compilation."""
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Where rich has readers fetch a font from: they use their own."""


def main() -> None:
    """Run the session and draw it."""
    with tempfile.TemporaryDirectory() as folder:
        screen = _session(folder)
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen), no_wrap=True, crop=True)
    picture = console.export_svg(title="supervise run examples/quickstart.yaml")
    _PICTURE.parent.mkdir(exist_ok=True)
    _PICTURE.write_text(_FONT.sub("", picture), encoding="utf-8")


def _session(folder: str) -> str:
    """Returns the screen with its colours, as the terminal shows it once the job goes on.

    Raises:
        RuntimeError: it did not come to that in time.
    """
    tmux = ["tmux", "-L", Path(folder).name]
    supervise = str(Path(sys.executable).with_name("supervise"))
    place = f"trainer.init.model_dir={folder}/quickstart"
    command = [supervise, "run", "examples/quickstart.yaml", "--set", place]
    size = ["-x", str(_COLUMNS), "-y", str(_LINES)]
    _call(*tmux, "new-session", "-d", *size, "-c", str(_ROOT), shlex.join(command))
    end = time.monotonic() + _PATIENCE
    screen = ""
    while _SHOWN.search(screen) is None:
        if time.monotonic() > end:
            raise RuntimeError(f"no {_SHOWN.pattern!r} within {_PATIENCE:g} s")
        time.sleep(0.05)
        screen = _call(*tmux, "capture-pane", "-p", "-e")
    _call(*tmux, "send-keys", "C-c")
    while subprocess.run([*tmux, "has-session"], capture_output=True, check=False).returncode == 0:
        time.sleep(0.05)  # it saves, and ends
    return screen.replace(folder, ".")


def _call(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
