"""Checks, before anything is started, whether a job can run on this machine.

`run` and `validate` report the same problems, because both call `check`. It changes nothing, except
that it makes a file with a random name where model_dir will be, and removes it at once.
"""

from __future__ import annotations

import os
import re
import resource
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EACCES
from importlib.util import find_spec
from pathlib import Path

from supervisor.adapters.platforms.allocation_end import shown_time
from supervisor.adapters.platforms.tpu_lock import LOCK
from supervisor.adapters.stores.lease import LeaseTimes
from supervisor.adapters.stores.storage import make_durably
from supervisor.config import gpus, placeholders, visible_chips
from supervisor.config.known_programs import is_shell
from supervisor.config.named_program import assignments
from supervisor.config.places import missing_path_hint
from supervisor.config.plan import JAX_PLATFORMS, PhasePlan, may_fall_back_to_cpu
from supervisor.config.problems import Location, Problem, shown
from supervisor.config.rule_checks import vacuous_patterns
from supervisor.config.shell_pipes import pipe_that_hides_failure
from supervisor.config.shell_waits import waits_for_all
from supervisor.config.topology import SliceShape
from supervisor.core.cache_trust import Trust
from supervisor.core.state import JobState
from supervisor.engines.holders import lock_in_the_way
from supervisor.engines.missing_jax import missing_jax
from supervisor.engines.python_program import script_of
from supervisor.engines.shell_script import shell_script
from supervisor.files.segments import JOURNAL
from supervisor.host.notice import Notice
from supervisor.model_dir_check import (
    foreign_files,
    nearest_existing,
    why_not_writable,
    why_refused,
)
from supervisor.ports import Objects
from supervisor.prepare import Prepared
from supervisor.protocol.committed import committed_steps
from supervisor.protocol.location import SCHEMES, Uri
from supervisor.protocol.reading import open_file
from supervisor.protocol.this_machine import missing_gpu
from supervisor.remote import cache_trust, reach_bucket

_OF_THE_TRAINER = ("jax", "flax", "grain", "optax", "orbax")
_MAX_FIRST_LINE = 256
_SHEBANG = re.compile(rb"#![ \t]*([^ \t\n]+)")
_SHELL_ONLY = re.compile(r"\|\|?|&&?|;|\d?(?:>>?|<)(?:&\d)?")
"""Words that connect commands or files in a shell."""
_IN_A_BUCKET = re.compile(rf"(?:^|[=\s'\"])((?:{'|'.join(SCHEMES)})://[^\s'\"]+)")
_READ_FROM = re.compile(r"(?i)data|corpus|vocab|token|pretrain|restore|load|init_from")
"""In the name of an option or variable for what a program reads."""
_NEW_JOB = JobState()
_DESCRIPTORS, _DESCRIPTORS_PER_HOST = 256, 4
"""What the process that speaks to Ray may have open: connections to each host, and the rest."""
_UNEXPANDED = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})|(?:^|=)(~)(?:/|$)")


@dataclass(frozen=True, slots=True)
class Prerequisites:
    """By-products of the check that the job needs later."""

    objects: Objects | None
    """The bucket of the job, which has answered; None: the job is in a directory."""
    trust: Trust


def check(prepared: Prepared, patience: float = 60.0) -> Prerequisites:
    """Check that the job can be started here. A bucket has `patience` seconds to answer.

    Raises:
        ConfigError: the job can never start here; the error has all problems that were found.
        ModelDirError: model_dir cannot be used now, but perhaps later.
    """
    problems = problems_beside_model_dir(prepared)
    problems += _model_dir_problems(prepared, nearest_existing(prepared.job.model_dir))
    if problems:
        raise prepared.refusal(problems)
    return Prerequisites(reach_bucket(prepared.job, patience), cache_trust(prepared.job))


def problems_beside_model_dir(prepared: Prepared) -> list[Problem]:
    """Returns why the job can never be started here, but for what is wrong with its model_dir."""
    problems = [
        prepared.job.problem(index, ("command", *where), message)
        for index, plan in enumerate(prepared.plans)
        if plan.is_command
        for where, message in _program_problems(plan, prepared.job.source.name)
    ]
    problems += _trainer_problems(prepared)
    problems += _start_problems(prepared)
    problems += _hosts_problems(prepared)
    problems += _platform_problems(prepared)
    problems += _device_problems(prepared)
    problems += _preemption_problems(prepared, time.time())
    return problems


