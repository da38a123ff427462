"""Which file system a directory is on, by a made-up list of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.protocol.this_machine import file_system, is_mounted_bucket, is_posix, real_path

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /mnt/bucket rw,nosuid shared:2 - fuse.gcsfuse my-bucket rw,user_id=0
31 22 0:41 / /mnt/with\\040space rw - fuse.s3fs s3fs rw
32 22 0:42 / /mnt/point rw - fuse mountpoint-s3 rw
33 30 0:43 / /mnt/bucket/scratch rw - tmpfs tmpfs rw
34 22 0:44 / /mnt/nfs rw - nfs4 server:/export rw
35 22 0:45 / /mnt/twice rw - fuse.rclone remote: rw
36 22 0:46 / /mnt/twice rw - xfs /dev/sdb1 rw
37 22 0:47 / /mnt/home rw - fuse.sshfs user@host: rw
"""


@pytest.mark.parametrize(
    ("directory", "kind", "bucket"),
    [
        ("/", "ext4", False),
        ("/mnt/bucketeer", "ext4", False),
        ("/mnt/bucket", "fuse.gcsfuse", True),
        ("/mnt/bucket/jobs/not/there/yet", "fuse.gcsfuse", True),
        ("/mnt/bucket/scratch/x", "tmpfs", False),
        ("/mnt/with space/x", "fuse.s3fs", True),
        ("/mnt/point/x", "fuse.mountpoint-s3", True),
        ("/mnt/nfs/x", "nfs4", False),
        ("/mnt/twice/x", "xfs", False),
        ("/mnt/home/x", "fuse.sshfs", False),
    ],
)
def test_the_innermost_and_uppermost_mount_counts(directory: str, kind: str, bucket: bool) -> None:
    assert file_system(Path(directory), MOUNTS) == kind
    assert is_mounted_bucket(kind) is bucket


def test_a_link_that_cannot_be_read_stays_as_it_is(tmp_path: Path, unreadable_link: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    assert real_path(tmp_path / "link" / "5") == tmp_path.resolve() / "real" / "5"
    assert real_path(unreadable_link / "5") == unreadable_link / "5"
    assert file_system(unreadable_link) == "proc"


def test_this_machine_has_a_disk(tmp_path: Path) -> None:
    assert file_system(Path("/proc/self")) == "proc"
    assert is_posix(tmp_path)
