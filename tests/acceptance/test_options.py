"""What the command line asks for, and what the whole run may take."""

from __future__ import annotations

import pytest

from deploy.acceptance import machine
from deploy.acceptance.bench import ROOT, Bench
from deploy.acceptance.checks import CHECKS, ORDER
from deploy.acceptance.command import main
from supervisor.adapters.platforms import accelerators


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--platform", "tpu", "--devices", "4"], "only simulated devices can be any number"),
        (["--platform", "gpu", "--devices", "1"], "leave it out, or add --platform cpu"),
        (["--platform", "cpu", "--devices", "0"], "0 is not 1 or more"),
        (["--kills", "0"], "0 is not 1 or more"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--only", "short-list"])
    assert why in capsys.readouterr().err


def test_every_check_has_its_place_and_what_another_one_uses_comes_before_it() -> None:
    assert sorted(ORDER) == sorted(CHECKS)
    assert ORDER[-1] == "preempt", "it may wait for a day"
    for user in ("chip-files", "memory-ahead"):
        assert ORDER.index("rungs") < ORDER.index(user)


@pytest.mark.parametrize(("kills", "bound"), [(1, 420.0), (20, 420.0), (100, 2100.0)])
def test_more_kills_have_more_time(kills: int, bound: float) -> None:
    bench = Bench("cpu", 1, kills)
    try:
        assert CHECKS["kills"].bound(bench) == bound
        assert CHECKS["rungs"].bound(bench) == CHECKS["rungs"].seconds
    finally:
        bench.close()


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_the_page_says_what_it_takes_at_most(platform: str) -> None:
    bounds = [
        one.seconds
        for one in CHECKS.values()
        if platform in one.platforms and one.name != "preempt"
    ]
    minutes = (machine.START + sum(bounds)) / 60
    page = (ROOT / "docs" / "reference" / "accelerators.md").read_text()
    assert f"{minutes:.0f} minutes on a {platform.upper()}" in page


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> str:
    """A chip that is shown by iommufd alone."""
    name = "/dev/vfio/devices/vfio0"
    monkeypatch.setattr(accelerators, "chips", lambda: [name])
    return name


def test_a_tpu_is_found_by_every_file_of_a_chip(chip: str) -> None:
    assert machine.found(None, None) == ("tpu", 0)
    bench = Bench("tpu", 1)
    try:
        assert chip in machine.facts(bench, ROOT)["device files"]
    finally:
        bench.close()
