"""A file with secrets: how it is read, whose it must be, and that no message shows a value."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.adapters.stores.env_file import parse, read_env_file
from supervisor.files.secret_file import why_exposed


def made(folder: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path = folder / "secrets.env"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def test_names_and_values(tmp_path: Path) -> None:
    lines = [
        "# a",
        "",
        "  # b",
        "A=1",
        "B=a=b #c $D `e` \\n",
        "C='it''s'",
        'D="x"\r',
        "E=",
        "_f1= g ",
    ]
    assert read_env_file(made(tmp_path, "\n".join(lines))) == {
        "A": "1",
        "B": "a=b #c $D `e` \\n",
        "C": "it''s",
        "D": "x",
        "E": "",
        "_f1": " g ",
    }


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
def test_it_may_be_stricter(tmp_path: Path, mode: int) -> None:
    assert read_env_file(made(tmp_path, "A=1", mode)) == {"A": "1"}


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o601, 0o644, 0o660, 0o610])
def test_what_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = made(tmp_path, "A=the-value", mode)
    with pytest.raises(
        ValueError, match=rf"is open to others \(mode {mode:04o}\): chown it, or chmod 600 {path}"
    ):
        read_env_file(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give a file away")
def test_what_belongs_to_another_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path, "A=the-value")
    os.chown(path, 12345, -1)
    with pytest.raises(ValueError, match="belongs to uid 12345, not to us"):
        read_env_file(path)


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    made(tmp_path, "A=1")
    fifo, dangling = tmp_path / "fifo", tmp_path / "dangling"
    os.mkfifo(fifo, 0o600)
    dangling.symlink_to("nowhere")
    for other in (fifo, tmp_path, dangling, tmp_path / "nowhere"):
        with pytest.raises(OSError, match=str(other)):
            read_env_file(other)


@pytest.mark.parametrize("mode", [0o400, 0o644])
def test_a_mounted_secret_is_a_link_and_what_it_leads_to_is_judged(
    tmp_path: Path, mode: int
) -> None:
    """As Kubernetes makes them: secrets.env -> ..data/secrets.env, ..data -> ..2026_01_01."""
    (tmp_path / "..2026_01_01").mkdir()
    made(tmp_path / "..2026_01_01", "A=1", mode)
    (tmp_path / "..data").symlink_to("..2026_01_01")
    (tmp_path / "secrets.env").symlink_to("..data/secrets.env")
    if mode == 0o400:
        assert read_env_file(tmp_path / "secrets.env") == {"A": "1"}
    else:
        with pytest.raises(ValueError, match=r"is open to others \(mode 0644\)"):
            read_env_file(tmp_path / "secrets.env")


@pytest.mark.parametrize(
    ("owner", "group", "mode", "told"),
    [
        (0, 0, 0o600, None),
        (10001, 10001, 0o600, None),
        (10002, 10001, 0o600, "belongs to uid 10002, not to us"),
        (10002, 10001, 0o440, "belongs to uid 10002, not to us"),
        # Root lets a group of ours read it, as Kubernetes does with a secret (`fsGroup: 2000`).
        (0, 2000, 0o440, None),
        (0, 10001, 0o640, None),
        (0, 3000, 0o440, "is open to others (mode 0440)"),
        (0, 2000, 0o460, "is open to others (mode 0460)"),
        (0, 2000, 0o450, "is open to others (mode 0450)"),
        (0, 2000, 0o444, "is open to others (mode 0444)"),
        # In a file of our own it is an umask, and not a decision.
        (10001, 10001, 0o640, "is open to others (mode 0640)"),
        (10001, 2000, 0o440, "is open to others (mode 0440)"),
    ],
)
def test_whose_it_may_be_and_who_may_read_it(
    tmp_path: Path, owner: int, group: int, mode: int, told: str | None
) -> None:
    status = list(made(tmp_path, "A=1").stat())
    status[stat.ST_MODE] = stat.S_IFREG | mode
    status[stat.ST_UID], status[stat.ST_GID] = owner, group
    assert why_exposed(os.stat_result(status), 10001, {10001, 2000}) == told


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can become somebody else")
@pytest.mark.parametrize(
    ("group", "mode", "told"),
    [
        (2000, 0o440, "{'A': '1'}"),
        (2000, 0o444, "chown it to uid 10001, or to root and a group of that user, with chmod 640"),
        (3000, 0o440, "Permission denied"),
    ],
)
def test_a_secret_that_kubernetes_mounts_for_a_group(
    tmp_path: Path, group: int, mode: int, told: str
) -> None:
    path = made(tmp_path, "A=1", mode)
    os.chown(path, 0, group)
    folder = os.open(tmp_path, os.O_PATH)  # pytest's folders above it are closed to others
    tmp_path.chmod(0o755)
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.fchdir(folder)
            os.setgroups([2000])
            os.setgid(10001)
            os.setuid(10001)
            os.write(writing, str(read_env_file(Path("secrets.env"))).encode())
        except (OSError, ValueError) as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(folder)
    os.close(writing)
    with os.fdopen(reading) as output:
        assert told in output.read()
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("A=1\nthe-value", ":2: is not NAME=VALUE"),
        ("export A=the-value", ":1: is not NAME=VALUE"),
        ("1A=the-value", ":1: is not NAME=VALUE"),
        ("A =the-value", ":1: is not NAME=VALUE"),
        ("=the-value", ":1: is not NAME=VALUE"),
        ("A=1\n\nA=the-value", ":3: A is here twice"),
        ("A='the-value", ":1: A begins with a quote that is not closed"),
        ("A=\"the-value'", ":1: A begins with a quote that is not closed"),
        ("A='", ":1: A begins with a quote that is not closed"),
        (
            "SUPERVISE_JOB=the-value",
            ":1: SUPERVISE_JOB: names that begin with SUPERVISE_ are reserved",
        ),
        ("A=the\0value", ":1: A holds a NUL"),
        (b"A=1\nB=the-value\xff", "secrets.env:2: is not UTF-8: save the file as UTF-8"),
        ("A=" + "the-value" * 40_000, "bytes, more than 262144"),
    ],
)
def test_a_wrong_line_is_told_by_its_place(tmp_path: Path, content: str | bytes, told: str) -> None:
    path = made(tmp_path, content)
    with pytest.raises(ValueError, match=r"secrets\.env") as caught:
        read_env_file(path)
    assert told in str(caught.value)
    assert "value" not in str(caught.value)


@given(st.text())
def test_any_text_is_read_or_refused_without_being_shown(content: str) -> None:
    try:
        found = parse(content, "F")
    except ValueError as error:
        where, _, _ = str(error).partition(": ")
        assert where.startswith("F:")
    else:
        assert all(value in content for value in found.values())
