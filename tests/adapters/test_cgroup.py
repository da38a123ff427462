"""Where the kernel counts its out-of-memory kills, in every layout of cgroups that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.adapters.kernel.oom_counter import OomCounter

V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "35 31 0:32 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
EVENTS = "low 0\nhigh 0\nmax 7\noom 3\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


@pytest.mark.parametrize(
    ("membership", "mounts", "file", "content"),
    [
        ("0::/user.slice/job\n", V2, "user.slice/job/memory.events", EVENTS),
        ("0::/\n", V2, "memory.events", EVENTS),
        ("0::/unit/supervise-a-b/1\n", V2, "unit/memory.events", EVENTS),
        ("4:memory:/job\n0::/\n", V1.format(top="/"), "memory/job/memory.oom_control", CONTROL),
        (
            "5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n",
            V1.format(top="/docker/ab"),
            "memory/memory.oom_control",
            CONTROL,
        ),
    ],
    ids=["v2", "v2 in a namespace", "v2 below", "hybrid", "v1 in a container"],
)
def test_kills_are_counted_from_the_first_look_on(
    tmp_path: Path, membership: str, mounts: str, file: str, content: str
) -> None:
    counter_file = _process(tmp_path, membership, mounts) / file
    counter_file.parent.mkdir(parents=True, exist_ok=True)
    counter_file.write_text(content.format(2))
    counter = OomCounter(77, root=tmp_path)
    assert counter.rise() == 0
    counter_file.write_text(content.format(5))
    assert counter.rise() == 3
    counter_file.unlink()
    assert counter.rise() is None


@pytest.mark.parametrize("mounts", [V2, V1.format(top="/"), V1.format(top="/elsewhere"), ""])
def test_where_nobody_counts_nobody_knows(tmp_path: Path, mounts: str) -> None:
    _process(tmp_path, "4:memory:/job\n0::/job\n", mounts)
    assert OomCounter(77, root=tmp_path).rise() is None
    assert OomCounter(78, root=tmp_path).rise() is None


def _process(root: Path, membership: str, mounts: str) -> Path:
    process = root / "proc" / "77"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(membership)
    (process / "mountinfo").write_text(mounts)
    return root / "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("membership", "mounts", "counter", "limits", "expected"),
    [
        ("0::/a/b\n", V2, "a/b/memory.events", {"a/b/memory.max": "max", "a/memory.max": "7"}, 7),
        ("0::/a/b\n", V2, "a/b/memory.events", {"a/b/memory.max": "5", "a/memory.max": "7"}, 5),
        ("0::/a\n", V2, "a/memory.events", {"a/memory.max": "max"}, None),
        (
            "4:memory:/a\n",
            V1.format(top="/"),
            "memory/a/memory.oom_control",
            {"memory/a/memory.limit_in_bytes": "9223372036854771712"},
            None,
        ),
        (
            "4:memory:/a\n",
            V1.format(top="/"),
            "memory/a/memory.oom_control",
            {"memory/a/memory.limit_in_bytes": "4096"},
            4096,
        ),
    ],
)
def test_the_lowest_limit_of_memory_holds(
    membership: str,
    mounts: str,
    counter: str,
    limits: dict[str, str],
    expected: int | None,
    tmp_path: Path,
) -> None:
    root = _process(tmp_path, membership, mounts)
    for name, text in {counter: "oom_kill 0\n", **limits}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    assert OomCounter(77, root=tmp_path).memory_limit == expected
