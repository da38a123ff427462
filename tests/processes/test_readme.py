"""The script and the config of the README do what the README says of them."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.running import Start

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The README's only block of code in `language`."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)
    return str(text)


def test_the_script_saves_on_sigterm_and_goes_on_after_kill_9(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(block("python"))
    first = start(block("yaml"))
    first.wait_for("step 1 total 1\n")
    first.signal(signal.SIGTERM)
    stopped = first.result()
    assert stopped.code == 75
    stop = stopped.event("attempt-stopped", saved=True, lost_steps=0)
    saved = stop["step"]

    second = start(block("yaml"))
    second.wait_for(f"step {saved + 1} total ")
    script.write_text(script.read_text().replace("time.sleep(0.5)", "time.sleep(0)"))
    (pid,) = second.wait_for_event("workers-started")["pids"]
    os.kill(pid, signal.SIGKILL)
    done = second.result()
    assert done.code == 0
    assert [each["step"] for each in done.events("attempt-started")] == [saved, saved]
    assert f"step {saved + 1} total {sum(range(saved + 2))}\n" in done.out
    assert "step 120 total 7260\n" in done.out
