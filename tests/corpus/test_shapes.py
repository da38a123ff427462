"""A log gets the verdict of what the program printed, whatever carried it here."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from supervisor.diagnosis.chain import Chain
from supervisor.diagnosis.digest import LogDigest
from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rootcause import chains_of_text
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from tests.corpus.cases import DEVELOPMENT, STAGED, THREADS, Case, read_cases
from tests.corpus.shapes import LAST, PREFIXES, SHAPES

NEVER_REACHED = Success(step=10**9)
CASES = [
    case
    for path in DEVELOPMENT
    if path != STAGED  # it takes a minute more, and has no other shapes
    and path != THREADS  # each is a shape of its own
    for case in read_cases(path)
    if case.output.count("\n") > 2
]
"""In two lines nothing shows what they have in common."""
SLOW = pytest.mark.slow
STATEMENTS = {"absl", "logging", "basic-logging", "levels"}
"""Prefixes that a logger of the program writes, too."""


def kept(log: bytes) -> str:
    digest = LogDigest()
    digest.feed(log)
    return digest.text()


def read(log: bytes) -> list[Chain]:
    """All that a verdict knows of a log, apart from where in it that stands."""
    return [replace(chain, end=0) for chain in chains_of_text(kept(log))]


def judged(log: bytes, ended: WorkerExit, stage: str | None = None) -> Failure:
    rank = RankEvidence(ended, output=kept(log), stage=stage)
    failure = judge(Evidence((rank,)), NEVER_REACHED)
    assert failure is not None
    return failure


@cache
def clean(case: Case) -> Failure:
    return judged(case.output.encode(), case.ended, case.stage)


@cache
def clean_read(case: Case) -> list[Chain]:
    return read(case.output.encode())


def is_certain(failure: Failure) -> bool:
    return failure.verdict is Verdict.FATAL and failure.certain


def wrong(shapes: tuple[str, ...], cases: list[Case]) -> list[tuple[str, str, str]]:
    found = []
    for case in cases:
        log = case.output.encode()
        for name in shapes:
            log = SHAPES[name](log)
        if read(log) == clean_read(case):
            continue  # to judge takes ten times as long
        failure = judged(log, case.ended, case.stage)
        expected = clean(case)
        same = (failure.verdict, is_certain(failure)) == (expected.verdict, is_certain(expected))
        if is_certain(failure) > is_certain(expected) or not same:
            found.append((case.id, f"{expected.verdict} {expected.rule}", failure.rule))
    return found


def that_show(shape: str) -> list[Case]:
    """The cases whose lines show what was done to them."""
    if shape in STATEMENTS:  # without a traceback nothing tells them from the program's own
        return [case for case in CASES if '  File "' in case.output]
    if shape in ("utf-16-le", "utf-16-be"):  # the code of U+2500 ends in zero
        return [case for case in CASES if "\u2500" not in case.output]
    if shape == "progress-bars":  # an empty line behind a bar reads as that bar
        empty = {"shardmap-outspecs", "io-hf-download-403-none"}
        return [case for case in CASES if case.id not in empty]
    return CASES


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=SLOW) for n in (1, 2))])
@pytest.mark.parametrize("number", range(len(SHAPES)), ids=list(SHAPES))
def test_the_verdict_is_that_of_the_clean_log(number: int, part: int) -> None:
    """Each shape with another third of the cases; with all of them where time is no matter."""
    shape = list(SHAPES)[number]
    assert wrong((shape,), that_show(shape)[(number + part) % 3 :: 3]) == []


PAIRS = [
    (first, second)
    for first, second in product(SHAPES, SHAPES)
    if first != second and first not in LAST and second != "progress-bars"  # a program's own
]


@pytest.mark.parametrize("number", [0, 1, *(pytest.param(n, marks=SLOW) for n in range(2, 30))])
def test_two_of_them_at_once(number: int) -> None:
    """A part of the pairs, each with a part of the cases."""
    rng = random.Random(number)
    with_frames = [case for case in CASES if '  File "' in case.output]
    found = {}
    for pair in rng.sample(PAIRS, 12):
        if bad := wrong(pair, rng.sample(with_frames, 8)):
            found[pair] = bad
    assert found == {}


@pytest.mark.parametrize("prefix", ["torchrun", "kubectl-timestamps", "mpirun-tag", "srun"])
def test_ranks_that_print_into_one_another_are_read_each_by_itself(prefix: str) -> None:
    """One rank fails, another goes on with its steps between its lines."""
    numbers = {"torchrun": "[rank{}]: ", "srun": "{}: ", "mpirun-tag": "[1,{}]<stderr>:"}
    before = numbers.get(prefix, "2026-11-22T09:00:00.1Z worker-{}: ")
    healthy = [f"I1122 09:00:{n % 60:02d}.1 7 train.py:129] step {n} loss 2.1" for n in range(2000)]
    for case in [case for case in CASES if '  File "' in case.output][::15]:
        failing = case.output.splitlines()
        lines = []
        for number, line in enumerate(failing):
            lines += [before.format(1) + line, before.format(0) + healthy[number]]
        log = "\n".join([*lines, *(before.format(0) + line for line in healthy[-50:])]) + "\n"
        failure = judged(log.encode(), case.ended, case.stage)
        expected = clean(case)
        assert failure.verdict == expected.verdict, case.id
        assert is_certain(failure) <= is_certain(expected), case.id


@pytest.mark.parametrize("prefix", ["", *PREFIXES])
def test_a_cut_head_makes_nothing_certain(prefix: str) -> None:
    """The log begins anywhere: what is left gets the same verdict, a guess or another try."""
    rng = random.Random(prefix)
    for case in rng.sample(CASES, 10):
        log = case.output.encode()
        log = SHAPES[prefix](log) if prefix else log
        failure = judged(log[rng.randrange(len(log)) :], case.ended, case.stage)
        assert is_certain(failure) <= is_certain(clean(case)), case.id


def test_a_cut_tail_makes_nothing_certain() -> None:
    rng = random.Random(7)
    for case in CASES[::3]:
        log = case.output.encode()
        failure = judged(log[: rng.randrange(len(log))], case.ended, case.stage)
        assert is_certain(failure) <= is_certain(clean(case)), case.id


HEALTHY = (
    "".join(f"I1122 09:00:{n:02d}.1 7 train.py:129] step {n} loss 2.{n}\n" for n in range(30, 33)),
    "".join(f"INFO:root:epoch 3 batch {n}: loss=2.{n}\n" for n in range(3)),
    "".join(f"[2026-11-22 09:00:{n:02d}] step={n} loss=2.{n} tok/s=1e5\n" for n in range(10, 13)),
    "resuming from step 100\nstep 101: 2.3\nstep 102: 2.2\n",
    "".join(f"\r{n:3d}%|##   | {n}/100 [00:01<00:02, 1.0it/s]" for n in range(4)) + "\n",
    "".join(f"{{'loss': 2.{n}, 'grad_norm': 1.2, 'epoch': 0.0{n}}}\n" for n in range(1, 6)),
    "".join(f'{{"loss": 2.{n}, "step": {n}00}}\n' for n in range(3, 6)),
    "".join(f'{{"it": {n}00, "loss": 2}}\n' for n in range(3, 6)),
    "".join(f"[{n}/5000] loss=2.{n}\n" for n in range(17, 22)),
    "".join(f"step {n} loss 1.2 (checkpoint every 50)\n" for n in range(7, 10)),
    "".join(f"INFO Epoch {n}: val_acc 0.{n}\n" for n in range(3, 6)),
    "".join(f"{n}%|####    \n" for n in range(60, 64)),
    "".join(f"[####    ] {n}%\n" for n in range(60, 64)),
    "".join(f"uploading part {n} of 200\n" for n in range(17, 22)),
    "".join(f"wrote {n} records\n" for n in range(1000, 6000, 1000)),
    "".join(f"2026-11-22 09:00:0{n} reading shard_7 ({n}/64)\n" for n in range(1, 6)),
    "[eval] perplexity 9.9\nstep 120 loss 2.3\n",
)
LAST_WORDS = (
    "".join(f"Saving checkpoint at step 500 ({n}/8)\n" for n in range(1, 7)),
    "".join(f"retry {n}/5\n" for n in range(1, 6)),
    "".join(f"Retrying in {n}s (attempt {n})\n" for n in range(1, 6)),
    "".join(f"waiting at the barrier, {n} of 8 are here\n" for n in range(1, 8)),
    "".join(f"I1122 09:00:{n:02d}.1 7 a.cc:129] task {n} heartbeat {n}\n" for n in range(30, 36)),
    "".join(f"frame #{n}: c10::Error at {n} (0x7f{n})\n" for n in range(6)),
    "".join(f"#{n} 0x7f{n} in run ()\n" for n in range(6)),
    "".join(f"2026-11-22 09:00:{n:02d} the service is not there\n" for n in range(30, 36)),
    "".join(f"joining thread {n}\n" for n in range(1, 8)),
    "".join(f"layer_{n} has another shape\n" for n in range(1, 8)),
    "wandb: Run summary:\nwandb:   epoch 3\nwandb:    loss 0.3\nwandb:    step 500\n",
)
RAISED = [
    case for case in CASES if '  File "' in case.output and "SIGABRT" not in case.exit
]  # what aborts a process nobody catches
ENDS = (WorkerExit(0, signal="SIGKILL"), WorkerExit(0, signal="SIGTERM"), WorkerExit(0, code=1))


@pytest.mark.parametrize("number", range(len(HEALTHY)))
def test_what_a_program_survived_says_nothing_about_its_end(number: int) -> None:
    """Any traceback, then healthy lines, before any log: the verdict is that of the log."""
    rng = random.Random(number)
    found = set()
    for caught, case in zip(rng.sample(RAISED, 15), rng.sample(CASES, 15), strict=True):
        traceback = caught.output[max(0, caught.output.find("Traceback (most recent")) :]
        for rest in ("", case.output):
            alone = f"{HEALTHY[number]}{rest}".encode()
            after = f"{traceback}\n".encode() + alone
            if read(after) == read(alone):
                continue
            for end in ENDS:
                expected, failure = judged(alone, end), judged(after, end)
                if (failure.verdict, failure.rule) != (expected.verdict, expected.rule):
                    found.add((caught.id, case.id if rest else "", str(end), failure.rule))
    assert found == set()


@pytest.mark.parametrize("words", LAST_WORDS)
def test_what_a_program_says_while_it_ends_is_no_progress(words: str) -> None:
    uncaught = (
        "step 119 loss 2.5\nTraceback (most recent call last):\n"
        '  File "/app/train.py", line 12, in <module>\n    add(1, "2")\n'
        '  File "/app/train.py", line 4, in add\n    return a + b\n'
        "TypeError: unsupported operand type(s) for +: 'int' and 'str'\n"
    )
    assert is_certain(judged(f"{uncaught}{words}".encode(), WorkerExit(0, code=1)))


DIED = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 4, in <module>\n'
    '    add(1, "2")\nTypeError: unsupported operand type(s) for +\n'
)
NO_MODULE = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 9, in <module>\n'
    "    import backend\nModuleNotFoundError: No module named 'backend'\n"
)


@pytest.mark.parametrize(
    "log",
    [
        f"{DIED}[eval] perplexity 9.9\n",
        f"{DIED}rank 3: step 120 loss 2.3\nrank 4: step 120 loss 2.2\n",
        f"step 1\n```\n{DIED}```\n",
        "step 1\n" + "".join(f"> {line}\n" for line in DIED.splitlines()) + "acc 0.3\n",
        'step 1\n  File "main.py", line 3\n    def f(\n         ^\nSyntaxError: never closed\n',
        "step 1\nThe above exception was the direct cause of the following exception:\n"
        '  File "a.py", line 1, in <module>\nTypeError: bad\n',
        f"{NO_MODULE}going on without it\n{DIED.replace('TypeError', 'ConnectionError')}",
    ],
)
def test_a_traceback_that_may_be_a_quotation_or_survived_makes_nothing_certain(log: str) -> None:
    assert not is_certain(judged(log.encode(), WorkerExit(0, code=1)))


QUOTED = "".join(f"> {line}\n" for line in DIED.splitlines())
QUOTATIONS = {
    "mail": QUOTED,
    "tight": QUOTED.replace("> ", ">"),
    "twice": QUOTED.replace("> ", ">> "),
    "bar": QUOTED.replace("> ", "| "),
    "box": QUOTED.replace("> ", "\u2502 "),
    "comment": QUOTED.replace("> ", "# "),
    "indented": QUOTED.replace("> ", "    "),
    "fence": f"```\n{DIED}```\n",
    "fence-of-a-language": f"```python\n{DIED}```\n",
    "fence-of-a-log": f"```\n$ python train.py\nloading\n{DIED}```\n",
    "fence-without-an-end": f"```text\nloading\n{DIED}",
    "tildes": f"~~~\n{DIED}~~~\n",
    "quotes": f'"""\n{DIED}"""\n',
    "after-words": f"it says: ```\n{DIED}```\n",
}


@pytest.mark.parametrize("quotation", QUOTATIONS.values(), ids=QUOTATIONS)
@pytest.mark.parametrize("after", ["", "\nbye\n"])
def test_a_quoted_traceback_as_the_last_words_makes_nothing_certain(
    quotation: str, after: str
) -> None:
    """Whether the program had told of any step before or not: it may only chat."""
    log = f"loading\nthe model says:\n{quotation}{after}"
    assert not is_certain(judged(log.encode(), WorkerExit(0, code=1)))


@pytest.mark.parametrize("before", ["", "```\nhi\n```\n", "> hi\n", "| a | b |\n", '"""x"""\n'])
def test_a_traceback_after_a_quotation_is_one_of_the_program(before: str) -> None:
    assert is_certain(judged(f"loading\n{before}{DIED}".encode(), WorkerExit(0, code=1)))


def test_an_exception_group_is_no_quotation() -> None:
    """Its bars are its own, also where all lines are indented alike."""
    log = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/app/train.py", line 5, in <module>\n    |     main()\n'
        "  | ExceptionGroup: errors (1 sub-exception)\n  +-+---------------- 1 ----------------\n"
        '    | Traceback (most recent call last):\n    |   File "/app/train.py", line 4, in main\n'
        '    |     add(1, "2")\n    | TypeError: unsupported operand type(s) for +\n'
        "    +------------------------------------\n"
    )
    assert is_certain(judged(log.encode(), WorkerExit(0, code=1)))


FAULTHANDLER = (
    "Fatal Python error: Aborted\n\nThread 0x00007f2a (most recent call first):\n"
    '  File "/usr/lib/python3.12/threading.py", line 359 in wait\n'
    '  File "/usr/lib/python3.12/queue.py", line 171 in get\n\n'
    "Current thread 0x00007f2b [python] (most recent call first):\n"
    "  <no Python frame>\n"
    '  File "/app/out_of_memory.py", line 9 in restore_checkpoint\n'
    '  File "/opt/jax/_src/compiler.py", line 300 in backend_compile\n  ...\n\n'
    "Current thread's C stack trace (most recent call first):\n"
    '  Binary file "/lib/libc.so.6", at +0x45330\n  <truncated rest of calls>\n\n'
    "Extension modules: numpy._core, jaxlib.cpu_feature_guard (total: 2)\n"
)


@pytest.mark.parametrize("signal", ["Aborted", "Segmentation fault", "Bus error", None])
def test_the_stacks_of_faulthandler_decide_nothing(signal: str | None) -> None:
    """Before and after what was printed; None: a dump that a timer asked for."""
    head = f"Fatal Python error: {signal}" if signal is not None else "Timeout (0:01:40)!"
    stacks = FAULTHANDLER.replace("Fatal Python error: Aborted", head)
    found = {}
    for case in CASES[:: 3 if signal else 5]:
        expected = clean(case)
        for text in (stacks + case.output, f"{case.output.rstrip()}\n{stacks}"):
            log = text.encode()
            if read(log) == clean_read(case):
                continue
            failure = judged(log, case.ended, case.stage)
            if (failure.rule, is_certain(failure)) != (expected.rule, is_certain(expected)):
                found[case.id] = (expected.rule, failure.rule, failure.root_cause)
    assert found == {}


@pytest.mark.parametrize("number", range(3))
def test_the_stacks_of_faulthandler_decide_nothing_behind_a_prefix(number: int) -> None:
    shape = SHAPES[("torchrun", "kubectl-timestamps", "docker-json")[number]]
    for case in CASES[number::25]:
        log = shape((FAULTHANDLER + case.output).encode())
        assert judged(log, case.ended, case.stage).verdict == clean(case).verdict, case.id
