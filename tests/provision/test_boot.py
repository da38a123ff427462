"""The startup script of a slice: a shell reads it, and whatever is in a config stays what it is."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.location import Uri
from supervisor.provision.boot import Machine, read_report, script, unit
from supervisor.provision.decide import MachineReport

URI = Uri("gs", "bucket", "runs/a b'$x")
EVIL = "a: 'it''s'\nEOF\n$(touch /tmp/evil) `x` \\ \"${HOME}\"\nEND-OF-TELL\n"


def made(config: str = EVIL, package: str = "supervise-jax[gcs,tpu]==0.1.0") -> str:
    return script(Machine("supervise-demo-1", config, package, URI), 3)


def written(text: str, path: str, tmp_path: Path) -> str:
    """What that part of the script writes to `path`, when a shell runs it."""
    end = text[text.index(f"cat > {path} <<") :].splitlines()[0].split("<<")[1].strip("'")
    part = text[text.index(f"cat > {path} <<") :]
    part = part[: part.index(f"\n{end}\n") + len(end) + 2]
    target = tmp_path / "written"
    part = part.replace(f"cat > {path} ", f"cat > {shlex.quote(str(target))} ", 1)
    subprocess.run(["bash", "-euo", "pipefail", "-c", part], check=True)
    return target.read_text()


@pytest.mark.parametrize("package", ["x==1", "a @ https://h/x.whl; rm -rf /", "'$(x)'"])
def test_a_shell_can_read_it(package: str) -> None:
    text = made(package=package)
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = [line for line in text.splitlines() if line.startswith("package=")]
    said = subprocess.run(
        ["bash", "-c", f'{line}; printf %s "$package"'], capture_output=True, text=True, check=True
    )
    assert said.stdout == package


def test_files_are_written_as_they_are(tmp_path: Path) -> None:
    text = made()
    assert written(text, "/etc/supervise/job.yaml", tmp_path) == EVIL
    assert written(text, "/etc/systemd/system/supervise@.service", tmp_path) == unit()
    told = written(text, "/opt/supervise/tell", tmp_path)
    assert "/b/bucket" in told
    assert "name=runs%2Fa%20b%27%24x%2Fprovision%2F000003.txt" in told
    for name in ("tell", "report"):
        inner = written(text, f"/opt/supervise/{name}", tmp_path)
        subprocess.run(["bash", "-n"], input=inner, text=True, check=True)


@given(st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"])))
def test_no_config_leaves_its_quotes(config: str) -> None:
    lines = made(config=config).splitlines()
    (begin,) = [i for i, line in enumerate(lines) if line.startswith("cat > /etc/supervise/")]
    assert lines.count(lines[begin].split("<<")[1].strip("'")) == 1


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