def _preemption_problems(prepared: Prepared, now: float) -> Iterator[Problem]:
    """Yields a problem if `preemption.until` has passed: nothing could ever start."""
    until = prepared.job.phases[0].init.autorestart.preemption.until
    if until is not None and until <= now:
        where = ("init", "autorestart", "preemption", "until")
        text = f"has passed ({shown_time(until)}): give the end of this allocation, or remove it"
        yield prepared.job.problem(0, where, text)


def _trainer_problems(prepared: Prepared) -> Iterator[Problem]:
    """Yields a problem for each phase of our trainer if a package that it imports is not
    installed."""
    missing = [name for name in _OF_THE_TRAINER if find_spec(name) is None]
    for index, plan in enumerate(prepared.plans):
        if missing and not plan.is_command:
            message = (
                f"needs {', '.join(missing)} here: install the [trainer] extra, as in "
                "pip install '.[trainer]' in a checkout"
            )
            yield prepared.job.problem(index, ("fit",), message)


def _start_problems(prepared: Prepared) -> Iterator[Problem]:
    """Yields a problem for each phase of our trainer that starts from a directory without a
    checkpoint. One that has checkpoints itself goes on from these; and an earlier phase may fill
    the directory."""
    made = set[str]()
    for index, plan in enumerate(prepared.plans):
        start = plan.params["trainer"].get("start_from") if not plan.is_command else None
        place = start["directory"] if start is not None else None
        if place is not None and place not in made and not _has_checkpoint(plan.checkpoint_dir):
            where = ("start_from", "directory")
            for message in _no_start(Path(place)) if Uri.parse(place) is None else ():
                yield prepared.job.problem(index, where, message)
        made.add(str(plan.checkpoint_dir))


def _no_start(directory: Path) -> Iterator[str]:
    """Yields the complaint that `directory` has no committed checkpoint."""
    if _has_checkpoint(directory):
        return
    below = directory / "checkpoints"
    if below.is_dir() and _has_checkpoint(below):
        remedy = f"give {below}, which has one"
    else:
        remedy = "give the directory of another job's checkpoints, mostly its model_dir/checkpoints"
    how = "has no committed checkpoint" if directory.is_dir() else "is no directory here"
    yield f"{how} (value {shown(str(directory))}): {remedy}"


def _has_checkpoint(place: Path | Uri) -> bool:
    """Whether a checkpoint is committed there, or that cannot be known now."""
    if not isinstance(place, Path):
        return True
    try:
        return any(True for _ in committed_steps(place))
    except OSError:
        return True


def _hosts_problems(prepared: Prepared) -> Iterator[Problem]:
    """Yields the problems of a job that asks for several hosts."""
    hosts, longest = prepared.job.phases[0].init.hosts, LeaseTimes().kill
    if hosts is None:
        return
    where: Location = ("init", "hosts")
    if find_spec(hosts.engine) is None:
        message = (
            f"needs {hosts.engine} here, and on each host: install the [{hosts.engine}] extra, as "
            f"in pip install '.[{hosts.engine}]' in a checkout"
        )
        yield prepared.job.problem(0, (*where, "engine"), message)
    for index, phase in enumerate(prepared.job.phases):
        if phase.init.workers not in (1, hosts.count):
            message = (
                f"is {phase.init.workers}: several workers on each of {hosts.count} hosts are not "
                "supported yet; remove it, and each host has one"
            )
            yield prepared.job.problem(index, ("init", "workers"), message)
    if hosts.lost_after >= longest:
        message = (
            f"is {hosts.lost_after:g} s, too long for the lease of model_dir: a supervisor that "
            f"cannot renew it stops after {longest:g} s, and hosts must be lost before; use less"
        )
        yield prepared.job.problem(0, (*where, "lost_after"), message)
    needed, limit = hosts.count + hosts.spares, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit < _DESCRIPTORS + _DESCRIPTORS_PER_HOST * needed:
        message = (
            f"asks for {needed} hosts, but a process here may open {limit} files only: raise the "
            f"hard limit (ulimit -Hn) to {_DESCRIPTORS + _DESCRIPTORS_PER_HOST * needed}"
        )
        yield prepared.job.problem(0, (*where, "count"), message)


