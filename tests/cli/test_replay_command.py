"""Which command runs a step of a job again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from supervisor.cli.job_view import replay_command, view
from supervisor.protocol.location import Uri
from tests.adapters.test_journal import STORY, tell


def test_a_phase_is_named_where_there_are_several_and_a_bucket_has_no_replay(
    tmp_path: Path,
) -> None:
    tell(tmp_path, *STORY[:3])
    job = view(tmp_path)
    (one,) = job.policy.phases
    two = replace(job, policy=replace(job.policy, phases=(one, replace(one, name="a b"))))
    words = f"supervise replay {tmp_path}"
    assert replay_command(job, tmp_path, "one", 7) == f"{words} --step 7"
    assert replay_command(two, tmp_path, "a b", 7) == f"{words} --phase 'a b' --step 7"
    assert replay_command(two, tmp_path, "a b") == words
    assert replay_command(job, tmp_path, "of another time", 7) is None
    assert replay_command(job, Uri("gs", "bucket", "job"), "one", 7) is None
