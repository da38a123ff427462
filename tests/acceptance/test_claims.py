"""What a check says that it expects, it looks at: each fails where that is not so."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.acceptance import gpu, tpu
from deploy.acceptance.bench import Bench, CheckFailedError, Child, Job
from deploy.acceptance.common import check_gpu_places, expect_named_as_no_backend
from deploy.acceptance.jobs import expect_regrown
from supervisor.adapters.platforms import accelerators
from supervisor.adapters.platforms.accelerators import Holder

REFUSED = "echo The TPU is already in use by process 7 >&2; exit 1"


class Busy(Bench):
    """A bench whose first process holds the chips, and whose second does as it is told."""

    def __init__(self, second: str) -> None:
        super().__init__("tpu", 1)
        self._scripts = iter(["""echo '{"at": "holding"}'; exec sleep 1000""", second])

    def device(self, do: str, env: object = None, **more: object) -> Child:
        child = self.start(["sh", "-c", next(self._scripts)])
        self.pids = [*getattr(self, "pids", []), child.pid]
        return child


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench("gpu", 2)
    yield made
    made.close()


def busy(second: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is seen where the second process does `second`, after an earlier check's log."""
    bench = Busy(second)
    (bench.work / "earlier.log").write_text("the device of an earlier check is busy\n")
    holder = lambda: [Holder(pid, 0, ("/dev/vfio/0",)) for pid in bench.pids]  # noqa: E731
    monkeypatch.setattr(accelerators, "holders", holder)
    bench.begin(60.0)
    try:
        tpu.busy(bench)
    finally:
        bench.close()
    return bench.seen


def test_busy_tells_the_words_of_its_own_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = busy(REFUSED, monkeypatch)
    assert "The TPU is already in use by process 7" in seen
    assert not [line for line in seen if "earlier" in line]


def test_busy_fails_where_the_refusal_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "_REFUSED", 0.0)
    with pytest.raises(CheckFailedError, match="not 0 s at most"):
        busy(REFUSED, monkeypatch)


@pytest.mark.parametrize("places", [[[0, 0, 0], [0, 0, 1]], [None, None]])
def test_gpu_coordinates_that_are_right_or_not_told(
    bench: Bench, places: list[list[int] | None]
) -> None:
    check_gpu_places(bench, places)


@pytest.mark.parametrize("places", [[[0, 0, 1], [0, 0, 0]], [[0, 0, 0], None]])
def test_gpu_coordinates_that_are_wrong(bench: Bench, places: list[list[int] | None]) -> None:
    with pytest.raises(CheckFailedError, match="the coordinates are"):
        check_gpu_places(bench, places)


def test_a_regrowth_is_from_a_checkpoint_and_uncharged(bench: Bench) -> None:
    ended = {"status": "MADE_WAY", "text": "ended at step 9, from step 4: MADE_WAY"}
    begun = {"step": 8, "text": "starting attempt 3 from committed step 8"}
    expect_regrown(bench, ended, begun)
    with pytest.raises(CheckFailedError, match="charged"):
        expect_regrown(bench, {**ended, "status": "FAILED"}, begun)
    with pytest.raises(CheckFailedError, match="checkpoint"):
        expect_regrown(bench, ended, {**begun, "step": None})


def test_an_event_is_waited_for_by_its_name_and_keys(bench: Bench, tmp_path: Path) -> None:
    told = [
        {"event": "attempt-started", "source": "main", "text": "one", "attempt": 1, "rung": 4},
        {"event": "output", "source": "attempt 1", "text": "step 1 loss 2.0", "attempt": 1},
        {"event": "attempt-started", "source": "main", "text": "two", "attempt": 2, "rung": 4},
    ]
    (tmp_path / "log").write_text("".join(f"{json.dumps(one)}\n" for one in told) + "{half")
    bench.begin(60.0)
    job = Job(bench, ["cat", str(tmp_path / "log")], dict(os.environ), {})
    assert job.until_event("attempt-started", rung=4)["attempt"] == 1
    assert job.until_event("attempt-started", after=1, rung=4)["text"] == "two"
    assert job.text == "[main] one\nstep 1 loss 2.0\n[main] two\n{half\n"
    with pytest.raises(CheckFailedError, match=r"it ended with 0: \{half"):
        job.until_event("attempt-started", after=2)


