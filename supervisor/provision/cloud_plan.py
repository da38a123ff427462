"""Makes the request for a slice from the config of a job, or says why that is impossible."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from supervisor.config.feasible_rungs import FeasibleRungs
from supervisor.config.problems import ConfigError, Location, Problem
from supervisor.config.schema import Phase, Provision
from supervisor.config.topology import SliceShape, parse_slice
from supervisor.config.yaml_source import to_yaml
from supervisor.diagnosis.redaction import Redactor
from supervisor.prepare import Prepared
from supervisor.protocol.location import Uri
from supervisor.provision import boot
from supervisor.provision.intent import LoopPolicy


@dataclass(frozen=True, slots=True)
class Plan:
    """The request for the slices of a job, and the policy of the loop that makes it."""

    where: Provision
    whole: SliceShape
    """The slice on the full rung."""
    machine: boot.MachineSetup
    policy: LoopPolicy

    @property
    def name(self) -> str:
        """The beginning of the ids of all slices of the job."""
        return self.machine.name

    @property
    def parent(self) -> str:
        """The resource name of the project and the zone that the slices are in."""
        return f"projects/{self.where.project}/locations/{self.where.zone}"

    def accelerator_type(self, rung: int) -> str:
        """Returns the API's name for a slice of `rung` chips."""
        return SliceShape(self.whole.generation, rung).type_in_the_cloud

    def body(self, generation: int, rung: int) -> dict[str, Any]:
        """Returns the queued resource to request: slice `generation`, with `rung` chips."""
        return _body(self.where, self.accelerator_type(rung), self.machine, generation)


def make_plan(prepared: Prepared, redactor: Redactor, wheel: boot.File, lock: boot.File) -> Plan:
    """Returns the plan of a job. The slice installs `wheel`, and what `lock` names, by hash.

    Raises:
        ConfigError: the job cannot be provisioned; the error has everything that must change.
    """
    job = prepared.job
    found = [
        *(
            job.source.problem((*job.locations[0], *where), message)
            for where, message in chain(
                _unsupported_keys(job.phases[0]), _unequal_phases(job.phases)
            )
        ),
        *_secret_problems(prepared, redactor),
    ]
    if job.exit_codes:
        message = "is for other service managers: the unit on the slice goes by our own codes"
        found.append(job.source.problem(("exit_codes",), message))
    if found:
        raise ConfigError(found)
    init = job.phases[0].init
    uri = Uri.parse(init.model_dir)
    assert init.provision is not None
    assert init.devices is not None
    assert init.devices.type is not None
    assert uri is not None
    config = boot.File("job.yaml", to_yaml(job.source.data).encode())
    machine = boot.MachineSetup(_name(uri), uri, config, wheel, lock, init.provision.user)
    whole = parse_slice(init.devices.type)
    body = _body(init.provision, whole.type_in_the_cloud, machine, 0)
    policy = LoopPolicy(
        config=hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16],
        rungs=_rungs(whole, prepared.ladders),
        smaller_after=init.provision.smaller_after,
    )
    return Plan(init.provision, whole, machine, policy)


def _unsupported_keys(phase: Phase) -> Iterator[tuple[Location, str]]:
    """Yields what a phase lacks, or what the cloud does not offer: the key to change, and the
    message."""
    init, where = phase.init, ("init", "devices")
    if init.provision is None:
        keys = "{project: NAME, zone: us-west4-a, runtime_version: v2-alpha-tpuv5-lite}"
        yield ("init", "provision"), f"is required by `supervise provision`: {keys}"
    uri = Uri.parse(init.model_dir)
    if uri is None or uri.scheme != "gs":
        message = "must be in a bucket (gs://BUCKET/PATH): a disk is gone with its slice"
        yield ("init", "model_dir"), message
    if init.provision is not None and init.provision.spot and init.autorestart.preemption.notice:
        message = (
            "is not for a Spot slice, which may go at once when its end is announced: remove it, "
            "and the job saves at once"
        )
        yield ("init", "autorestart", "preemption", "notice"), message
    if init.devices is None or init.devices.type is None:
        yield where, "must name the slice to ask for: {platform: tpu, type: v5e-8}"
        return
    one = parse_slice(init.devices.type)
    if not one.generation_facts.is_queued:
        message = (
            f"is {one.type}, which the Cloud TPU API does not offer, and `supervise provision` "
            "asks no other API: let a managed instance group of Compute Engine or Google "
            "Kubernetes Engine create the machines, and run `supervise run` on them"
        )
        yield (*where, "type"), message
    elif one.chips not in one.generation_facts.slices:
        yield (*where, "type"), f"is {one.type}, which the cloud does not offer as a slice"
    if (init.devices.slices or 1) > 1 or not one.is_part_of_a_host:
        message = f"is {one.type}, or several: only a slice of one host can be provisioned so far"
        yield (*where, "type"), message


