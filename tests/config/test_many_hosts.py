"""`init.hosts`: what contradicts the devices, the workers or another phase is told in one line."""

from __future__ import annotations

import re

import pytest

from tests.config.files import PHASES, load, problems, with_init


def config(hosts: str, more: str = "") -> str:
    """A config with these keys of `init.hosts`, and `more` lines under `init`."""
    return with_init(f"hosts: {{engine: ray, {hosts}}}\n{more}")


V5E_256 = "devices: {platform: tpu, type: v5e-256}"
TWO_V5E_16 = "devices: {platform: tpu, type: v5e-16, slices: 2}"


@pytest.mark.parametrize(
    ("hosts", "more"),
    [
        ("count: 64, spares: 2, address: auto", ""),
        ("count: 64, address: 'head-0.svc:6379'", ""),
        ("count: 64, address: '[fd00::2]:6379'", ""),
        ("count: 64", V5E_256),
        ("count: 8", TWO_V5E_16),
        ("count: 2", "devices: {platform: tpu, type: v5e-8, slices: 2}"),
        ("count: 4", "devices: {platform: gpu, count: 32}"),
        ("count: 4", "devices: {platform: gpu, count: 32}\nworkers: 8"),
        ("count: 4", "workers: 4"),
    ],
)
def test_hosts_that_fit(hosts: str, more: str) -> None:
    assert problems(config(hosts, more)) == []


def test_what_is_left_out_has_a_default() -> None:
    hosts = load(config("count: 64")).phases[0].init.hosts
    assert hosts is not None
    assert (hosts.spares, hosts.address, hosts.lost_after) == (0, "auto", 10.0)
    assert load(with_init("seed: null")).phases[0].init.hosts is None


@pytest.mark.parametrize(
    ("hosts", "more", "message"),
    [
        (
            "count: 3",
            TWO_V5E_16,
            "hosts.count: is 3, which is no multiple of the hosts of a slice: a v5e-16 has 4 "
            "hosts; use 8",
        ),
        (
            "count: 12",
            TWO_V5E_16,
            "trainer.init.hosts.count: is 12, but a v5e-16 has 4 hosts, and init.devices has "
            "2 x v5e-16; use 8",
        ),
        (
            "count: 2",
            "devices: {platform: tpu, type: v5e-8}",
            "trainer.init.hosts.count: is 2, but a v5e-8 has 1 host, and init.devices has 1 x "
            "v5e-8; use 1",
        ),
        (
            "count: 3",
            "devices: {platform: gpu, count: 8}",
            "trainer.init.hosts.count: is 3, which cannot share 8 devices (init.devices.count) "
            "equally",
        ),
        (
            "count: 4",
            "devices: {platform: gpu, count: 12}\nworkers: 6",
            "trainer.init.workers: is 6, which 4 hosts (init.hosts.count) cannot share equally; "
            "remove it, and each host has one worker",
        ),
        (
            "count: 2",
            "devices: {platform: cpu, count: 4}\nworkers: 3",
            "trainer.init.workers: is 3, which 2 hosts (init.hosts.count) cannot share equally; "
            "remove it, and each host has one worker",
        ),
        (
            "count: 2, address: 'ray://10.0.0.2:10001'",
            "",
            "trainer.init.hosts.address: is no HOST:PORT, such as 10.0.0.2:6379 (value "
            '"ray://10.0.0.2:10001"); auto is the cluster that this machine is in',
        ),
        (
            "count: 2, address: '10.0.0.2:99999'",
            "",
            "trainer.init.hosts.address: has the port 99999 (value "
            '"10.0.0.2:99999"), and a port is 1 to 65535: give the one at which the head listens '
            "(ray start --head --port), usually 6379",
        ),
        (
            "count: 2, lost_after: 500ms",
            "",
            "trainer.init.hosts.lost_after: is less than 1 s: a host that is only busy would count "
            'as lost (value "500ms")',
        ),
    ],
)
def test_hosts_that_do_not_fit(hosts: str, more: str, message: str) -> None:
    (told,) = problems(config(hosts, more))
    assert told.endswith(message)


def test_a_bucket_is_no_folder_that_several_hosts_share() -> None:
    one = config("count: 2", "")
    model_dir = re.search(r"model_dir: (\S+)\n", one)
    assert model_dir is not None
    (told,) = problems(one.replace(model_dir[1], "gs://ours/run"))
    assert 'trainer.init.model_dir: is in a bucket (value "gs://ours/run"), and several' in told


def test_all_phases_have_the_same_hosts() -> None:
    one = PHASES.replace("{max_num_restarts: 2}}", "{max_num_restarts: 2}, HOSTS}")
    (told,) = problems(one.replace("HOSTS", "hosts: {engine: ray, count: 2}"))
    assert told.endswith("hosts: differs from the first phase: all phases run on the same hosts")
