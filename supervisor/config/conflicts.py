"""Finds keys of a config that contradict one another although each is valid by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from supervisor.config import placeholders
from supervisor.config.chips import arrangement, process_counts, why_not_shared
from supervisor.config.command import Command
from supervisor.config.feasible_rungs import ladder_conflicts
from supervisor.config.many_hosts import hosts_conflicts, hosts_conflicts_across
from supervisor.config.problems import Location, shown
from supervisor.config.rule_checks import rule_conflicts
from supervisor.config.schema import Devices, Phase
from supervisor.config.secret_names import is_hidden
from supervisor.config.topology import SliceShape, parse_slice
from supervisor.config.training.sections import Elasticity
from supervisor.protocol.location import Uri


def conflicts(phase: Phase) -> Iterator[tuple[Location, str]]:
    """Yields the contradictions inside a phase: the key to change, and the message."""
    if phase.fit is None and phase.command is None:
        yield (), "needs either fit (our trainer) or command (any other program)"
    if phase.fit is not None and phase.command is None:
        yield from (
            (("init", key), "is required for fit")
            for key in ("model", "loop")
            if getattr(phase.init, key) is None
        )
    if phase.fit is not None and phase.command is not None:
        yield ("command",), "is given beside fit: keep command (any program) or fit (our trainer)"
    restart = phase.init.autorestart
    yield from ladder_conflicts(phase)
    if phase.init.workers > 1 and phase.init.hosts is None:
        yield from _workers_conflicts(phase)
    yield from hosts_conflicts(phase.init)
    if phase.init.num_workers > 1 and phase.init.grpo is not None and phase.init.grpo.rollout:
        yield (
            ("init", "grpo", "rollout"),
            "needs a single worker, which has all devices, but there are "
            f"{phase.init.num_workers}: leave it out, so that all devices make completions",
        )
    if restart.backoff.max < restart.backoff.first:
        yield ("init", "autorestart", "backoff", "max"), "is below backoff.first"
    if restart.standby == "ready":
        yield from _ready_conflicts(phase)
    for where, message in rule_conflicts(restart.rules):
        yield ("init", "autorestart", "rules", *where), message
    yield from _checkpoint_conflicts(phase)
    yield from _fault_conflicts(phase)
    if phase.command is not None:
        yield from _command_conflicts(phase)


def _checkpoint_conflicts(phase: Phase) -> Iterator[tuple[Location, str]]:
    checkpoint = phase.init.checkpoint
    where = ("init", "checkpoint")
    if checkpoint.directory is not None:
        yield from _placeholder_conflicts(
            phase, (*where, "directory"), checkpoint.directory, ("model_dir",)
        )
    if checkpoint.verify is not None and phase.command is None:
        message = "is only for a command; our trainer (fit) verifies its checkpoints anyway"
        yield (*where, "verify"), message
    elif checkpoint.verify and _saves_in_bucket(phase):
        message = (
            "must be left out: the checkpoints are in a bucket, where the supervisor neither reads "
            "nor moves what a command has saved"
        )
        yield (*where, "verify"), message
    if checkpoint.pattern is None:
        return
    if phase.command is None:
        yield (*where, "pattern"), "is only for a command; our trainer (fit) has its own layout"
    elif checkpoint.committed != "marker" and _saves_in_bucket(phase):
        message = (
            "must be marker: the checkpoints are in a bucket, and nothing shows there whether a "
            "file was closed"
        )
        yield (*where, "committed"), message


def _saves_in_bucket(phase: Phase) -> bool:
    directory, model_dir = phase.init.checkpoint.directory, phase.init.model_dir
    place = model_dir if directory is None else directory.replace("{model_dir}", model_dir)
    return "://" in place


def _fault_conflicts(phase: Phase) -> Iterator[tuple[Location, str]]:
    groups = _simulated_units(phase)
    for index, fault in enumerate(phase.faults):
        if fault.rank >= phase.init.num_workers:
            message = f"is {fault.rank}, but the last rank is {phase.init.num_workers - 1}"
            yield ("faults", index, "rank"), message
        if fault.simulated is None:
            continue
        kind, unit = fault.simulated
        is_bitwise = phase.init.determinism.elastic is Elasticity.BITWISE
        if kind == "device_flips_bits" and not is_bitwise:
            message = "needs init.determinism: {elastic: bitwise}"
            yield ("faults", index, kind), message
        if not groups:
            message = "needs simulated devices: init.devices {platform: cpu, count: N}"
            yield ("faults", index, kind), message
        elif not any(unit in units for units in groups):
            there = " and ".join(f"{units[0]} to {units[-1]}" for units in groups)
            yield ("faults", index, kind), f"is {unit!r}, but there are only {there}"


def _simulated_units(phase: Phase) -> list[list[str]]:
    """Returns the ids of the simulated devices, and those of the hosts if there are several
    workers: each worker is a host then. Empty: the phase has no simulated devices."""
    devices, workers = phase.init.devices, phase.init.num_workers
    if devices is None or devices.platform != "cpu" or devices.count is None:
        return []
    hosts = [[f"host{index}" for index in range(workers)]] if workers > 1 else []
    return [[str(index) for index in range(devices.count)], *hosts]


def _workers_conflicts(phase: Phase) -> Iterator[tuple[Location, str]]:
    where, workers = ("init", "workers"), phase.init.workers
    devices = phase.init.devices
    count = devices.num_devices if devices else None
    if count is None or devices is None:
        yield where, f"is {workers}, which needs init.devices with a count to share out"
        return
    if count % workers:
        fitting = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
        yield (
            where,
            f"is {workers}, which cannot share {count} devices equally; use one of {fitting}",
        )
    elif devices.platform == "tpu" and workers > 1:
        yield from _chip_conflicts(where, devices, count, workers)


def _chip_conflicts(
    where: Location, devices: Devices, count: int, workers: int
) -> Iterator[tuple[Location, str]]:
    """Yields a complaint if no source shows how so many workers share the chips of one host."""
    known = parse_slice(devices.type) if devices.type is not None else None
    if known is not None and not known.is_part_of_a_host:
        largest = SliceShape(known.generation, max(known.generation_facts.parts)).type
        yield (
            where,
            f"is {workers}, but all workers run on one host, and {devices.type} has several: "
            f"give init.devices.type a slice of one host ({largest} at most)",
        )
        return
    generation = known.generation if known is not None else None
    if arrangement(generation, count, count // workers) is None:
        fitting = " or ".join(map(str, process_counts(generation, count)))
        name = devices.type or f"{count} chips"
        yield (
            where,
            f"is {workers}, but no source shows that so many processes can share a {name}: "
            f"{why_not_shared(generation)}. Use {fitting}: one process uses all chips of its host",
        )


def _ready_conflicts(phase: Phase) -> Iterator[tuple[Location, str]]:
    where = ("init", "autorestart", "standby")
    if phase.init.devices is not None and phase.init.devices.platform == "tpu":
        yield where, "is ready, but a TPU belongs to one process at a time; use imports or off"
    if phase.init.num_workers > 1:
        yield where, "is ready, but several workers must first find one another; use imports or off"
    if phase.command is not None:
        yield where, "is ready, which only our trainer (fit) can be; use imports or off"


def _command_conflicts(phase: Phase) -> Iterator[tuple[Location, str]]:
    assert phase.command is not None
    if phase.start_from is not None:
        yield (
            ("start_from",),
            "is only for our trainer (fit); a command chooses by itself what it starts from",
        )
    if phase.init.checkpoint.snapshot is not None:
        message = "snapshots in memory need our trainer (fit); a command does not take them"
        yield ("init", "checkpoint", "snapshot"), message
    if phase.faults:
        yield ("faults",), "drills need our trainer (fit); a command does not know of them"
    if phase.command.preload is not None and not phase.command.bootstrap:
        yield ("command", "preload"), "needs the bootstrap, which is switched off"
    if phase.command.save_on_sigterm and not phase.command.bootstrap:
        yield ("command", "save_on_sigterm"), "needs the bootstrap, which is switched off"
    yield from _given_twice(phase.command)
    texts: list[tuple[Location, str]] = [
        *((("command", "argv", index), text) for index, text in enumerate(phase.command.argv)),
        *((("command", "env", name), text) for name, text in phase.command.env.items()),
    ]
    for where, text in texts:
        yield from _placeholder_conflicts(phase, where, text, placeholders.KNOWN)
    if phase.command.success is not None and phase.command.success.file is not None:
        yield from _success_file_conflicts(phase, phase.command.success.file)
    batch = _global_batch(phase)
    devices = phase.init.devices.num_devices if phase.init.devices else None
    if batch is not None and devices is not None and batch % devices:
        message = f"is {batch}, which {devices} devices cannot share equally"
        yield ("command", "global_batch"), message


def _given_twice(command: Command) -> Iterator[tuple[Location, str]]:
    for name in command.env_secrets:
        if name in command.env:
            yield ("command", "env_secrets", name), "is also in command.env: give it once"


def _success_file_conflicts(phase: Phase, file: str) -> Iterator[tuple[Location, str]]:
    where = ("command", "success", "file")
    yield from _placeholder_conflicts(phase, where, file, placeholders.KNOWN)
    try:
        Uri.parse(file)
    except ValueError as error:
        yield where, f"{error} (value {shown(file)})"


def _placeholder_conflicts(
    phase: Phase, where: Location, text: str, known: Sequence[str]
) -> Iterator[tuple[Location, str]]:
    devices = phase.init.devices.num_devices if phase.init.devices else None
    for name in placeholders.names(text):
        if name not in known:
            names = ", ".join(f"{{{name}}}" for name in known)
            value = shown(text, where)
            told = "" if is_hidden(where) else f" {{{name}}}"
            yield where, f"unknown placeholder{told} (value {value}); known: {names}"
        elif name == "num_devices" and devices is None:
            yield where, "{num_devices} needs init.devices with a count"
        elif name == "per_device_batch" and (devices is None or not _global_batch(phase)):
            yield (
                where,
                "{per_device_batch} needs command.global_batch and init.devices with a count",
            )


def _global_batch(phase: Phase) -> int | None:
    return phase.command.global_batch if phase.command is not None else None


def conflicts_across(phases: Sequence[Phase]) -> Iterator[tuple[int, Location, str]]:
    """Yields the contradictions between phases: the phase's index, the key in it, the message."""
    names: dict[str, int] = {}
    folders: set[str | None] = set()
    shared = phases[0].init.model_dir
    yield from hosts_conflicts_across(phases)
    for index, phase in enumerate(phases):
        if phase.init.model_dir != shared:
            value = shown(phase.init.model_dir)
            message = f"all phases share one model_dir: {value} is not {shown(shared)}"
            yield index, ("init", "model_dir"), message
        for key, message in _start_conflicts(phases, index):
            yield index, ("start_from", *key), message
        yield from _adapters_alone(phases, index)
        for key, message in _another_model(phases, index):
            yield index, ("init", *key), message
        folder = phase.init.checkpoint.directory
        if folder is not None and folder in folders:
            message = (
                f"is also the directory of another phase (value {shown(folder)}); give each its own"
            )
            yield index, ("init", "checkpoint", "directory"), message
        folders.add(folder)
        name = phase_name(phase, index)
        if name in names:
            yield index, ("name",), f"{name!r} is the name of two phases"
        names[name] = index