def _platform_problems(prepared: Prepared) -> Iterator[Problem]:
    """Yields a problem for each phase whose JAX_PLATFORMS may make it run on the CPU although the
    config asks for another platform."""
    for index, plan in enumerate(prepared.plans):
        text = plan.env.get(JAX_PLATFORMS)  # overrides env_file and our own environment
        if text is None or placeholders.names(text):
            continue
        if may_fall_back_to_cpu(plan.platform, text):
            message = (
                f"is {text!r}: with it jax may silently run on the CPU, but init.devices.platform "
                f"is {plan.platform}; remove it ({JAX_PLATFORMS} is set for you), or ask for "
                "`platform: cpu`"
            )
            yield prepared.job.problem(index, ("command", "env", JAX_PLATFORMS), message)


def _device_problems(prepared: Prepared) -> Iterator[Problem]:
    """Yields the problems of the environment with devices: variables that hide GPUs or TPU chips
    which a phase needs, and settings that jaxlib refuses."""
    for index, plan in enumerate(prepared.plans):
        if plan.num_hosts:  # its devices are on other machines
            continue
        environ = {**os.environ, **plan.secrets, **plan.env}
        stored = plan.env_secrets  # `validate` knows their names, but not their values
        if plan.platform == "gpu" and all(n in stored or environ.get(n) for n in gpus.FRACTIONS):
            message = f"{' and '.join(gpus.FRACTIONS)} are both set: jaxlib refuses that; unset one"
            yield prepared.job.problem(index, ("init", "devices"), message)
        name = (
            visible_chips.variable(environ) if plan.platform == "tpu" else gpus.CUDA_VISIBLE_DEVICES
        )
        text = environ.get(name)
        if plan.platform not in ("gpu", "tpu") or text is None or placeholders.names(text):
            continue
        if plan.platform == "gpu":
            problem = gpus.visible_gpus_problem(text, plan.num_devices, plan.workers)
        else:
            problem = visible_chips.visible_chips_problem(
                text, plan.num_devices if plan.units else None, plan.tpu
            )
        if problem is not None and name in plan.env:
            yield prepared.job.problem(index, ("command", "env", name), problem)
        elif problem is not None:
            origin = "command.env_file" if name in plan.secrets else "the environment"
            message = f"{name} in {origin} {problem}"
            yield prepared.job.problem(index, ("init", "devices"), message)


def make_model_dir(prepared: Prepared) -> None:
    """Make model_dir and check that it can be written.

    Raises:
        ConfigError: it can never be written.
        ModelDirError: it cannot be written now; somebody may repair the disk.
    """
    model_dir = prepared.job.model_dir
    try:
        make_durably(model_dir)
    except OSError as error:
        why = why_refused(model_dir, model_dir, error)
        problems = [] if why is None else [_model_dir_problem(prepared, why)]
    else:
        problems = list(_model_dir_problems(prepared, model_dir))
    if problems:
        raise prepared.refusal(problems)


def _model_dir_problems(prepared: Prepared, folder: Path) -> Iterator[Problem]:
    """Try to make a file in `folder`, which is model_dir or a parent of it; yields the problem."""
    why = why_not_writable(prepared.job.model_dir, folder)
    for each in foreign_files(prepared.job.model_dir) if why is None else (why,):
        yield _model_dir_problem(prepared, each)


def _model_dir_problem(prepared: Prepared, why: str) -> Problem:
    return prepared.job.problem(0, ("init", "model_dir"), why)


def _program_problems(plan: PhasePlan, config: str) -> Iterator[tuple[Location, str]]:
    """Yields problems with the program or script of a command: missing, not executable, not
    readable. Words with placeholders are not checked."""
    if not placeholders.names(plan.argv[0]):
        program = placeholders.expand(plan.argv[0], {})
        path = plan.env.get("PATH", plan.secrets.get("PATH", os.environ.get("PATH", os.defpath)))
        if (found := _found(program, path)) is None:
            yield ("argv", 0), _why_not(program, config)
        elif (problem := _interpreter_problem(found)) is not None:
            yield ("argv", 0), problem
    index = script_of(plan.argv)
    if index is None or placeholders.names(plan.argv[index]):
        return
    script = placeholders.expand(plan.argv[index], {})
    try:
        Path(script).stat()
    except FileNotFoundError:
        yield ("argv", index), f"no such file: {script}{missing_path_hint(script, config)}"
    except OSError as error:
        yield ("argv", index), f"cannot be read: {script}: {error.strerror}"
    else:
        if not os.access(script, os.R_OK, effective_ids=True):
            yield ("argv", index), f"cannot be read: {script}: {os.strerror(EACCES)}"


