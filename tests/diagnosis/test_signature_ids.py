"""What an attempt, a machine or a file is called by a program that draws letters makes no failure a
new one: whatever the format of the id, the words around it are all that counts."""

from __future__ import annotations

import base64
import random
import string
import uuid
from collections import Counter
from collections.abc import Callable

import pytest

from supervisor.diagnosis.random_words import is_random
from supervisor.diagnosis.signature import normalised

Draw = Callable[[random.Random], str]

SAFE = "bcdfghjklmnpqrstvwxz2456789"
"""rand.SafeEncodeString of k8s.io/apimachinery."""
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ALNUM = string.ascii_lowercase + string.digits


def some(letters: str, count: int, before: str = "", after: str = "") -> Draw:
    return lambda rng: before + "".join(rng.choice(letters) for _ in range(count)) + after


def number(low: int, high: int, before: str = "", after: str = "") -> Draw:
    return lambda rng: f"{before}{rng.randrange(low, high)}{after}"


def joined(mark: str, *draws: Draw) -> Draw:
    return lambda rng: mark.join(draw(rng) for draw in draws)


HEX = "0123456789abcdef"
OCTET = number(1, 255)
IDS: dict[str, Draw] = {
    "pod of a deployment": joined("-", some("train", 0, "train"), some(SAFE, 9), some(SAFE, 5)),
    "pod of a job": joined("-", number(0, 9, "train-workers-0-"), some(SAFE, 5)),
    "pod": some(SAFE, 5, "trainer-"),
    "docker id": some(HEX, 12),
    "docker digest": some(HEX, 64, "sha256:"),
    "uuid": lambda rng: str(uuid.UUID(int=rng.getrandbits(128))),
    "ulid": some(CROCKFORD, 24, "01"),
    "wandb run": some(ALNUM, 8),
    "tempfile": some(ALNUM + "_", 8, "tmp"),
    "mktemp": some(string.ascii_letters + string.digits, 10, "tmp."),
    "temporary folder": some(ALNUM + "_", 8, "/tmp/tmp", "/part"),
    "shared memory": some(HEX, 8, "psm_"),
    "short commit": some(HEX, 7),
    "commit": some(HEX, 40),
    "address": some(HEX, 12, "0x"),
    "object": some(HEX, 12, "<lib.Loader object at 0x", ">"),
    "pid": number(2, 4_000_000),
    "named pid": number(2, 4_000_000, "pid="),
    "ip": joined(".", OCTET, OCTET, OCTET, OCTET),
    "ip and port": joined(":", joined(".", OCTET, OCTET, OCTET, OCTET), number(1024, 65_000)),
    "host and port": joined(":", number(0, 99, "worker-"), number(1024, 65_000)),
    "host of ec2": joined("-", number(1, 255, "ip-10-0-"), OCTET),
    "host of a slice": joined("-w-", some(HEX, 8, "t1v-n-"), number(0, 8)),
    "instance": some(HEX, 17, "i-"),
    "time": lambda rng: f"2026-{rng.randrange(1, 13):02d}-0{rng.randrange(1, 9)}T10:22:13.5Z",
    "job of slurm": number(10**5, 10**8),
    "task of slurm": joined("_", number(10**5, 10**8), number(0, 40)),
    "ordinal": lambda rng: rng.choice(["1st", "2nd", "3rd", "4th", "11th", "22nd"]),
    "actor": some(HEX, 32),
    "request of s3": some(string.ascii_uppercase + string.digits, 16),
    "base64": lambda rng: base64.b64encode(rng.randbytes(24)).decode(),
    "base64 of a url": lambda rng: base64.urlsafe_b64encode(rng.randbytes(24)).decode(),
    "base32": lambda rng: base64.b32encode(rng.randbytes(10)).decode(),
    "nano id": some(string.ascii_letters + string.digits + "_-", 21),
    "generation": number(10**15, 10**16),
    "thread": number(1, 64, "Thread-"),
    "size": number(2, 900, "", ".25GiB"),
    "duration": lambda rng: rng.choice(["1.5s", "250 ms", "4 min", "3m12s", "17 seconds"]),
}
MESSAGES = (
    "RuntimeError: worker {} is broken and cannot go on",
    "cannot use '{}' for the job here",
    "no {}: the state is bad now",
    "bad state ({}) of the loader",
    "request failed for id={} in the pool",
    "[{}] the loader is in a bad state",
)
ENOUGH = 0.98
"""Of some formats one id in a hundred reads like a word: such a failure is known one attempt
later."""


@pytest.mark.parametrize("name", IDS)
def test_another_id_is_no_other_failure(name: str) -> None:
    rng = random.Random(name)
    for message in MESSAGES:
        found = Counter(normalised(message.format(IDS[name](rng))) for _ in range(300))
        assert found.most_common(1)[0][1] >= ENOUGH * 300, found.most_common(3)


@pytest.mark.parametrize("name", ["jovial_euler", "quirky-wozniak", "zen_hopper"])
@pytest.mark.parametrize("where", ["container {} exited", "pod '{}' is gone", "the node {}: no"])
def test_a_generated_name_is_known_by_the_word_before_it(name: str, where: str) -> None:
    assert normalised(where.format(name)) == normalised(where.format("boring_curie"))


WORDS = (
    "layer norm scale bias kernel embedding attention softmax gradient checkpoint optimizer params "
    "batch_size learning_rate num_heads tokenizer shard sharding dtype bfloat16 float32 XLA_FLAGS "
    "CUDA_VISIBLE_DEVICES HF_TOKEN jax.numpy.linalg flax.linen.Dense ConcretizationTypeError "
    "maxtext llama-3 mixtral gemma2 resnet50 mnist cifar10 imagenet wikitext train_step eval_loop"
)


@pytest.mark.parametrize("word", WORDS.split())
def test_what_people_write_is_no_id(word: str) -> None:
    assert not is_random(word)


def test_other_words_are_another_failure() -> None:
    said = [f"no {word} in the state of the {other}" for word in WORDS.split()[:12]
            for other in ("model", "optimizer", "loader")]  # fmt: skip
    assert len({normalised(each) for each in said}) == len(said)
