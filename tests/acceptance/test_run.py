"""The acceptance run on simulated devices: real processes, which it leaves none of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import deploy.acceptance.command  # noqa: F401  # makes all checks known
from deploy.acceptance.bench import MARK, ROOT, Bench
from deploy.acceptance.checks import CHECKS, Check, run_all
from deploy.acceptance.results import Report
from supervisor.config.topology import SliceShape
from tests.processes.metadata_server import MetadataServer
from tests.running import PATIENCE, UNOPTIMISED, eventually, lives, marked


@pytest.fixture(autouse=True)
def _unoptimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """What XLA makes of the programs is no topic here, in slow tests either."""
    monkeypatch.setenv("XLA_FLAGS", UNOPTIMISED)


def command(tmp_path: Path, *words: str) -> list[str]:
    out = str(tmp_path / "acceptance.md")
    return [sys.executable, "-m", "deploy.acceptance", "--platform", "cpu", "--out", out, *words]


def written(tmp_path: Path) -> Report:
    return Report.from_markdown((tmp_path / "acceptance.md").read_text())


def test_on_a_cpu_it_says_loudly_that_it_proves_nothing(tmp_path: Path) -> None:
    words = ["--devices", "2", "--kills", "1", "--only", "devices", "chip-files", "kills", "probe"]
    done = subprocess.run(
        command(tmp_path, *words, "short-list"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("This proves nothing about chips") == 2
    report = written(tmp_path)
    status = {result.name: result.status for result in report.results}
    assert status == {
        "devices": "passed",
        "chip-files": "skipped",
        "kills": "passed",
        "probe": "passed",
        "short-list": "passed",
    }
    assert report.hardware == "2 simulated devices"
    assert all(result.seen for result in report.results if result.status == "passed")
    (skipped,) = (result for result in report.results if result.status == "skipped")
    assert skipped.why == "needs a TPU"


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    assert any(text in line for line in process.stdout), f"it ended without {text!r}"


def marks_of_children(pid: int) -> list[str]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):
            for each in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                if each.startswith(f"{MARK}=".encode()):
                    found.append(each.decode())
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_leaves_nothing_and_writes_what_it_has(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = ["--devices", "1", "--kills", "100000", "--only", "short-list", "kills", "probe"]
    process = subprocess.Popen(
        command(tmp_path, *words), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    read_until(process, "passed")
    assert eventually(lambda: marks_of_children(process.pid))
    (mark, *_) = marks_of_children(process.pid)
    assert written(tmp_path).unfinished
    process.send_signal(number)
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 130, rest
    assert not marked(mark)
    report = written(tmp_path)
    assert report.interrupted
    assert not report.unfinished
    assert [(result.status, result.why) for result in report.results] == [
        ("passed", ""),
        ("skipped", "interrupted"),
        ("skipped", "interrupted before it"),
    ]


INTERRUPTS_AN_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "deploy.acceptance.tpu":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


def test_interrupted_before_it_has_begun_it_says_so_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS_AN_IMPORT)
    done = subprocess.run(
        command(tmp_path),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 130
    assert (done.stdout, done.stderr) == ("", "interrupted before any check began\n")


def results_of(run: Callable[[Bench], None], seconds: float = 60.0) -> tuple[str, str, int]:
    """The status of a check, why, and the process that it had."""
    pids: list[int] = []

    def with_child(bench: Bench) -> None:
        pids.append(bench.start(["sleep", "1000"]).pid)
        run(bench)

    bench = Bench("cpu", 1)
    try:
        one = Check("x", ("cpu",), "", "", seconds, with_child)
        (result,) = run_all([one], bench, str)
    finally:
        bench.close()
    assert not bench.work.exists()
    return result.status, result.why, pids[0]


def test_a_check_has_its_bound_and_its_processes_end_with_it() -> None:
    def waits(bench: Bench) -> None:
        bench.start(["sh", "-c", "echo waiting; exec sleep 1000"]).until("never")

    def breaks(bench: Bench) -> None:
        raise KeyError("gone")

    def ends(bench: Bench) -> None:
        bench.start(["sh", "-c", "echo no such chip >&2; exit 3"]).wait_for("up")

    status, why, pid = results_of(waits, seconds=0.5)
    assert (status, why) == ("failed", "not in time, and the last that it said was: waiting")
    assert not lives(pid)
    assert results_of(ends)[:2] == ("failed", "it ended with 3: no such chip")
    status, why, pid = results_of(breaks)
    assert (status, why) == ("failed", "the check itself broke: KeyError: 'gone'")
    assert not lives(pid)


def test_what_leaves_its_session_is_found_by_its_mark() -> None:
    gone: list[int] = []

    def strays(bench: Bench) -> None:
        child = bench.start(["sh", "-c", "setsid sleep 1000 & echo $!; wait"])
        gone.append(int(child.until(r"^\d+$")[0]))

    assert results_of(strays)[0] == "passed"
    assert not lives(gone[0])


def test_every_check_says_what_it_expects_by_which_source_and_has_a_bound() -> None:
    page = (ROOT / "docs" / "reference" / "accelerators.md").read_text()
    for name, one in CHECKS.items():
        assert f"`{name}`" in page or f"--only {name}" in page, name
        assert one.expected, name
        assert one.source, name
        assert one.platforms, name
        assert one.seconds > 0, name
    for platform, least in (("tpu", 14), ("gpu", 17), ("cpu", 9)):
        assert sum(platform in one.platforms for one in CHECKS.values()) >= least


@pytest.mark.slow
def test_a_machine_that_is_taken_away(tmp_path: Path) -> None:
    """Simulated: a metadata server of ours says so."""
    with MetadataServer().serving() as server:
        argv = command(tmp_path, "--devices", "1", "--only", "preempt")
        process = subprocess.Popen(
            [*argv, "--preempt", str(tmp_path / "job")],
            cwd=ROOT,
            env={**os.environ, "GCE_METADATA_HOST": server.host},
            stdout=subprocess.PIPE,
            text=True,
        )
        read_until(process, "metadata instance/preempted: FALSE")
        assert eventually(lambda: list((tmp_path / "job").glob("checkpoints/[0-9]*")))
        server.set("preempted", "TRUE")
        rest, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, rest
    (result,) = written(tmp_path).results
    assert result.status == "passed"
    seen = "\n".join(result.seen)
    for text in ("metadata instance/preempted: TRUE", "last save: 20", "the job ended with 75"):
        assert text in seen, seen


@pytest.mark.slow
def test_a_signal_alone_is_passed_on_and_proves_nothing(tmp_path: Path) -> None:
    argv = command(tmp_path, "--devices", "1", "--only", "preempt")
    process = subprocess.Popen(
        [*argv, "--preempt", str(tmp_path / "job")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert eventually(lambda: list((tmp_path / "job").glob("checkpoints/[0-9]*")))
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, rest
    (result,) = written(tmp_path).results
    assert (result.status, "nothing announced" in result.why) == ("skipped", True)
    assert "SIGTERM to the acceptance run" in "\n".join(result.seen)


def test_devices_that_cannot_be_used_fail_and_nothing_passes(tmp_path: Path) -> None:
    argv = [*command(tmp_path, "--only", "devices", "short-list"), "--platform", "tpu"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    start, *others = written(tmp_path).results
    assert (start.name, start.status) == ("start", "failed")
    assert "is libtpu installed" in start.why
    assert "gpu.md" not in start.source
    assert start.seen
    assert [result.status for result in others] == ["skipped", "skipped"]


@pytest.mark.slow
def test_all_that_simulated_devices_can_do(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--devices", "4", "--kills", "3"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for result in written(tmp_path).results:
        is_ours = "cpu" in CHECKS[result.name].platforms and result.name != "preempt"
        assert result.status == ("passed" if is_ours else "skipped"), result


class Pretending(Bench):
    """A bench whose accelerators are simulated devices, which no check is told."""

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(self.count),
        }


SMI = """\
#!/bin/sh
case "$*" in
*-L*) echo "  MIG 1g.5gb Device 0: (UUID: MIG-8932f937-d72c-4106-c12f-20bd9faed9f6)";;
*memory.used*) printf '450\\n451\\n';;
*index,uuid*) echo "0, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";;
*compute_mode*) printf 'Default\\nDefault\\n';;
esac
"""


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_no_check_of_accelerators_breaks_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    """Simulated devices cannot pass most of them; here they only have to run to their ends."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    bench = Pretending(platform, 4 if platform == "tpu" else 2)
    bench.slice = SliceShape("v5e", 4) if platform == "tpu" else None
    chosen = [
        replace(one, seconds=min(one.seconds, 30.0))
        for one in CHECKS.values()
        if platform in one.platforms and "cpu" not in one.platforms
    ]
    try:
        results = list(run_all(chosen, bench, str))
    finally:
        bench.close()
    assert len(results) == len(chosen) >= 6
    assert not [result for result in results if "broke" in result.why]