def _found(program: str, path: str) -> Path | None:
    """Returns the file that the kernel would start, or None.

    Unlike `shutil.which`, this uses our effective user and group ids.
    """
    folders = [""] if "/" in program else path.split(os.pathsep)
    for candidate in (Path(folder, program) for folder in folders):
        if _is_file(candidate) and os.access(candidate, os.X_OK, effective_ids=True):
            return candidate
    return None


def _is_file(path: Path) -> bool:
    """Whether `path` is a file that we may look at."""
    try:
        return path.is_file()
    except OSError:  # we have no permission for its folder, or the name is too long
        return False


def _why_not(program: str, config: str) -> str:
    """Returns why a program cannot be started, and where possible what to do."""
    path = Path(program)
    if "/" not in program and program != "~":
        if " " in program:
            return f"no program is called {program!r}: write each word as an item of its own"
        if assignments(("env", program, "")):
            return f"no shell reads it: write env before the variable, as in env {program} PROGRAM"
        start = f"python {program}" if path.suffix == ".py" else f"./{program}"
        beside = f"; write {start} for the file here" if _is_file(path) else ""
        return f"no such program in PATH: {program}{beside}"
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"no such file: {program}{missing_path_hint(program, config)}"
    except OSError as error:
        return f"cannot be run: {program}: {error.strerror}"
    if stat.S_ISDIR(mode):
        return f"is a directory: {program}"
    instead = f"write python {program}, or " if path.suffix == ".py" else ""
    return f"is not executable: {program} ({instead}chmod +x {program})"


def _interpreter_problem(program: Path) -> str | None:
    """Returns what is wrong with the interpreter of a script, or None. The kernel says only "No
    such file" when it is missing."""
    try:
        with open_file(program, linked=True) as file:
            line = file.readline(_MAX_FIRST_LINE)
    except OSError:  # a program may be executable without being readable
        return None
    match = _SHEBANG.match(line)
    if match is None or Path(interpreter := os.fsdecode(match[1])).exists():
        return None
    if line.endswith(b"\r\n"):
        return (
            f"{program} has Windows line ends (CRLF), so the kernel does not find its "
            "interpreter: convert it (dos2unix)"
        )
    return f"{program} names an interpreter that is not there: {interpreter}"


def start_warnings(
    prepared: Prepared, lock: Path = LOCK, state: JobState = _NEW_JOB, *, once: bool = False
) -> list[Notice]:
    """Returns warnings about a job that can start but may not do what its author wants; `lock` is
    the lock file of libtpu, `state` is where the job stands, and `once` as in `run`."""
    told = [
        *_shell_only_words(prepared),
        *_hidden_failures(prepared),
        *_unseen_success(prepared, state, once=once),
        *_unsearched_buckets(prepared, state, once=once),
        *_without_jax(prepared),
    ]
    if any(plan.platform == "gpu" for plan in prepared.plans) and (why := missing_gpu()):
        told.append(Notice("driver-missing", why, reason=why))
    if any(plan.platform == "tpu" for plan in prepared.plans):
        told += lock_in_the_way(prepared.redactor(os.environ).text, lock)
    told += _no_probe(prepared)
    told += [*_idle_rules(prepared), *_hardware_doubts(prepared), *_slice_doubts(prepared)]
    return [*told, *_job_elsewhere(prepared)]


def _doubt(code: str, text: str) -> Notice:
    return Notice("config-doubtful", text, code=code)


def _shell_only_words(prepared: Prepared) -> Iterator[Notice]:
    plans = [plan for plan in prepared.plans if plan.is_command and not is_shell(plan.argv[0])]
    for plan in plans:
        for where, text in _texts(plan):
            for name in _unexpanded(text):
                what = "is given to the program as it stands: no shell expands it"
                yield _doubt("not-expanded", f"{name!r} {what} ({where})")
            for name, meant in placeholders.misspelt(text):
                what = f"is given to the program as it stands: the placeholder is {{{meant}}}"
                yield _doubt("not-expanded", f"{{{name}}} {what} ({where})")
    for plan in plans:
        for index, word in enumerate(plan.argv):
            if _SHELL_ONLY.fullmatch(word):
                what = "is given to the program as it stands: only a shell acts on it, as in"
                how = f'["bash", "-c", "set -o pipefail; ..."] (command.argv[{index}])'
                yield _doubt("needs-shell", f"{word!r} {what} {how}")


