"""The startup script of a slice: a shell reads it, and whatever is in a config stays what it is."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.location import Uri
from supervisor.provision.boot import File, MachineSetup, parse_report, startup_script, unit_text
from supervisor.provision.decide import MachineReport

URI = Uri("gs", "bucket", "runs/a b'$x")
EVIL = "a: 'it''s'\nEOF\n$(touch /tmp/evil) `x` \\ \"${HOME}\"\nEND-OF-TELL\n"


def made(config: str = EVIL, user: str = "supervise", uri: Uri = URI) -> str:
    files = (File("job.yaml", config.encode()), File("w.whl", b"wheel"), File("lock", b"lock"))
    return startup_script(MachineSetup("supervise-demo-1", uri, *files, user), 3)


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
    assert written(text, "/etc/systemd/system/supervise@.service", tmp_path) == unit_text()
    drop_in = written(text, "/etc/systemd/system/supervise@.service.d/provision.conf", tmp_path)
    assert "User=me\nGroup=me\n" in drop_in
    assert "Capability" not in drop_in
    as_root = written(
        made(user="root"), "/etc/systemd/system/supervise@.service.d/provision.conf", tmp_path
    )
    assert "User=root\nGroup=root\nCapabilityBoundingSet=~\n" in as_root
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
        "/opt/supervise/uv/bin/pip install --retries 10 --require-hashes --only-binary :all: \\",
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
        fetch=fetch.replace('/opt/supervise/bucket get "$1"', f"printf {sent} >"),
        digest=hashlib.sha256(b"x").hexdigest(),
        path=path,
    )
    done = subprocess.run(["bash", "-c", source], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == good, done.stderr
    assert path.exists() == good
    assert not good or path.read_text() == "x"


TOKEN = b'{"access_token": "t", "expires_in": 3599}'


@pytest.mark.skipif(shutil.which("curl") is None, reason="NOT TESTED: there is no curl")
def test_an_answer_that_drips_is_asked_for_again(tmp_path: Path) -> None:
    """Of the metadata server, and of the bucket; with real curl, which gets less time."""
    script = written(made(), "/opt/supervise/bucket", tmp_path)
    quick = script.replace("--speed-time 60", "--speed-time 1")
    assert quick != script
    command = tmp_path / "bucket"
    command.write_text(quick)
    command.chmod(0o755)
    path = tmp_path / "got"
    with dripping_first(TOKEN) as metadata, dripping_first(b"whole") as storage:
        environ = {"GCE_METADATA_HOST": metadata, "STORAGE_EMULATOR_HOST": f"http://{storage}"}
        subprocess.run(
            [command, "get", "object", path],
            env={"PATH": os.environ["PATH"], **environ},
            check=True,
            timeout=120,
        )
    assert path.read_bytes() == b"whole"


@contextmanager
def dripping_first(body: bytes) -> Iterator[str]:
    """A server that never ends its first answer, and gives `body` to whoever asks again."""
    listening = socket.create_server(("127.0.0.1", 0))
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"

    def serve() -> None:
        slow, _ = listening.accept()
        with slow:
            slow.recv(4096)
            silence = threading.Event()
            try:
                slow.sendall(head % 1000)
                while not silence.wait(0.1):
                    slow.sendall(b"x")
            except OSError:
                pass
        good, _ = listening.accept()
        with good:
            good.recv(4096)
            good.sendall(head % len(body) + body)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


FAKE = """#!/bin/bash
name=${0##*/}
echo "$name $*" >> "$ROOT/called"
case "$name $*" in
  python3.1?' -c '*) [ -e "$ROOT/has-$name" ] ;;
  apt-get*' update') [ "$(grep -c 'apt-get.* update' "$ROOT/called")" -gt "$LOCKED" ] || {
    echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 812' >&2
    exit 100
  } ;;
  apt-get*' install '*) touch "$ROOT/has-${@: -2:1}" ;;
  'apt-cache policy '*) echo "  Candidate: $(cat "$ROOT/candidate-$2" 2> /dev/null)" ;;
  'python3 -m venv '*) mkdir -p "$3/bin"; cp "$0" "$3/bin/pip"; cp "$0" "$3/bin/uv" ;;
  uv*' python install '*) [ -e "$ROOT/online" ] ;;
  uv*' python find '*)
    cp "$0" "$ROOT/python3.12"
    touch "$ROOT/has-python3.12"
    echo "$ROOT/python3.12" ;;
