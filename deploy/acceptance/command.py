"""The command line of the acceptance run."""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from deploy.acceptance import common, gpu, jobs, machine, preempt, tpu
from deploy.acceptance.bench import KILLS, ROOT, Bench, CheckFailedError, is_asked_to_stop
from deploy.acceptance.checks import CHECKS, ORDER, Check, run_all, skipped
from deploy.acceptance.output import CannotWriteError, Output
from deploy.acceptance.results import Report, Result, seen_where
from deploy.acceptance.scrub import Scrub
from supervisor.protocol.messages import printable

_LOUD = """\
*** No TPU or GPU was found: SIMULATED DEVICES on the CPU. ***
*** This proves nothing about chips; it shows that the checks themselves work. ***"""
_REGISTERED = (common, tpu, gpu, jobs, preempt)  # importing them registers their checks
_INTERRUPTED = 130
_UNWRITTEN = 2
_START = "jax/_src/xla_bridge.py (jax 0.10.2): an explicit JAX_PLATFORMS never falls back"
_DEFAULT = Path("acceptance.md")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks and write the file, or print the table of earlier files (`--table`).

    Returns the exit code: 0; 1 if a check failed or a file of `--table` cannot be read; 2 if the
    file cannot be written; 130 if interrupted.
    """
    options = _parser().parse_args(argv)
    if options.table:
        return _table(options.table)
    signal.signal(signal.SIGTERM, _stop)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _stop)
    try:
        return _checked(options, Output(options.out))
    except CannotWriteError as error:
        print(f"python -m deploy.acceptance: {error}", file=sys.stderr)
        return _UNWRITTEN


def _checked(options: argparse.Namespace, output: Output) -> int:
    try:
        found = machine.found(options.platform, options.devices)
    except ValueError as error:
        _parser().error(str(error))
    bench = Bench(*found, options.kills, options.preempt)
    try:
        return _run(bench, options, output)
    finally:
        bench.close()


def _run(bench: Bench, options: argparse.Namespace, output: Output) -> int:
    if bench.platform == "cpu":
        print(_LOUD, flush=True)
    clean = Scrub(os.environ, {bench.work: "<work>", ROOT: "<checkout>", Path.cwd(): "<here>"})
    chosen = [CHECKS[name] for name in options.only or ORDER]
    results: list[Result] = []
    facts = machine.facts(bench, ROOT)

    def write(interrupted: bool = False, unfinished: bool = True) -> None:
        report = Report(
            datetime.datetime.now(datetime.UTC).date().isoformat(),
            bench.platform,
            clean(bench.hardware),
            {name: clean(text) for name, text in {**facts, "runtime": bench.runtime}.items()},
            tuple(results),
            interrupted,
            unfinished,
        )
        output.write(report.to_markdown())

    interrupted = False
    write()
    try:
        for result in _results(chosen, bench, clean):
            results.append(result)
            _print(result)
            write()
    except KeyboardInterrupt as error:
        interrupted = True
        results += [error.args[0]] if error.args else []
        results += [skipped(one, "interrupted before it") for one in chosen[len(results) :]]
    bench.end()
    write(interrupted, unfinished=False)
    ends = Counter(result.status for result in results)
    counts = ", ".join(f"{ends[status]} {status}" for status in ("passed", "failed", "skipped"))
    print(f"{counts}; attach {options.out} to an issue", flush=True)
    if bench.platform == "cpu":
        print(_LOUD, flush=True)
    return _INTERRUPTED if interrupted else int(ends["failed"] > 0)


def _results(
    chosen: Sequence[Check], bench: Bench, clean: Callable[[str], str]
) -> Iterator[Result]:
    """Yields the results of the checks. If the devices cannot be used at all, yields that failure
    and skips all checks."""
    try:
        machine.identify(bench)
    except CheckFailedError as error:
        why = clean(f"{error}; {machine.REMEDIES[bench.platform]}")
        seen = tuple(clean(line) for line in bench.last_words())
        yield Result("start", "failed", "jax can use the devices", _START, seen, why)
        yield from (skipped(one, "the devices cannot be used: see `start`") for one in chosen)
        return
    bench.end()
    yield from run_all(chosen, bench, clean)


def _print(result: Result) -> None:
    why = f": {result.why}" if result.why else ""
    print(f"{result.status:8}{result.name} ({result.seconds:.1f} s){why}", flush=True)


def _table(files: Sequence[Path]) -> int:
    try:
        print(seen_where(Report.from_markdown(file.read_text()) for file in files))
    except (ValueError, OSError) as error:
        print(f"python -m deploy.acceptance: {printable(str(error))}", file=sys.stderr)
        return 1
    return 0


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    is_asked_to_stop.set()
    raise KeyboardInterrupt


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.acceptance",
        description="Check on this machine what we claim of TPUs and GPUs; see "
        "docs/reference/accelerators.md.",
    )
    parser.add_argument("--platform", choices=("tpu", "gpu", "cpu"), help="default: what is found")
    parser.add_argument("--devices", type=_positive, help="of the CPU: how many to simulate")
    parser.add_argument("--only", nargs="+", default=[], choices=CHECKS, metavar="CHECK")
    parser.add_argument("--kills", type=_positive, default=KILLS, help="in the check `kills`")
    parser.add_argument("--out", type=Path, default=_DEFAULT, help=f"default: {_DEFAULT}")
    parser.add_argument(
        "--preempt",
        metavar="MODEL_DIR",
        help="train in this folder or bucket until the machine is taken away, and tell when what "
        "came",
    )
    parser.add_argument(
        "--table", nargs="+", type=Path, metavar="FILE", help="print the table of what was seen"
    )
    return parser