def _unequal_phases(phases: tuple[Phase, ...]) -> Iterator[tuple[Location, str]]:
    if any(phase.init.devices != phases[0].init.devices for phase in phases):
        yield ("init", "devices"), "must be the same in all phases: they run on one slice"


def _secret_problems(prepared: Prepared, redactor: Redactor) -> Iterator[Problem]:
    """Yields a problem for each key that holds a secret: everybody who can read the bucket could
    read it."""
    job = prepared.job
    by_name = [
        (*job.locations[index], *where)
        for index, plan in enumerate(prepared.plans)
        for where in _changed_locations(
            plan.params["trainer"], redactor.params(plan.params)["trainer"]
        )
    ]
    by_form = [where for where, text in _texts(job.source.data) if redactor.text(text) != text]
    for where in by_name or by_form:
        message = (
            "holds a secret, and the config goes into the bucket: name it in command.env_secrets "
            "(Secret Manager) or put it on the machine (command.env_file)"
        )
        yield job.source.problem(where, message)


def _texts(data: Any, where: Location = ()) -> Iterator[tuple[Location, str]]:
    if isinstance(data, str):
        yield where, data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from _texts(value, (*where, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _texts(value, (*where, index))


def _changed_locations(before: Any, after: Any, where: Location = ()) -> Iterator[Location]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from _changed_locations(value, after.get(key), (*where, key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, value in enumerate(before):
            yield from _changed_locations(value, after[index], (*where, index))
    elif before != after:
        yield where


def _metadata(machine: boot.MachineSetup, generation: int) -> dict[str, str]:
    """Returns the metadata of the machine. Many people can read it, so the only values of the
    config in it are the place of model_dir and the name of the user."""
    return {"startup-script": boot.startup_script(machine, generation)}


def _rungs(whole: SliceShape, ladders: tuple[FeasibleRungs, ...]) -> tuple[int, ...]:
    """Returns the rungs that all phases have and that are slices of their own, the full one
    first."""
    common = set.intersection(*({rung.num_devices for rung in one.rungs} for one in ladders))
    slices = whole.generation_facts.slices
    return tuple(sorted((n for n in common if n in slices), reverse=True))


def _name(uri: Uri) -> str:
    """Returns the name of the job's slices. The same model_dir always gives the same name, which
    has only letters, digits and hyphens, as names of machines must."""
    last = (uri.path or uri.bucket).rpartition("/")[2].lower()
    word = re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:24]
    digest = hashlib.sha256(str(uri).encode()).hexdigest()[:8]
    return "-".join(part for part in ("supervise", word, digest) if part)


def _body(
    where: Provision, accelerator_type: str, machine: boot.MachineSetup, generation: int
) -> dict[str, Any]:
    # pip needs an external address to reach the package index.
    network = {"enableExternalIps": True, **({"network": where.network} if where.network else {})}
    node: Mapping[str, Any] = {
        "acceleratorType": accelerator_type,
        "runtimeVersion": where.runtime_version,
        "networkConfig": network,
        "metadata": _metadata(machine, generation),
        **({"serviceAccount": {"email": where.service_account}} if where.service_account else {}),
    }
    parent = f"projects/{where.project}/locations/{where.zone}"
    id_ = f"{machine.name}-{generation}"
    spec = {"parent": parent, "nodeId": id_, "node": node}
    return {"tpu": {"nodeSpec": [spec]}, **({"spot": {}} if where.spot else {})}
