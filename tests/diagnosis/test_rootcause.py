"""From what a dying program printed to its genuine errors: chains, groups, wrappers, noise."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from supervisor.diagnosis.chain import Origin
from supervisor.diagnosis.failure import Evidence, HostFacts, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rootcause import chain_of_record, chains_of_text
from supervisor.diagnosis.rules import RULES, Rule
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.protocol.failure_record import ExceptionInfo, FailureRecord

UNKNOWN = HostFacts()
HEADER = "Traceback (most recent call last):\n"
MAIN = '  File "/app/train.py", line 9, in <module>\n    main()\n'
INNER = '  File "/app/train.py", line 5, in main\n    work()\n'
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
HANDLED = "\nDuring handling of the above exception, another exception occurred:\n\n"
LOST = "jax.errors.JaxRuntimeError: UNAVAILABLE: Socket closed\n"


def ended(output: str, rank: int = 0, *, signal: str | None = None) -> RankEvidence:
    code = 1 if signal is None else None
    return RankEvidence(WorkerExit(rank, code=code, signal=signal), output=output)


def root(*ranks: RankEvidence, host: HostFacts = UNKNOWN) -> tuple[str, str, int]:
    """Verdict, root line and rank."""
    failure = judge(Evidence(ranks, host=host), Success(step=10**9))
    assert failure is not None
    return failure.verdict, failure.root_cause, failure.rank


def raised(line: str, frames: str = MAIN + INNER) -> str:
    return f"{HEADER}{frames}{line}\n"


def recorded(rank: int, time: float, *chain: tuple[str, str]) -> RankEvidence:
    infos = tuple(ExceptionInfo(kind, (kind,), message, "raised") for kind, message in chain)
    record = FailureRecord(rank, time, "TRAINING", 3, infos, "")
    return RankEvidence(WorkerExit(rank, code=134), record)


@pytest.mark.parametrize("between", [CAUSED, HANDLED])
def test_the_cause_decides_not_what_it_was_wrapped_in(between: str) -> None:
    output = raised("AssertionError: no") + between + raised("RuntimeError: training failed")
    assert root(ended(output))[:2] == (Verdict.FATAL, "AssertionError: no")


def test_a_teardown_that_loses_its_peers_hides_no_bug() -> None:
    output = raised("ValueError: bad record 7") + HANDLED + raised(LOST.strip())
    assert root(ended(output))[:2] == (Verdict.FATAL, "ValueError: bad record 7")


def test_a_passing_trouble_inside_a_wrapper_passes() -> None:
    inner = raised("ConnectionResetError: [Errno 104] Connection reset by peer")
    output = inner + CAUSED + raised("RuntimeError: the loader must not fail")
    assert root(ended(output))[0] == Verdict.RESTART


def test_a_member_of_an_exception_group() -> None:
    output = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/app/train.py", line 9, in <module>\n'
        "  | ExceptionGroup: two failed (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | KeyError: 'learning_rate'\n"
        "    +---------------- 2 ----------------\n"
        "    | ValueError: bad shape\n"
        "    +------------------------------------\n"
    )
    verdict, line, _ = root(ended(output))
    assert verdict == Verdict.FATAL
    assert line in ("KeyError: 'learning_rate'", "ValueError: bad shape")


def test_what_a_ray_task_raised() -> None:
    output = (
        HEADER + '  File "/app/driver.py", line 9, in <module>\n    ray.get(f)\n'
        "ray.exceptions.RayTaskError(ValueError): ray::step() (pid=7, ip=10.0.0.2)\n"
        '  File "/app/driver.py", line 5, in step\n    raise ValueError("no such split")\n'
        "ValueError: no such split\n"
    )
    assert root(ended(output))[:2] == (Verdict.FATAL, "ValueError: no such split")


@pytest.mark.parametrize(
    "prefix", ["[rank1]: ", "(Worker pid=7, ip=10.0.0.2) ", "[3]: ", "trainer-1  | "]
)
def test_launchers_put_something_before_each_line(prefix: str) -> None:
    text = raised("AssertionError: no")
    output = "".join(f"{prefix}{line}\n" for line in text.splitlines())
    assert root(ended(output))[0] == Verdict.FATAL


@pytest.mark.parametrize(
    "noise",
    [
        "Exception ignored in: <function Pool.__del__ at 0x7f>\n" + raised("AssertionError: late"),
        raised("RuntimeError: Event loop is closed"),
        raised("RuntimeError: cannot schedule new futures after interpreter shutdown"),
    ],
)
def test_noise_of_the_teardown_is_no_cause(noise: str) -> None:
    output = raised("ConnectionResetError: [Errno 104] Connection reset by peer") + noise
    assert root(ended(output))[0] == Verdict.RESTART


def test_what_is_printed_after_an_error_is_no_part_of_it() -> None:
    warning = "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: "
    warning += "resource_tracker: There appear to be 2 leaked shared_memory objects to clean up\n"
    output = raised("ValueError: bad record 7") + warning + "  warn('no space left on device')\n"
    assert root(ended(output))[:2] == (Verdict.FATAL, "ValueError: bad record 7")


def test_an_error_that_was_logged_did_not_end_the_program() -> None:
    logged = "E1121 08:55:30.9 7 x.py:1] retrying\n" + raised("ValueError: bad", INNER)
    output = logged + "I1121 08:55:31.0 7 x.py:1] goes on\n" + raised(LOST.strip())
    assert root(ended(output))[0] == Verdict.RESTART


def test_an_error_before_a_kill_from_outside_says_nothing() -> None:
    logged = raised("ValueError: bad", INNER) + "I1121 08:55:31.0 7 x.py:1] goes on\n"
    assert root(ended(logged, signal="SIGKILL"))[1] == "killed by SIGKILL"


def test_a_message_that_supposes_is_no_evidence() -> None:
    output = raised(
        "ray.exceptions.ActorDiedError: The actor died unexpectedly.\n"
        "Some common causes include: (1) the process was killed by the OOM killer, (2) an assert"
    )
    assert root(ended(output))[0] == Verdict.RESTART


def test_a_culprit_before_its_victims_whatever_their_order() -> None:
    victim, culprit = ended(raised(LOST.strip()), 0), ended(raised("AssertionError: no"), 1)
    assert root(victim, culprit) == (Verdict.FATAL, "AssertionError: no", 1)
    assert root(culprit, victim)[2] == 1


def test_without_a_culprit_the_victims_are_restarted() -> None:
    assert root(ended(raised(LOST.strip()), 0), ended("", 1, signal="SIGABRT"))[0] == "RESTART"


def test_a_rank_that_crashed_without_a_word_is_the_culprit() -> None:
    victim, culprit = ended(raised(LOST.strip()), 0), ended("", 1, signal="SIGSEGV")
    assert root(victim, culprit) == (Verdict.RESTART, "killed by SIGSEGV", 1)


def test_the_kernel_says_whom_it_killed() -> None:
    victim, killed = ended(raised(LOST.strip()), 0), ended("", 1, signal="SIGKILL")
    assert root(victim, killed)[0] == Verdict.RESTART
    assert root(victim, killed, host=HostFacts(oom_kills=1))[::2] == (Verdict.POLICY, 1)


def test_a_disk_without_room_explains_a_failed_save() -> None:
    output = raised("RuntimeError: Orbax could not save step 7")
    assert root(ended(output))[0] == Verdict.RESTART
    assert root(ended(output), host=HostFacts(free_disk=0))[0] == Verdict.POLICY
    assert root(ended(output), host=HostFacts(free_disk=1 << 30))[0] == Verdict.RESTART


def test_the_earliest_genuine_error_by_the_records() -> None:
    early = recorded(1, 5.0, ("builtins.ValueError", "the first"))
    late = recorded(0, 9.0, ("builtins.ValueError", "the second"))
    assert root(late, early)[1:] == ("ValueError: the first", 1)


def test_the_earliest_genuine_error_by_the_times_in_the_logs() -> None:
    late = ended("I1121 09:00:09.500000 7 x.py:1] step 7\n" + raised("ValueError: second"), 0)
    early = ended("2026-11-21 09:00:01.25: I x.py:1] step 7\n" + raised("ValueError: first"), 1)
    assert root(late, early)[1:] == ("ValueError: first", 1)


def test_a_record_holds_what_a_callback_raised() -> None:
    inner = raised("AssertionError: no")
    chain = (("jax.errors.JaxRuntimeError", f"INTERNAL: CpuCallback error calling back: {inner}"),)
    assert root(recorded(0, 1.0, *chain))[:2] == (Verdict.FATAL, "AssertionError: no")


def test_bytes_that_cannot_be_decoded_in_the_code_of_a_restore() -> None:
    frames = MAIN + '  File "/app/checkpoints.py", line 5, in restore_checkpoint\n    load()\n'
    line = "EOFError: Ran out of input"
    assert root(ended(raised(line, frames)))[0] == Verdict.POLICY
    assert root(ended(raised(line)))[0] == Verdict.FATAL


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_says_why_and_what_to_do(rule: Rule) -> None:
    assert rule.reason.endswith(".")
    assert rule.advice.endswith(".")
    assert "\n" not in rule.reason + rule.advice + rule.cause


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        (Rule("own", Verdict.FATAL, "", "", "", types=("Socket*",)), "FATAL"),
        (Rule("own", Verdict.FATAL, "", "", "", types=("mylib.*",)), "FATAL"),
        (Rule("own", Verdict.FATAL, "", "", "", types=("SocketError",)), "FATAL"),
        (Rule("own", Verdict.FATAL, "", "", "", patterns=(r"(?i)GONE away",)), "FATAL"),
        (Rule("own", Verdict.FATAL, "", "", "", types=("Socket*",), exit_codes=(2,)), "RESTART"),
        (Rule("own", Verdict.FATAL, "", "", "", types=("ocket*",)), "RESTART"),
        (Rule("own", Verdict.FATAL, "", "", "", signals=("SIGKILL",)), "RESTART"),
    ],
)
def test_a_rule_of_a_persons_own_comes_first(rule: Rule, verdict: str) -> None:
    rank = ended(raised("mylib.net.SocketError: it has gone away"))
    failure = judge(Evidence((rank,)), Success(step=9), (rule, *RULES))
    assert failure is not None
    assert failure.verdict == verdict
    assert (failure.rule == "own") is (verdict == "FATAL")


def test_an_exception_is_read_by_its_type_where_its_traceback_is_cut_off() -> None:
    (chain,) = chains_of_text(
        "ValueError: sizes differ:\n  * axis 0 has size 8\nUserWarning: slow\n"
    )
    assert chain.origin is Origin.OUTPUT
    assert [member.type for member in chain.members] == ["ValueError", "", ""]


def test_a_record_without_type_and_words_is_read() -> None:
    info = ExceptionInfo(type="", bases=(), message="", relation="raised")
    chain = chain_of_record(FailureRecord(0, 0.0, None, None, (info,), ""), "")
    assert chain is not None
    assert chain.members[-1].text == ""


LOST_WORKER = ("builtins.RuntimeError", "worker (pid 7) exited unexpectedly with exit code 1")
CORRUPT = "ValueError: corrupt record 4711 in shard-00003.rec"
OF_A_CHILD = f"Process SpawnProcess-1:\n{raised(CORRUPT, INNER)}"


def recorded_after(output: str, *chain: tuple[str, str]) -> RankEvidence:
    """A rank with a failure record, whose traceback Python printed after `output`."""
    (*_, (kind, message)) = chain
    printed = raised(f"{kind.removeprefix('builtins.')}: {message}")
    return replace(recorded(0, 1.0, *chain), output=output + printed)


def test_where_the_record_tells_of_a_lost_worker_the_error_of_the_worker_counts() -> None:
    lost = recorded_after(OF_A_CHILD, LOST_WORKER)
    assert root(lost)[:2] == (Verdict.FATAL, CORRUPT)
    failure = judge(Evidence((lost,)), Success())
    assert failure is not None
    assert failure.traceback == "", "that of the record is of another error"


@pytest.mark.parametrize(
    "output",
    [
        f"ERROR:root:could not read\n{raised(CORRUPT, INNER)}",
        f"{OF_A_CHILD}{''.join(f'step {n} loss 1.{n}' + chr(10) for n in range(20))}",
    ],
    ids=["logged", "survived"],
)
def test_beside_a_lost_worker_an_error_that_ended_no_process_counts_less(output: str) -> None:
    assert root(recorded_after(output, LOST_WORKER))[:2] == (
        Verdict.RESTART,
        f"RuntimeError: {LOST_WORKER[1]}",
    )


def test_beside_a_lost_worker_what_comes_after_it_does_not_count() -> None:
    lost = recorded_after("", LOST_WORKER)
    after = replace(lost, output=lost.output + OF_A_CHILD)
    assert root(after)[1] == f"RuntimeError: {LOST_WORKER[1]}"


def test_a_recorded_error_that_tells_of_no_lost_worker_stays_the_root_cause() -> None:
    failed = recorded_after(OF_A_CHILD, ("builtins.RuntimeError", "a worker failed"))
    assert root(failed)[1] == "RuntimeError: a worker failed"


TORCHRUN = '  File "/opt/venv/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
RULER = 60 * "="
TABLE = f"""{HEADER}{TORCHRUN}{CHILD_FAILED}
{RULER}
train.py FAILED
{60 * "-"}
Failures:
  <NO_OTHER_FAILURES>
{60 * "-"}
Root Cause (first observed failure):
[0]:
  time      : 2024-10-16_20:57:41
  host      : worker-0
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 4221)
  error_file: ERROR_FILE
  traceback : TRACEBACK
{RULER}
"""
UNRECORDED = TABLE.replace("ERROR_FILE", "<N/A>").replace(
    "TRACEBACK", "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
)
FAILED = "E1016 20:57:41.30 4200 api.py:833] failed (exitcode: 1) local_rank: 1 (pid: 4221)\n"


def in_table(line: str) -> str:
    """The table of a program that records its errors."""
    printed = raised(line, '  File "/app/train.py", line 5, in main\n    work()\n')
    indented = printed.replace("\n", "\n  ")
    return TABLE.replace("ERROR_FILE", "/tmp/x/error.json").replace("TRACEBACK", indented)


@pytest.mark.parametrize("line", ["RuntimeError: bad luck", "KeyError: 'lr'"])
def test_below_torchrun_the_error_of_the_rank_is_the_root_cause(line: str) -> None:
    output = raised(line) + FAILED + UNRECORDED
    assert root(ended(output))[1] == line
    assert root(ended(FAILED + in_table(line)))[1] == line
    assert root(ended(raised(line) + FAILED + in_table(line)))[1] == line
    launcher = ExceptionInfo(CHILD_FAILED.rstrip(": "), ("Exception",), TABLE, "raised")
    record = FailureRecord(0, 0.0, None, None, (launcher,), UNRECORDED)
    assert root(RankEvidence(WorkerExit(0, code=1), record, output))[1] == line


def test_below_torchrun_a_rank_that_was_killed_has_reached_no_limit() -> None:
    killed = UNRECORDED.replace("exitcode  : 1", "exitcode  : -9")
    table = re.sub(r"To enable traceback.*", "Signal 9 (SIGKILL) received by PID 4221", killed)
    output = f"step 7\n{FAILED.replace('exitcode: 1', 'exitcode: -9')}{table}"
    found = judge(Evidence((ended(output),)), Success())
    assert found is not None
    assert (found.rule, found.cause) == ("rank-killed", "killed")


@pytest.mark.parametrize(("kills", "rule"), [(None, "rank-killed"), (0, "killed-told")])
def test_where_a_helper_was_killed_only_the_kernels_counter_says_why(
    kills: int | None, rule: str
) -> None:
    output = raised("RuntimeError: worker (pid 7) exited unexpectedly with exit code -9")
    found = judge(Evidence((ended(output),), host=HostFacts(oom_kills=kills)), Success())
    assert found is not None
    assert (found.rule, found.cause, found.verdict) == (rule, "killed", Verdict.POLICY)


def test_of_the_errors_in_the_table_of_torchrun_the_last_is_its_root_cause() -> None:
    other, cause = in_table("RuntimeError: worse luck"), in_table("RuntimeError: bad luck")
    ranks = other.partition("[0]:\n")[2].rpartition(RULER)[0]
    both = cause.replace("  <NO_OTHER_FAILURES>\n", f"[1]:\n{ranks}")
    assert root(ended(both))[1] == "RuntimeError: bad luck"


def test_where_the_rank_left_no_error_the_one_of_torchrun_counts() -> None:
    logged = 'E1016 caught:\nTraceback (most recent call last):\n  File "/app/a.py", line 5, in f\n'
    (chain,) = (
        chain
        for chain in chains_of_text(f"{logged}KeyError: 7\n{FAILED}{UNRECORDED}")
        if chain.origin is Origin.MAIN
    )
    assert chain.members[-1].line == CHILD_FAILED.rstrip()


def test_a_rank_that_fails_behind_its_progress_bars_is_the_root_cause() -> None:
    def behind_bars(line: str) -> str:
        return f"\r  3%|#   | 3/99 [00:03<01:30]\r  4%|#   | 4/99 [00:04<01:30]\r[rank1]: {line}\n"

    rank = "".join(map(behind_bars, raised("ValueError: no column 'tokens'").splitlines()))
    assert root(ended(rank + FAILED + UNRECORDED))[1] == "ValueError: no column 'tokens'"


@pytest.mark.parametrize("module", ["sitecustomize", "usercustomize"])
def test_an_error_that_python_starts_in_spite_of_is_no_root_cause(module: str) -> None:
    head = f"Error in {module}; set PYTHONVERBOSE for traceback:\n"
    failed = f"{head}ModuleNotFoundError: No module named 'coverage'\n"
    assert root(ended(failed))[1] == "exit code 1"
    assert root(ended(f"{failed}step 1\nConnectionError: reset\n"))[1] == "ConnectionError: reset"
    assert root(ended(raised("KeyError: 'lr'") + failed))[1] == "KeyError: 'lr'"
