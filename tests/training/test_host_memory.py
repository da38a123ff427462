"""What memory there is: of the host, or less by the limit of a cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.host_memory import available

GB = 1 << 30


def test_this_host_has_some() -> None:
    assert 0 < available() < 1 << 50


@pytest.mark.parametrize(
    ("membership", "limit", "expected"),
    [
        ("4:memory:/job\n0::/\n", None, 8 * GB),
        ("0::/\n", "max", 8 * GB),
        ("0::/\n", str(20 * GB), 8 * GB),
        ("0::/\n", str(4 * GB), 4 * GB - 3 * GB + 2 * GB),
        ("0::/user.slice/job\n", str(4 * GB), 3 * GB),
    ],
)
def test_the_smaller_of_host_and_cgroup_counts(
    tmp_path: Path, membership: str, limit: str | None, expected: int
) -> None:
    meminfo = f"MemTotal: {16 * GB // 1024} kB\nMemAvailable:   {8 * GB // 1024} kB\nHuge: 0\n"
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(meminfo)
    (tmp_path / "proc/self/cgroup").write_text(membership)
    path = membership.splitlines()[-1].removeprefix("0::/")
    cgroup = tmp_path / "sys/fs/cgroup" / path
    cgroup.mkdir(parents=True)
    if limit is not None:
        (cgroup / "memory.max").write_text(limit + "\n")
        (cgroup / "memory.current").write_text(f"{3 * GB}\n")
        (cgroup / "memory.stat").write_text(f"anon 5\nactive_file {GB}\ninactive_file {GB}\n")
    assert available(tmp_path) == expected
