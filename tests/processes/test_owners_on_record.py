"""What the journal of a job says of its owners, and what remains of that after damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.cli.main import main
from supervisor.core.events import Event, SupervisorStarted
from supervisor.files.segments import JOURNAL
from supervisor.owners_on_record import JournaledOwners
from tests.adapters.test_journal import STORY, tell


def leased(*epochs: int) -> tuple[Event, ...]:
    """A job whose supervisors had the lease under these epochs, one after the other."""
    first, *rest = STORY
    assert isinstance(first, SupervisorStarted)
    again = (replace(first, lease_epoch=epoch) for epoch in epochs[1:])
    return (replace(first, lease_epoch=epochs[0]), *rest, *again)


@pytest.mark.parametrize("compact_after", [1000, 3])
def test_the_highest_epoch_counts_also_once_the_journal_is_compacted(
    tmp_path: Path, compact_after: int
) -> None:
    tell(tmp_path, *leased(4, 9, 0), after=compact_after)
    owners = JournaledOwners(tmp_path, None, had_lease=False)
    assert owners.highest_epoch() == 9
    assert owners.is_in_use(), "it ran under a lease, although this host alone sees the folder"


@pytest.mark.parametrize("had_lease", [True, False])
def test_a_job_without_epochs_on_record_is_in_use_where_all_owners_had_a_lease(
    tmp_path: Path, *, had_lease: bool
) -> None:
    owners = JournaledOwners(tmp_path, None, had_lease=had_lease)
    assert (owners.highest_epoch(), owners.is_in_use()) == (0, False), "there is no job"
    tell(tmp_path, *STORY)
    assert (owners.highest_epoch(), owners.is_in_use()) == (0, had_lease)


@pytest.mark.parametrize("had_lease", [True, False])
def test_a_journal_that_cannot_be_read_counts_as_in_use(tmp_path: Path, *, had_lease: bool) -> None:
    (tmp_path / JOURNAL).write_bytes(b"{\n{\n")
    owners = JournaledOwners(tmp_path, None, had_lease=had_lease)
    assert (owners.highest_epoch(), owners.is_in_use()) == (None, had_lease)


def test_a_repair_keeps_the_highest_epoch_of_the_lines_behind_the_damage(tmp_path: Path) -> None:
    tell(tmp_path, *leased(4, 9))
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    (tmp_path / JOURNAL).write_bytes(b"".join([*lines[:3], b"{\n", *lines[3:]]))
    assert main(["repair", str(tmp_path)]) == 0
    assert FileJournal(LocalStorage(tmp_path)).read().past.lease_epoch == 9