@pytest.mark.parametrize("rule", ["backend-unseen", "backend-missing"])
def test_a_missing_backend_is_to_be_judged_as_one(bench: Bench, rule: str) -> None:
    right = {"rule": rule, "cause": "no such backend", "certain": False}
    expect_named_as_no_backend(bench, right)
    for wrong in ({"rule": "unknown"}, {"cause": "an unknown error"}, {"certain": True}):
        with pytest.raises(CheckFailedError, match="judged"):
            expect_named_as_no_backend(bench, {**right, **wrong})


class Scripted(Bench):
    """A bench with GPUs whose processes are scripts, and whose tools are scripts in `tools`."""

    def __init__(self, tools: Path, *scripts: str) -> None:
        super().__init__("gpu", 2)
        self._tools, self._scripts = tools, scripts
        self.begin(60.0)

    def device(self, do: str, env: object = None, **more: object) -> Child:
        script = self._scripts[len(list(self._tools.glob("*.pid"))) % len(self._scripts)]
        child = self.start(["sh", "-c", f"{UP}; {script}"])
        (self._tools / f"{child.pid}.pid").write_text(f"{child.pid}\n")
        return child


UP = """echo '{"at": "up", "found": 1, "devices": [{"id": 0}]}'"""
HOLDS = """echo '{"at": "holding"}'; exec sleep 1000"""
TRAINS = """echo '{"at": "step"}'; exec sleep 1000"""
SMI = """\
#!/bin/sh
case "$*" in
*index,uuid*) echo "0, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"; exit;;
esac
for file in {tools}/*.pid; do
    kill -0 $(cat $file) && exec echo "{during}"
done 2> {tools}/errors
printf '450\\n451\\n'
"""


def tool(tools: Path, name: str, text: str) -> None:
    (tools / name).write_text(text)
    (tools / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tools that are found first."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize(
    ("during", "taken"), [("9000\n451", None), ("450\n9000", r"\[1\]"), ("450\n451", r"\[\]")]
)
def test_a_gpu_by_its_names_is_the_one_whose_memory_is_taken(
    tools: Path, during: str, taken: str | None
) -> None:
    tool(tools, "nvidia-smi", SMI.format(tools=tools, during=during))
    bench = Scripted(tools, HOLDS)
    try:
        if taken is None:
            gpu.gpu_names(bench)
            assert len(bench.seen) == 3
        else:
            with pytest.raises(
                CheckFailedError, match=f"0 is GPU 0, and memory was taken on {taken}"
            ):
                gpu.gpu_names(bench)
    finally:
        bench.close()


MPS = """\
#!/bin/sh
read command
case "$command" in
get_server_list) echo 77;;
"get_client_list 77") cat {tools}/*.pid | head -n {clients};;
esac
"""


@pytest.mark.parametrize(
    ("clients", "second", "why"),
    [
        (2, TRAINS, None),
        (1, TRAINS, "not both are clients of MPS"),
        (2, "exit 3", "it ended with 3"),
    ],
)
def test_mps_has_both_processes_as_clients_at_once(
    tools: Path, clients: int, second: str, why: str | None
) -> None:
    tool(tools, "nvidia-cuda-mps-control", MPS.format(tools=tools, clients=clients))
    bench = Scripted(tools, TRAINS, second)
    bench.start(["bash", "-c", "exec -a nvidia-cuda-mps-control sleep 1000"])
    try:
        if why is None:
            gpu.mps(bench)
        else:
            with pytest.raises(CheckFailedError, match=why):
                gpu.mps(bench)
    finally:
        bench.close()
