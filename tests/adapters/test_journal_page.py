"""docs/reference/journal.md is what the code says of the journal, and says it of everything."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import get_args

import pytest

from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.decisions import Decision
from supervisor.core.events import Event
from supervisor.core.state import JobState
from supervisor.history.journal_page import page
from supervisor.history.journal_text import FIELDS, VOLATILE_PARTS
from supervisor.history.upcasters import FORMAT, SINCE

PUBLISHED = Path(__file__).parents[2] / "docs" / "reference" / "journal.md"
JOURNALS = Path(__file__).with_name("journals")
OF_THE_FIRST = frozenset(
    re.findall(
        r"\w+",
        """
        SupervisorStarted PhaseBegun WorkersStarted LaunchFailed WorkerReported Noticed
        MaintenanceAnnounced SilenceExcused CheckpointCommitted SaveMeasured WorkersObserved
        WorkersGone DevicesProbed RungCompileFailed QuarantineCleared StopRequested DeadlineReached
        BeginPhase MakeRoom StartWorkers ProbeDevices DumpStacks SignalWorkers KillWorkers Wait
        TellRecovery TellLivelock FinishJob
        """,
    )
)
"""The events and decisions of the first format: closed. What came later is in `SINCE`."""
KINDS = {kind.__name__ for union in (Event, Decision) for kind in get_args(union)}


def test_the_page_is_current() -> None:
    told = PUBLISHED.read_text(encoding="utf-8")
    assert told == page(), f"write it: python -m supervisor.history.journal_page > {PUBLISHED}"


def test_everything_has_a_section_and_every_field_a_meaning() -> None:
    text = page()
    sections = set(re.findall(r"^### (\w+)\n\n\S", text, re.M))
    assert sections >= KINDS
    links = set(re.findall(r"\]\(#(\w+)\)", text))
    assert links <= {name.lower() for name in sections} | {"events", "decisions"}
    assert "|  |" not in text
    assert set(VOLATILE_PARTS) == {
        name for name in JobState.__slots__ if "Volatile" in FIELDS.get(name, "")
    }


def test_what_the_page_shows_reads_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "demo"
    (folder / "journal").mkdir(parents=True)
    for name in ("journal/0.jsonl", "journal.jsonl"):
        shutil.copy(JOURNALS / f"format{FORMAT}_regrow.jsonl", folder / name)
    (python,) = re.findall(r"```python\n(.*?)```", page(), re.S)
    monkeypatch.chdir(tmp_path)
    names = {"FileJournal": FileJournal, "LocalStorage": LocalStorage, "Path": Path}
    exec(dedent(python), names)
    assert "WorkersGone" in capsys.readouterr().out
    if shutil.which("jq") is None:
        pytest.skip("the page uses jq")
    (shell,) = re.findall(r"```bash\n(.*?)```", page(), re.S)
    out = subprocess.check_output(["bash", "-c", dedent(shell)], cwd=folder, text=True)
    assert "TRAINING" in out


def test_an_older_journal_has_no_kind_that_came_later() -> None:
    assert SINCE.keys() == KINDS - OF_THE_FIRST, "supervisor/history/upcasters.py:SINCE"
    assert set(SINCE.values()) <= set(range(2, FORMAT + 1))
    for path in JOURNALS.glob("format*.jsonl"):
        written = int(path.stem[len("format")])
        assert 1 <= written <= FORMAT
        for line in path.read_bytes().splitlines():
            record = json.loads(line)
            told = [record["event"], *record["decisions"]] if "event" in record else []
            assert all(SINCE.get(each["kind"], 1) <= written for each in told)