def _hidden_failures(prepared: Prepared) -> Iterator[Notice]:
    for plan in prepared.plans:
        if not plan.is_command:
            continue
        script, text = shell_script(plan.argv)
        place = script or "command.argv"
        if waits_for_all(plan.argv, text):
            yield _doubt(
                "wait-hides-end",
                f"phase {plan.name!r} starts programs in the background and waits for all of them "
                f"({place}): where one dies, the others notice it late (jax after about 100 s), "
                "and `wait` ends with 0 whatever they did; have supervise start them "
                "(init.workers), or write `wait -n || exit` once for each program",
            )
        reader = pipe_that_hides_failure(plan.argv, text)
        if reader is not None:
            yield _doubt(
                "pipe-hides-failure",
                f"phase {plan.name!r} pipes its output into `{reader}`, so the shell exits as "
                f"`{reader}` does: a program that was killed looks as if it had succeeded; write "
                f"`set -o pipefail` first ({place}), or leave the pipe out: each attempt "
                "keeps its output in rank0.log",
            )


def _without_jax(prepared: Prepared) -> Iterator[Notice]:
    for plan in prepared.plans:
        if plan.is_command and (why := missing_jax(plan, os.environ)) is not None:
            yield _doubt("jax-missing", why)


def _unseen_success(prepared: Prepared, state: JobState, *, once: bool) -> Iterator[Notice]:
    """Yields a warning for each phase that succeeds at a step which nothing may tell. A phase that
    is complete, or whose checkpoints were found, has told its steps."""
    phases = zip(prepared.plans, prepared.job.phases, strict=True)
    for index, (plan, phase) in enumerate(phases):
        if plan.success.step is None or phase.init.checkpoint.directory is not None:
            continue
        is_found = state.checkpoints_of(index) is not None
        if is_found or state.has_completed(index, once=once):
            continue
        if _shows_no_steps(plan, phase.init.model_dir):
            yield _doubt(
                "success-unseen",
                f"phase {plan.name!r} succeeds at step {plan.success.step} (command.success.step), "
                "but nothing in the config tells a step: it can succeed only if supervise finds "
                "the directory where the program saves, or the program reports its steps itself "
                "(by supervise_worker or jax.monitoring); to be sure, give "
                "--set 'trainer.command.progress.pattern=...' or "
                "--set trainer.init.checkpoint.directory=... (now "
                f"{plan.checkpoint_dir})",
            )


def _unsearched_buckets(prepared: Prepared, state: JobState, *, once: bool) -> Iterator[Notice]:
    """Yields a warning for each phase whose checkpoints are to be found, and whose command names a
    bucket in which the program may save."""
    for index, plan in enumerate(prepared.plans):
        is_known = not plan.finds_checkpoints or state.checkpoints_of(index) is not None
        if is_known or state.has_completed(index, once=once):
            continue
        option = ""
        for where, text in _texts(plan):
            match = _IN_A_BUCKET.search(text)
            name = f"{option} {where} {text[: match.start(1)]}" if match is not None else ""
            if match is not None and not _READ_FROM.search(name):
                yield _doubt(
                    "bucket-unsearched",
                    f"{match[1]} ({where}) is in a bucket, where checkpoints are not searched for: "
                    "if the program saves there, set trainer.init.checkpoint.directory to the "
                    "folder of the steps, or none of them is progress",
                )
                break
            option = text


def _idle_rules(prepared: Prepared) -> Iterator[Notice]:
    for index, phase in enumerate(prepared.job.phases):
        for where, message in vacuous_patterns(phase.init.autorestart.rules):
            problem = prepared.job.problem(index, ("init", "autorestart", "rules", *where), message)
            yield _doubt("rule-idle", str(problem))