def _start_conflicts(phases: Sequence[Phase], index: int) -> Iterator[tuple[Location, str]]:
    """Yields what contradicts itself in `start_from` of phase `index`: the key in it, the
    message."""
    start = phases[index].start_from
    if start is None or phases[index].fit is None:
        return
    names = [phase_name(phase, number) for number, phase in enumerate(phases[:index])]
    if start.directory is not None:
        if start.phase is not None:
            yield ("phase",), "is given beside directory: give one of them"
    elif not any(map(makes_weights, phases[:index])):
        which = (
            "there is no phase before that trains,"
            if index
            else "the first phase has no earlier phase"
        )
        yield (), f"{which} to start from: give it a directory"
    elif start.phase is not None and start.phase not in names:
        there = ", ".join(names)
        yield ("phase",), f"is not an earlier phase (value {shown(start.phase)}); there is {there}"
    elif start.phase is not None and not makes_weights(phases[names.index(start.phase)]):
        yield ("phase",), f"only evaluates, and makes no weights (value {shown(start.phase)})"


def phase_name(phase: Phase, index: int) -> str:
    """Returns the name of a phase: the given one, or one made from its index."""
    return phase.name or f"phase{index + 1}"


def makes_weights(phase: Phase) -> bool:
    """Whether the checkpoints of `phase` have weights: those of an evaluation have none."""
    return phase.fit is None or phase.fit.train_dataloader is not None


