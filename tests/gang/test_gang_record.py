"""What the first host tells the others, and when it is the end of the job."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from supervisor.gang.gang_record import NAME, EndWatch, GangRecord, RecordPlace
from tests.emulators import Emulator

AGAIN = (1, 69, 74, 75)
RUNS = GangRecord("now", "t2")


def ends(launch: str, *found: GangRecord | None) -> list[int | None]:
    watch = EndWatch(launch, AGAIN)
    return [watch.look(each, waited) for waited, each in enumerate(found)]


def test_an_end_that_is_seen_to_come_counts() -> None:
    assert ends("now", None, RUNS, GangRecord("now", "t2", 70)) == [None, None, 70]
    assert ends("", RUNS, GangRecord("", "t2", 75)) == [None, 75]


def test_the_end_of_an_earlier_start_does_not_count() -> None:
    old = GangRecord("before", "t1", 70)
    assert ends("now", old, old, RUNS, GangRecord("now", "t2", 0)) == [None, None, None, 0]
    assert ends("now", old, GangRecord("now", "t2", 70)) == [None, 70], "nobody looked in between"
    assert ends("", GangRecord("", "t1", 0)) == [None], "nobody knows of which start it is"


@pytest.mark.parametrize(("code", "ended"), [(0, 0), (70, 70), (75, None), (69, None)])
def test_a_host_that_comes_after_the_end_has_nothing_to_do(code: int, ended: int | None) -> None:
    """After 75 and its like the first host has a minute to start again."""
    record = GangRecord("now", "t1", code)
    assert ends("now", record) == [ended]
    assert ends("now", *[record] * 62)[-1] == code
    assert ends("", *[record] * 62)[-1] is None


def test_the_record_is_for_this_user_alone(tmp_path: Path) -> None:
    place = RecordPlace(tmp_path / "new" / "run")
    assert place.read() is None
    place.write(RUNS)
    assert place.read() == RUNS
    place.write(GangRecord("now", "t2", 75))
    assert place.read() == GangRecord("now", "t2", 75)
    path = tmp_path / "new" / "run" / NAME
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == [NAME]


def test_a_bucket_holds_the_record_too(gcs: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in gcs.env.items():
        monkeypatch.setenv(name, value)
    place = RecordPlace(gcs.root / uuid.uuid4().hex)
    assert place.read() is None
    place.write(RUNS)
    place.write(GangRecord("now", "t2", 0))
    assert place.read() == GangRecord("now", "t2", 0)


@pytest.mark.parametrize(
    "change",
    [{"v": 2}, {"launch": 1}, {"token": None}, {"code": "0"}, {"code": True}, {"code": 256}],
)
def test_what_is_no_record_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    place = RecordPlace(tmp_path)
    place.write(RUNS)
    text = (tmp_path / NAME).read_text()
    (tmp_path / NAME).write_text(json.dumps(json.loads(text) | change))
    with pytest.raises(ValueError, match=NAME):
        place.read()
