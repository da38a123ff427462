"""The startup script of a slice: a shell reads it, and whatever is in a config stays what it is."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.location import Uri
from supervisor.provision.boot import File, Machine, read_report, script, unit
from supervisor.provision.decide import MachineReport

URI = Uri("gs", "bucket", "runs/a b'$x")
EVIL = "a: 'it''s'\nEOF\n$(touch /tmp/evil) `x` \\ \"${HOME}\"\nEND-OF-TELL\n"


def made(config: str = EVIL, user: str = "supervise", uri: Uri = URI) -> str:
    files = (File("job.yaml", config.encode()), File("w.whl", b"wheel"), File("lock", b"lock"))
    return script(Machine("supervise-demo-1", uri, *files, user), 3)


def written(text: str, path: str, tmp_path: Path) -> str:
    """What that part of the script writes to `path`, when a shell runs it."""
    end = text[text.index(f"cat > {path} <<") :].splitlines()[0].split("<<")[1].strip("'")
    part = text[text.index(f"cat > {path} <<") :]
    part = part[: part.index(f"\n{end}\n") + len(end) + 2]
    target = tmp_path / "written"
    part = part.replace(f"cat > {path} ", f"cat > {shlex.quote(str(target))} ", 1)
    subprocess.run(["bash", "-euo", "pipefail", "-c", part], check=True)
    return target.read_text()


@pytest.mark.parametrize("user", ["supervise", "root", "me"])
def test_a_shell_can_read_it(user: str) -> None:
    text = made(user=user)
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("useradd" in text) == (user != "root")


def test_files_are_written_as_they_are(tmp_path: Path) -> None:
    text = made(user="me")
    assert written(text, "/etc/systemd/system/supervise@.service", tmp_path) == unit()
    drop_in = written(text, "/etc/systemd/system/supervise@.service.d/provision.conf", tmp_path)
    assert "User=me\nGroup=me\n" in drop_in
    rules = written(text, "/etc/udev/rules.d/70-supervise.rules", tmp_path)
    assert rules.count('GROUP="me"') == 2
    bucket = written(text, "/opt/supervise/bucket", tmp_path)
    assert bucket.count("/b/bucket/") == 2
    told = written(text, "/opt/supervise/tell", tmp_path)
    assert "put 'runs%2Fa%20b%27%24x%2Fprovision%2F000003.txt'" in told
    for name in ("bucket", "tell", "report"):
        inner = written(text, f"/opt/supervise/{name}", tmp_path)
        subprocess.run(["bash", "-n"], input=inner, text=True, check=True)


@given(st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]), min_size=9))
def test_the_metadata_holds_nothing_of_the_config(config: str) -> None:
    assert config not in made(config=config) or config in made(config="")


def test_everything_is_fetched_by_its_digest_and_installed_by_hash() -> None:
    text = made()
    for name, data in (("job.yaml", EVIL.encode()), ("w.whl", b"wheel"), ("lock", b"lock")):
        digest = hashlib.sha256(data).hexdigest()
        (line,) = [
            line
            for line in text.splitlines()
            if line.strip().startswith("fetch ") and digest in line
        ]
        assert f"provision%2Ffiles%2F{digest}%2F{name}" in line
    installs = [line.strip() for line in text.splitlines() if "pip install" in line]
    assert installs == [
        "/opt/supervise/bin/pip install --retries 10 --require-hashes --only-binary :all: \\",
        "/opt/supervise/bin/pip install --no-index --no-deps /opt/supervise/w.whl",
    ]


FETCH = """
set -eEuo pipefail
trap 'echo failed at $1' ERR
{fetch}
fetch anything {digest} {path}
"""


@pytest.mark.parametrize(
    ("there", "sent", "good"), [("", "x", True), ("", "y", False), ("x", "y", True)]
)
def test_what_is_fetched_is_what_it_should_be(
    tmp_path: Path, there: str, sent: str, good: bool
) -> None:
    text = made()
    fetch = text[text.index("fetch() {") : text.index("\n}\n", text.index("fetch() {")) + 3]
    path = tmp_path / "file"
    if there:
        path.write_text(there)
    source = FETCH.format(
        fetch=fetch.replace('/opt/supervise/bucket get "$1"', f"printf {sent}"),
        digest=hashlib.sha256(b"x").hexdigest(),
        path=path,
    )
    done = subprocess.run(["bash", "-c", source], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == good, done.stderr
    assert path.exists() == good
    assert not good or path.read_text() == "x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exit 0\n", MachineReport(exit_code=0)),
        ("exit 78", MachineReport(exit_code=78)),
        (
            "failed at line 3 of it\nE: a\n\nE: b\n",
            MachineReport("failed at line 3 of it: E: a | E: b"),
        ),
        ("exit \x1b[2J", MachineReport(r"exit \x1b[2J")),
        ("", MachineReport("")),
    ],
)
def test_what_a_machine_tells(text: str, expected: MachineReport) -> None:
    assert read_report(text) == expected


def test_a_long_log_is_told_by_its_end() -> None:
    told = read_report("failed at line 3\n" + "x" * 5000 + "\nthe end").failed
    assert told is not None
    assert len(told) < 600
    assert told.endswith("the end")