def starting_phase(phases: Sequence[Phase], index: int) -> int | None:
    """Returns the index of the phase that phase `index` starts from, if it starts from no
    directory: the one that it names, or the last before it that makes weights. None: there is no
    such phase."""
    start = phases[index].start_from
    for number in reversed(range(index)):
        named = start.phase if start is not None else None
        if named == phase_name(phases[number], number) or (
            named is None and makes_weights(phases[number])
        ):
            return number
    return None


def _adapters_alone(phases: Sequence[Phase], index: int) -> Iterator[tuple[int, Location, str]]:
    """Yields the problem that phase `index` starts from adapters that are saved without a base."""
    start = phases[index].start_from
    if phases[index].fit is None or (start is not None and start.directory is not None):
        return
    source = starting_phase(phases, index)
    if source is None:
        return
    init = phases[source].init
    if init.lora is not None and not init.checkpoint.save_frozen:
        name = phase_name(phases[index], index)
        message = f"must be true: phase {name!r} starts from this one (value false)"
        yield source, ("init", "checkpoint", "save_frozen"), message


def _another_model(phases: Sequence[Phase], index: int) -> Iterator[tuple[Location, str]]:
    """Yields what makes the weights of phase `index` others than those that it starts from: the key
    in `init`, the message."""
    phase, source = phases[index], starting_phase(phases, index)
    start = phase.start_from
    if phase.fit is None or source is None or (start is not None and start.directory is not None):
        return
    own, other = phase.init.model, phases[source].init.model
    if own is None or other is None:
        return
    here, there = own.parameters, other.parameters
    different = [key for key in here if here[key] != there[key]]
    given = [key for key in different if key in own.model_fields_set] or different[:1]
    name = phase_name(phases[source], source)
    for key in given:
        where, told = key, f"is {shown(here[key])}"
        if own.pretrained is not None:
            where, told = "pretrained", f"has {key} {shown(here[key])}"
        yield (
            ("model", where),
            f"{told}, but {shown(there[key])} in phase {name!r}, from whose weights this one "
            "starts: make them equal, or name another phase or a directory in start_from",
        )