def _no_probe(prepared: Prepared) -> Iterator[Notice]:
    """Yields a warning for each command that may go on with fewer devices although nothing here
    can find out which are healthy."""
    if find_spec("jax") is not None:
        return
    for plan in prepared.plans:
        if plan.is_command and len(plan.rungs) > 1:
            extra = {"gpu": "cuda", "tpu": "tpu"}.get(plan.platform or "", "trainer")
            yield _doubt(
                "probe-lacks-jax",
                f"phase {plan.name!r} never goes on with fewer devices: the probe that finds the "
                "healthy ones needs jax in the environment of supervise, where it is not "
                f"installed; install the [{extra}] extra there",
            )


def _hardware_doubts(prepared: Prepared) -> Iterator[Notice]:
    for plan in prepared.plans:
        if plan.platform != "gpu" or plan.standby != "ready":
            continue
        part = gpus.memory_share({**os.environ, **plan.secrets, **plan.env})
        if part is not None and not gpus.two_processes_fit(part):
            yield _doubt(
                "standby-lacks-memory",
                f"phase {plan.name!r} has a standby of `imports` instead of `ready`: each process "
                f"takes {part:.0%} of a GPU's memory when it begins, which leaves no room for a "
                "second one; set XLA_CLIENT_MEM_FRACTION=.45",
            )


def _slice_doubts(prepared: Prepared) -> Iterator[Notice]:
    for plan in prepared.plans:
        if plan.tpu is not None and plan.num_devices and not (plan.units or plan.num_hosts):
            largest = SliceShape(plan.tpu.generation, max(plan.tpu.generation_facts.parts)).type
            yield _doubt(
                "several-hosts",
                f"phase {plan.name!r} asks for {plan.num_devices} TPU chips, more than one host "
                "has: `supervise run` starts workers on this host only; use a slice of one host "
                f"({largest} at most)",
            )
        if plan.tpu is not None and plan.tpu.topology is None:
            yield _doubt(
                "topology-unknown",
                f"phase {plan.name!r} asks for a {plan.tpu.type}, a size in no table of Google's: "
                "how its chips are wired up is unknown",
            )


def _job_elsewhere(prepared: Prepared) -> Iterator[Notice]:
    job = prepared.job
    given = job.phases[0].init.model_dir
    if job.remote is None and not job.model_dir.exists() and not Path(given).is_absolute():
        beside = Path(job.source.name).absolute().parent / given
        if (beside / JOURNAL).exists():
            text = (
                f"a new job begins in {job.model_dir}, but there is a job in {beside}, beside the "
                "config: check which one you mean"
            )
            yield _doubt("job-elsewhere", text)


def hang_warnings(prepared: Prepared) -> Iterator[Notice]:
    """Yields a notice for each phase in which a hang may go unnoticed."""
    for plan, phase in zip(prepared.plans, prepared.job.phases, strict=True):
        if plan.is_command and plan.progress_pattern is None:
            limit = ", and deadlines.TRAINING limits nothing"
            text = (
                f"phase {plan.name!r} names no progress pattern: unless the program reports its "
                "steps (by supervise_worker or jax.monitoring), a hang cannot be noticed"
                f"{limit if 'TRAINING' in phase.init.autorestart.deadlines else ''}"
            )
            yield Notice("hang-unnoticeable", text, phase=plan.name)


def _shows_no_steps(plan: PhasePlan, given: str) -> bool:
    """Whether nothing seems to show the steps of a command: it has no progress pattern, no word of
    it names the model_dir (`given` in the config), and its checkpoint directory does not exist."""
    if not plan.is_command or plan.progress_pattern is not None:
        return False
    if isinstance(plan.checkpoint_dir, Path) and plan.checkpoint_dir.exists():
        return False
    names = [str(plan.model_dir), *([given] if "/" in given else [])]
    return not any(
        {"model_dir", "params"}.intersection(placeholders.names(text))
        or any(name in text for name in names)
        for _, text in _texts(plan)
    )


def _texts(plan: PhasePlan) -> Iterator[tuple[str, str]]:
    yield from ((f"command.argv[{index}]", word) for index, word in enumerate(plan.argv))
    yield from ((f"command.env.{name}", text) for name, text in plan.env.items())


def _unexpanded(text: str) -> Iterator[str]:
    """Yields what a shell would expand in `text`: variables that our environment has, and `~`."""
    for match in _UNEXPANDED.finditer(text):
        name = match[1] or match[2]
        if match[3] or name in os.environ:
            yield "~" if match[3] else f"${name}"