esac
"""
"""Played: all that looks for an interpreter. None is usable but what is installed."""
PLAYED = ("apt-get", "apt-cache", "python3", "python3.11", "python3.12", "python3.13", "sleep")
TOOLS = ("sed", "cat", "grep", "touch", "mkdir", "cp", "timeout", "bash")


def found_python(folder: Path, *, locked: int = 0) -> tuple[str, list[str]]:
    """Which interpreter the script takes, and what was called for it."""
    text = made()
    part = text[text.index("again() {") : text.index("\ninstalled=")]
    part = part.replace("/opt/supervise", str(folder))
    played = folder / "played"
    played.mkdir()
    for name in PLAYED:
        (played / name).write_text(FAKE)
        (played / name).chmod(0o755)
    for name in TOOLS:
        (played / name).symlink_to(str(shutil.which(name)))
    script = f'set -eEuo pipefail\ntrap "echo FAILED" ERR\n{part}\nfind_python\necho "$python"\n'
    done = subprocess.run(
        [str(shutil.which("bash")), "-c", script],
        env={"PATH": str(played), "ROOT": str(folder), "LOCKED": str(locked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.stdout.splitlines()[-1], (folder / "called").read_text().splitlines()


def test_a_final_python_that_is_there_is_taken_and_nothing_installed(tmp_path: Path) -> None:
    (tmp_path / "has-python3.11").touch()
    python, called = found_python(tmp_path)
    assert python == "python3.11"
    assert not [line for line in called if not line.startswith("python3.1")]


def test_the_lock_of_the_package_lists_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "candidate-python3.12").write_text("3.12.3-1ubuntu0.13")
    python, called = found_python(tmp_path, locked=4)
    assert python == "python3.12"
    assert len([line for line in called if line.endswith(" update")]) == 5
    assert called.count("sleep 20") == 4
    (installed,) = [line for line in called if " install " in line]
    assert installed.endswith("install -y python3.12 python3.12-venv")


def test_that_wait_has_an_end(tmp_path: Path) -> None:
    (tmp_path / "candidate-python3.12").write_text("3.12.3-1ubuntu0.13")
    python, called = found_python(tmp_path, locked=99)
    assert python == "python3.12", "the lists of the image may do"
    assert called.count("sleep 20") == 14


@pytest.mark.parametrize("online", [True, False])
def test_a_release_candidate_is_taken_only_where_no_final_python_can_be_had(
    tmp_path: Path, online: bool
) -> None:
    """Ubuntu 22.04: python3.11 is 3.11.0~rc1, and neither 3.12 nor 3.13 is there."""
    (tmp_path / "candidate-python3.11").write_text("3.11.0~rc1-1~22.04")
    (tmp_path / "candidate-python3.13").write_text("(none)")
    if online:
        (tmp_path / "online").touch()
    python, called = found_python(tmp_path)
    assert python == (str(tmp_path / "python3.12") if online else "python3.11")
    assert any(line.startswith("pip install") and "--require-hashes" in line for line in called)
    assert ("install -y python3.11 python3.11-venv" in "\n".join(called)) != online


@pytest.mark.parametrize(
    ("candidate", "final"),
    [("3.11.2-6~bpo11+1", True), ("3.12.0~a7-1", False), ("3.12.0~b4-1", False)],
)
def test_a_backport_is_no_beta(tmp_path: Path, candidate: str, final: bool) -> None:
    (tmp_path / "candidate-python3.12").write_text(candidate)
    (tmp_path / "online").touch()
    python, _ = found_python(tmp_path)
    assert python == ("python3.12" if final else str(tmp_path / "python3.12"))


def test_the_serial_console_gets_one_line_of_a_failure(tmp_path: Path) -> None:
    text = made()
    head = text[: text.index("mkdir -p /opt/supervise")]
    failing = text[text.index("failed() {") : text.index("# fetch OBJECT")]
    script = f"{head}{failing}echo one\necho 'E: no network' >&2\nfalse\necho never\n"
    for path in ("/var/log/supervise-boot.log", "/opt/supervise/tell"):
        script = script.replace(path, str(tmp_path / Path(path).name))
    tell = tmp_path / "tell"
    tell.write_text(f"#!/bin/bash\ncat > {tmp_path}/told\n")
    tell.chmod(0o755)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    (line,) = done.stdout.splitlines()
    assert line.startswith("supervise: failed at line ")
    assert f"of the startup script: E: no network (all of it: {tmp_path}" in line
    assert (tmp_path / "told").read_text().endswith("one\nE: no network\n")


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
    assert parse_report(text) == expected


def test_a_long_log_is_told_by_its_end() -> None:
    told = parse_report("failed at line 3\n" + "x" * 5000 + "\nthe end").failed
    assert told is not None
    assert len(told) < 600
    assert told.endswith("the end")
