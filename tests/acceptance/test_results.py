"""The one file of an acceptance run: a person reads it, and a program reads the same again."""

from __future__ import annotations

import getpass
import resource
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.acceptance.command import main
from deploy.acceptance.output import CannotWriteError, Output
from deploy.acceptance.results import Report, Result, seen_where
from deploy.acceptance.scrub import Scrub

TEXTS = st.text(max_size=30)
RESULTS = st.builds(
    Result,
    name=TEXTS,
    status=st.sampled_from(["passed", "failed", "skipped"]),
    expected=TEXTS,
    source=TEXTS,
    seen=st.lists(TEXTS, max_size=3).map(tuple),
    why=TEXTS,
    seconds=st.floats(0, 1e6),
)
RESULT = Result("rungs", "failed", "all well", "Google", ("4: not well",), "4 | not well", 2.0)


def report(platform: str = "tpu", *results: Result) -> Report:
    machine = {"jax": "0.10.2", "runtime": "libtpu 0.0.42"}
    return Report("2026-11-22", platform, "v5e-8", machine, results or (RESULT,))


@given(st.lists(RESULTS, max_size=4).map(tuple), st.dictionaries(TEXTS, TEXTS, max_size=3))
def test_what_is_written_is_read_again(results: tuple[Result, ...], facts: dict[str, str]) -> None:
    whole = Report("2026-11-22", "gpu", "1 x H100", facts, results, interrupted=True)
    assert Report.from_markdown(whole.to_markdown()) == whole


def test_a_person_reads_what_was_expected_by_whom_and_what_was_seen() -> None:
    text = report().to_markdown()
    assert "0 passed, 1 failed, 0 skipped" in text
    assert "| rungs | failed | 2.0 s | 4 / not well |" in text
    for line in ("* Expected: all well", "* Source: Google", "* Seen: 4: not well"):
        assert line in text.splitlines()
    assert "proves nothing" not in text
    assert "SIMULATED DEVICES: this run proves nothing about chips" in report("cpu").to_markdown()


def test_the_table_is_made_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "acceptance.md"
    file.write_text(report().to_markdown())
    assert main(["--table", str(file)]) == 0
    row = "| v5e-8 | 2026-11-22 | 0.10.2 | libtpu 0.0.42 | 0 | rungs | none |"
    assert row in capsys.readouterr().out.splitlines()
    assert "| v5e-8; simulated |" in seen_where([report("cpu")])
    file.write_text("# something else")
    assert main(["--table", str(file)]) == 1
    assert "is no file of an acceptance run" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["missing/a.md", ".", "/dev/full"])
def test_a_place_that_cannot_be_written_is_told_before_any_check(
    tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--platform", "cpu", "--out", str(tmp_path / out)]) == 2
    told = capsys.readouterr()
    assert not told.out
    (line,) = told.err.splitlines()
    assert line.startswith(f"python -m deploy.acceptance: --out {tmp_path / out}: ")


def test_what_cannot_be_written_whole_leaves_the_old_file(tmp_path: Path) -> None:
    output = Output(tmp_path / "a.md")
    output.write("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(CannotWriteError, match="File too large"):
            output.write("new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def test_a_file_that_was_cut_off_says_so() -> None:
    cut = replace(report(), unfinished=True)
    assert "0 passed, 1 failed, 0 skipped; unfinished" in cut.to_markdown()
    assert "| v5e-8; unfinished" in seen_where([cut])


def test_nothing_tells_whose_machine_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "t1v-n-4f.c.my-proj.internal")
    monkeypatch.setattr(getpass, "getuser", lambda: "jane_doe")
    uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
    clean = Scrub({"HF_TOKEN": "hf_abcdefghijklmnop"}, {Path("/srv/checkout"): "<checkout>"})
    said = (
        f"jane_doe@t1v-n-4f {Path.home()}/x /srv/checkout/a.py 10.128.0.7:8471 fe80::1:2:3:4 "
        f"{uuid} MIG-{uuid}/1/2 {uuid} hf_abcdefghijklmnop projects/my-proj jane@example.com "
        "t1v-n-4f.c.my-proj.internal"
    )
    told = clean(said)
    for name in ("jane", "t1v-n-4f", "my-proj", "10.128", "8932f937", "hf_abc", "/srv", "fe80"):
        assert name not in told, told
    assert told.count("GPU-#0") == 3, "each by the same name"
    kept = (
        "2026-11-22 20:58:05.088+00:00 127.0.0.1 xla::gpu at 0.0.0.0, device 3 of v5e-8, jax 0.10.2"
    )
    assert clean(kept) == kept


def test_nobody_moves_our_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Scrub({}, {})("\x1b[31mTPU\x1b[0m \x1b]0;title\x07\r\n\ud800") == (
        "TPU \\x1b]0;title\\x07\\r\\n\\ud800"
    )
    file = tmp_path / "strange.md"
    escape = "\x1b[2J"
    strange = replace(report("tpu", replace(RESULT, name=escape)), hardware=escape, date=escape)
    file.write_text(strange.to_markdown())
    assert main(["--table", str(file)]) == 0
    file.write_text(report().to_markdown().replace('"date"', r'"\u001b[2J"'))
    assert main(["--table", str(file)]) == 1
    told = capsys.readouterr()
    assert "\\x1b[2J" in told.out
    assert "\\x1b[2J" in told.err
    assert "\x1b" not in told.out + told.err


@pytest.mark.parametrize(
    "wrong", ["[]", "1", "null", '{"results": [], "machine": 3}', "{", "[" * 9999]
)
def test_strange_json_is_told(wrong: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        Report.from_markdown(f"```json\n{wrong}\n```\n")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("File /home/bob/x/train.py:3", "File /home/<user>/x/train.py:3"),
        ("at /Users/bob: no", "at /Users/<user>: no"),
        ("in gs://bob-data/run/1, twice", "in gs://<bucket>, twice"),
        ("--xla_dump_to=/mnt/bob --xla_n=4", "--xla_dump_to=<value> --xla_n=4"),
        ("XLA_FLAGS='--xla_a=true --xla_b=\"x y\"'", "XLA_FLAGS='--xla_a=true --xla_b=<value>'"),
        ("to 2001:DB8::1: refused", "to <address>: refused"),
        ("[fe80::1%eth0]:84 ::ffff:10.1.2.3", "[<address>%eth0]:84 <address>"),
        ("2001:db8:1:2:3:4:5:6", "<address>"),
        ("eth 42:01:0A:80:00:07, aa-bb-cc-dd-ee-ff", "eth <address>, <address>"),
        ("ssh bob@node7 bob@10.0.0.3", "ssh <email> <email>"),
        ("gpu7.hpc.uni-x.edu:80 node.bob.io w.svc.cluster.local", "<host>:80 <host> <host>"),
    ],
)
def test_what_tells_by_its_form_is_taken_out(said: str, told: str) -> None:
    assert Scrub({}, {})(said) == told


@pytest.mark.parametrize(
    "said",
    [
        "0000:65:00.0 at 20:58:05.088 ::1 [::]:84 std::move absl::Status ab::cd()",
        "jax._src.xla_bridge.py jax.numpy.dot libtpu.so 0.0.42.1 jax@0.10.2 a.md https://github.com/x",
        "memory-ahead: jit(step) @ main, f32[8,128] {'id': 0, 'coords': [0, 0, 0]}",
        "--xla_tpu_scoped_vmem_limit_kib=16384 --xla_x=false",
    ],
)
def test_what_tells_nothing_stays(said: str) -> None:
    assert Scrub({}, {})(said) == said
