"""What a check says that it expects, it looks at: each fails where that is not so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.acceptance import tpu
from deploy.acceptance.bench import Bench, Child, Failed
from deploy.acceptance.common import check_gpu_places
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
    with pytest.raises(Failed, match="not 0 s at most"):
        busy(REFUSED, monkeypatch)


@pytest.mark.parametrize("places", [[[0, 0, 0], [0, 0, 1]], [None, None]])
def test_gpu_coordinates_that_are_right_or_not_told(
    bench: Bench, places: list[list[int] | None]
) -> None:
    check_gpu_places(bench, places)


@pytest.mark.parametrize("places", [[[0, 0, 1], [0, 0, 0]], [[0, 0, 0], None]])
def test_gpu_coordinates_that_are_wrong(bench: Bench, places: list[list[int] | None]) -> None:
    with pytest.raises(Failed, match="the coordinates are"):
        check_gpu_places(bench, places)


def test_a_regrowth_is_from_a_checkpoint_and_uncharged(bench: Bench) -> None:
    expect_regrown(bench, "starting attempt 3 from committed step 8 (...: nothing is charged)")
    with pytest.raises(Failed, match="charged"):
        expect_regrown(bench, "starting attempt 3 from committed step 8 (attempt 2 failed)")
    with pytest.raises(Failed, match="checkpoint"):
        expect_regrown(bench, "starting attempt 3 from the beginning (nothing is charged)")
