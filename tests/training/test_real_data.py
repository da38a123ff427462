"""Chats and prompts through a real tokenizer: packed whole, learned where an answer is, stored
once, and read from any position."""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from supervisor.config.training.check import check
from supervisor.config.training.data_files import DataError
from supervisor.config.training.pretrained import PretrainedError
from supervisor.config.training.resolved import parse
from supervisor.config.training.sections import DataloaderConfig
from supervisor.protocol.reading import UnreadableError
from trainer.data import read_examples, shuffled_batches, tokenizer_of
from trainer.objective import Completion, documents_of, token_ids, unlearned
from trainer.packing import rows_of
from trainer.pretrained_tokenizer import PretrainedTokenizer
from trainer.rollouts import texts
from trainer.step import jit_evaluation_loss
from trainer.token_files import read_prompts
from trainer.token_store import DamagedTokensError, stored
from trainer.tokenizer import BYTES, Tokenizer, encode

from .harness import spec, tiny

pytest.importorskip("tokenizers")

GIVEN = Path(__file__).parent / "pretrained"
CHAT = [
    {"role": "system", "content": "Add the numbers."},
    {"role": "user", "content": "What is 2+3?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "And 4+4?"},
    {"role": "assistant", "content": "That is 8."},
]


def jsonl(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def loader(path: Path, **keys: Any) -> DataloaderConfig:
    return DataloaderConfig.model_validate({"paths": str(path), "sequence_length": 128, **keys})


def tokenizer(name: str) -> Tokenizer:
    mapping = tiny("/tmp/checkpoints")
    mapping["trainer"]["init"]["model"] = {"pretrained": str(GIVEN / name)}
    return tokenizer_of(parse(mapping).init)


def chats(folder: Path, name: str, *chats: Any, **keys: Any) -> Any:
    path = jsonl(folder / "chats.jsonl", *({"messages": chat} for chat in chats))
    return read_examples(loader(path, messages_field="messages", **keys), 384, tokenizer(name))


def test_a_chat_has_the_tokens_of_the_reference(tmp_path: Path) -> None:
    golden = np.load(GIVEN / "llama" / "golden.npz")
    row = chats(tmp_path, "llama", CHAT)[0]
    assert np.array_equal(token_ids(row)[: len(golden["chat"])], golden["chat"])
    assert not (row[len(golden["chat"]) :] >= 0).any(), "what is filled in is not learned"
    learned = tokenizer("llama").text(row[row >= 0])
    assert learned == "5<|im_end|>\nThat is 8.<|im_end|>\n"


def test_where_the_template_changes_earlier_answers_each_is_an_example(tmp_path: Path) -> None:
    golden = np.load(GIVEN / "qwen3" / "golden.npz")
    first, second = chats(tmp_path, "qwen3", CHAT, sequence_length=len(golden["chat"]) - 1)
    assert np.array_equal(token_ids(second), golden["chat"])
    assert np.array_equal(np.flatnonzero(second < 0), np.arange(len(golden["prompt"])))
    assert tokenizer("qwen3").text(first[first >= 0]) == "<think>\n\n</think>\n\n5<|im_end|>\n"


@pytest.mark.parametrize(
    ("chat", "told"),
    [
        ("hello", "no messages in the field 'messages'; set messages_field"),
        ([], "no messages in the field 'messages'"),
        ([{"role": "user"}], "message 1 in the field 'messages' has no text in 'content'"),
        ([{"role": "user", "content": ["a"]}], "message 1 in the field 'messages' has no text"),
        (CHAT[:2], "no message in the field 'messages' has the role 'assistant'"),
        (CHAT * 9, "2 examples are too long, this one the most: raise sequence_length"),
    ],
)
def test_a_chat_that_teaches_nothing_is_named(tmp_path: Path, chat: Any, told: str) -> None:
    with pytest.raises(DataError) as error:
        chats(tmp_path, "llama", CHAT, CHAT * 8, chat)
    assert told in str(error.value)
    assert "chats.jsonl:3: " in str(error.value)


def test_a_chat_is_a_prompt_up_to_its_last_question(tmp_path: Path) -> None:
    """Its last answer is known to the reward function, and not to the model."""
    model = tokenizer("llama")
    path = jsonl(tmp_path / "chats.jsonl", {"messages": CHAT}, {"messages": CHAT[:-1]})
    found = read_prompts(loader(path, messages_field="messages"), 20, model)
    (number, length, *ids), other = found.rows
    assert (number, other[0]) == (0, 1)
    assert np.array_equal(found.rows[0, 1:], found.rows[1, 1:])
    text = model.text(ids[:length])
    assert text.endswith("And 4+4?<|im_end|>\n<|im_start|>assistant\n")
    assert found.records[0] == {"messages": CHAT}
    prompt = np.array([[0, length, *ids]], np.int32)
    said = encoded(model, "8<|im_end|>")
    row = np.concatenate([unlearned(np.array(ids[:length])), said])
    sampled = np.concatenate([row, np.zeros(len(row) - 1, np.int32)])[None]
    assert texts(sampled, prompt, model, found.num_before) == ([text], ["8"])
    with pytest.raises(DataError, match=r"chats.jsonl:\d: its prompt is \d+ tokens, more than the"):
        read_prompts(loader(path, messages_field="messages", sequence_length=24), 20, model)


def encoded(model: Tokenizer, text: str) -> Any:
    (ids,) = model.encode_all([text])
    return ids


LOOP = "{% for _ in range(99999) %}"
DOUBLED = "{%% set n = namespace(x='abc') %%}{%% for _ in range(40) %%}{%% set n.x = n.%s %%}"
MUCH = "refuses this chat: it makes a text or list of more than 1,048,576 characters or items"
LONG = (
    "'a' * 999999999999",
    "'a'.ljust(999999999999)",
    "'a' | center(999999999999)",
    "'a\nb' | indent(999999999999)",
    "'%999999999d' % 1",
    "'%*d' % (999999999, 1)",
    "'%999999999d' | format(1)",
    "'{:999999999}'.format(1)",
    "'{:{}}'.format('a', 999999999)",
    "('a' * 9999).replace('a', 'a' * 9999)",
    "('a' * 9999).join(['a'] * 999)",
    "(['a'] * 999) | join('a' * 9999)",
)


def test_a_template_that_repeats_is_rendered_as_by_jinja_alone() -> None:
    pytest.importorskip("jinja2")
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from trainer.chat_template import compiled_template

    alone = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    for text in (
        "{% for a in [1, 2] if a %}{{ loop.index }}{{ loop.last }}{% else %}none{% endfor %}",
        "{% for a in [[1, [[2, []]]]] recursive %}{{ a[0] }}{{ loop(a[1]) }}{% endfor %}",
        "{% macro a(b=1) %}{{ b }}{{ caller() }}{% endmacro %}{% call a(2) %}q{% endcall %}",
        "{% set a %}{{ 1 ~ 'b' ~ none }}{% endset %}{{ a + 'c' }}{{ '%5.1f|%-4s' % (1, a) }}",
        "{{ [3, 1] | sort | join('-') }}{{ 'a'.ljust(3) }}{{ '{:>4}'.format(7) }}{{ 2 in [2] }}",
        "{% for a in 'abc' %}{{ loop.length }}{{ loop.revindex }}{{ loop.nextitem }}{% endfor %}",
        "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{% for a in b %}{% endfor %}",
        "{% autoescape true %}{% set c = '<' %}{{ c ~ c | safe }}{{ range(3) | list | tojson }}"
        "{% endautoescape %}",
        "{% block a %}{{ 2 ** 16 }}{{ 'ab' * 3 }}{{ 1.5 * 2 }}{{ [1] * 2 }}{% endblock %}",
    ):
        assert compiled_template(text)() == alone.from_string(text).render()


def test_a_template_may_refuse_a_chat_and_runs_in_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.setattr("trainer.chat_template.MOST_TURNS", 20_000)
    monkeypatch.setattr("trainer.chat_template.MOST_CHARACTERS", 1 << 20)
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (folder / name).write_bytes((GIVEN / "llama" / name).read_bytes())
    template, path = folder / "chat_template.jinja", jsonl(tmp_path / "c.jsonl", {"chat": CHAT})
    config = loader(path, messages_field="chat")
    for text, told in (
        ("{{ raise_exception('no system, please') }}", "c.jsonl:1: .*: no system, please"),
        ("{{ messages.append(1) }}", "c.jsonl:1: the chat template of .* refuses this chat"),
        ("{{ ''.__class__.__mro__ }}", "c.jsonl:1: the chat template of .* refuses this chat"),
        ("{{ 1 // 0 }}", "c.jsonl:1: the chat template of .* refuses this chat: .* by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refuses this chat: .* recursion"),
        (
            f"{LOOP}{LOOP}{{% endfor %}}{{% endfor %}}",
            "chat: it has not come to an end after 20,000",
        ),
        (
            "{% macro f(n) %}{% if n %}{{ f(n-1)+f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
            "an end",
        ),
        (f"{LOOP}{{% for _ in range(99999) if false %}}{{% endfor %}}{{% endfor %}}", "an end"),
        (f"{LOOP}{{% set x = range(9999) | sum %}}{{% endfor %}}", "an end"),
        (f"{LOOP}{{% set x = 'a' in range(9999) %}}{{% endfor %}}", "an end"),
        (
            "{% for a in [1, 2] if a recursive %}{{ loop(range(99999)) }}{% endfor %}",
            "come to an end",
        ),
        ("{{ 9 ** (9 ** 9) }}", "refuses this chat: it makes a number of more than 65,536 bits"),
        (f"{LOOP}{{{{ 'a' * 99999 }}}}{{% endfor %}}", MUCH),
        *((f"{{{{ {made} }}}}", MUCH) for made in LONG),
        *((f"{DOUBLED % made}{{% endfor %}}", MUCH) for made in ("x ~ n.x", "x + n.x")),
        (
            "{% set n = namespace(x='abc') %}{% for _ in range(40) %}{% set n.x %}"
            "{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
            MUCH,
        ),
        ("{%- if %}", "its chat template is broken"),
        ("{% if 1 %}" * 3000, "its chat template is broken"),
        ("{{ messages | length }}", "does not begin the answer in message 3 as it asks for one"),
    ):
        template.write_text(text)
        with pytest.raises((DataError, PretrainedError), match=told):
            read_examples(config, 384, PretrainedTokenizer(folder, 384))
    template.unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    for several in (None, ["default"], [{"name": ["default"], "template": "a"}]):
        text = json.dumps({**settings, "chat_template": several})
        (folder / "tokenizer_config.json").write_text(text)
        with pytest.raises(PretrainedError, match="has no chat template"):
            read_examples(config, 384, PretrainedTokenizer(folder, 384))


def test_prompts_and_completions_are_packed_whole(tmp_path: Path) -> None:
    records = [{"ask": "a" * n, "say": "b" * n} for n in (3, 5, 1)]
    fields = {"prompt_field": "ask", "completion_field": "say", "packing": "examples"}
    config = loader(jsonl(tmp_path / "a.jsonl", *records), sequence_length=19, **fields)
    examples = read_examples(config, 257, BYTES)
    row, other = examples[0], examples[1]
    assert "".join(map(chr, token_ids(row)[1:8])).rstrip(chr(256)) == "aaabbb"
    assert list(documents_of(jnp.asarray(row))) == [1] * 8 + [2] * 12
    assert list(documents_of(jnp.asarray(other))) == [1] * 4 + [2] * 16, "the second is padding"
    for one in (row, other):
        assert set(encode("b")) < set(one[one >= 0]) <= {ord("b"), 256}


def test_rows_hold_whole_examples_however_long() -> None:
    dice = np.random.default_rng(0)
    examples = [np.full(dice.integers(2, 33), number, np.int32) for number in range(200)]
    places = [f"data.jsonl:{number}" for number in range(200)]
    found = list(rows_of(zip(examples, places, strict=True), 32, -1))
    rows = [row for row, _ in found]
    assert {len(row) for row in rows} == {32}
    held = np.stack(rows)
    for number, example in enumerate(examples):
        (where,) = np.nonzero((token_ids(held) == number).sum(axis=1) == len(example))
        assert number == 0 or len(where) == 1
        assert number == 0 or places[number] in found[where[0]][1]
    assert sorted(place for _, told in found for place in told) == sorted(places)
    fill = sum(map(len, examples)) / held.size
    assert fill > 0.9, "most of a batch is no padding"


def test_the_loss_of_a_row_is_that_of_its_examples_alone(tmp_path: Path) -> None:
    """Packing changes nothing but where the examples stand."""
    mapping = tiny("/tmp/checkpoints")
    mapping["trainer"]["init"]["model"] = {"pretrained": str(GIVEN / "llama")}
    plan = spec(parse(mapping).init, objective=Completion(is_packed=True))
    state, measure = plan.fresh(), jit_evaluation_loss(plan)
    short = [CHAT, CHAT[:3], [*CHAT[:1], *CHAT[3:]]]
    packed = chats(tmp_path, "llama", *short)
    assert len(packed) == 1
    total = learned = 0.0
    for chat in short:
        (alone,) = chats(tmp_path, "llama", chat)
        targets = (alone[1:] >= 0).sum()
        total += float(measure(state, alone[None, None])) * targets
        learned += targets
    np.testing.assert_allclose(measure(state, packed[0][None, None]), total / learned, rtol=1e-4)


class Counted:
    """A million examples, which count how often they are read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> np.ndarray:
        self.reads += 1
        return np.full(3, index, np.int32)


def test_the_position_after_100_000_steps_is_reached_at_once() -> None:
    """With as many reads as the first batches take: those that are read ahead, too."""
    begin, later = Counted(), Counted()
    first = shuffled_batches(begin, 8, 1)
    next(first)
    position = {**first.get_state(), "next_index": 100_000}
    resumed = shuffled_batches(later, 8, 1)
    resumed.set_state(position)
    batch, after = next(resumed), next(resumed)
    assert resumed.get_state()["next_index"] == 100_002
    assert later.reads <= 8 * 16
    other = shuffled_batches(Counted(), 8, 1)
    other.set_state({**position, "next_index": 100_001})
    assert np.array_equal(next(other), after)
    assert not np.array_equal(batch, after)


STORE = """
import sys
from supervisor.protocol.reading import UnreadableError
from trainer.data import read_examples
from supervisor.config.training.sections import DataloaderConfig
config = DataloaderConfig.model_validate({"paths": sys.argv[1], "text_field": "text"})
examples = read_examples(config)
print(len(examples), examples[0].sum(), examples[len(examples) - 1].sum())
status = open("/proc/self/status").read()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def test_tokens_are_stored_once_and_a_killed_write_leaves_none(tmp_path: Path) -> None:
    path, store = tmp_path / "a.jsonl", tmp_path / "tokens"
    line = json.dumps({"text": "x" * 1000}) + "\n"
    path.write_text(line * 60_000)
    env = {**os.environ, "SUPERVISE_TOKENS": str(store), "JAX_PLATFORMS": "cpu"}
    argv = [sys.executable, "-c", STORE, str(path)]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as killed:
        while not list(store.glob(".*.tmp")):
            assert killed.poll() is None
        killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    assert not list(store.glob("*.tokens"))
    both = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate()[0].split() for one in both]
    assert said[0][:-1] == said[1][:-1]
    assert int(said[0][0]) == (60_000 * 1001 - 1) // 128
    (tokens,) = store.glob("*.tokens")
    stamp = tokens.stat()
    blocks = -(-60_000 * 1001 // 2**14)
    assert stamp.st_size == 60_000 * 1001 * 4 + blocks * 4 + 24
    assert subprocess.run(argv, env=env, check=True, capture_output=True).stdout
    assert tokens.stat() == stamp
    path.write_text(line)
    small = subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout
    (others,) = store.glob("*.tokens")
    assert others != tokens, "other data have other tokens, and the older ones are in nobody's way"
    more = max(int(one[-1]) for one in said) - int(small.split()[-1])
    assert more * 1024 < stamp.st_size / 4, "they are not in memory"


MAPPED = """
import sys
from trainer.token_store import DamagedTokensError, stored
import numpy as np
tokens = stored(iter([np.arange(100_000, dtype=np.int32)]), "digest")
print(len(tokens), tokens.between(0, 100_000).sum(), flush=True)
sys.stdin.readline()
print(tokens.between(0, 100_000).sum())
"""


@pytest.mark.parametrize("size", [0, 8, 200_000, 200_001, 400_051])
def test_a_cut_store_is_written_again(tmp_path: Path, size: int) -> None:
    """Also below a process that has it mapped, which cannot survive that."""
    env = {**os.environ, "SUPERVISE_TOKENS": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    argv = [sys.executable, "-c", MAPPED]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, env=env, **pipes) as first:
        assert first.stdout is not None
        expected = first.stdout.readline()
        os.truncate(tmp_path / "digest.tokens", size)
        first.communicate("\n")
        assert first.returncode == (0 if size > 399_999 else -signal.SIGBUS)
    again = subprocess.run(argv, env=env, input="\n", capture_output=True, text=True, check=False)
    assert again.stdout.startswith(expected), again.stderr


@pytest.mark.parametrize("seed", range(3))
def test_no_flipped_bit_of_a_store_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """It is found where it is read, before that is used; the next attempt makes the file again."""
    monkeypatch.setenv("SUPERVISE_TOKENS", str(tmp_path))
    dice, data, name = random.Random(seed), np.arange(100_000, dtype=np.int32), f"{1:032}-{2:032}"
    pieces = [*np.split(data, sorted(dice.sample(range(100_000), 40)))]
    for _ in range(70):
        assert np.array_equal(stored(iter(pieces), name).between(0, 100_000), data)
        path = tmp_path / f"{name}.tokens"
        flipped = bytearray(path.read_bytes())
        where = dice.randrange(len(flipped) * 8)
        flipped[where // 8] ^= 1 << where % 8
        path.write_bytes(flipped)
        found = stored(iter(pieces), name)
        token = min(where // 32, 99_999)
        if where < 100_000 * 32:
            with pytest.raises(DamagedTokensError, match="nothing was trained on it") as error:
                found.between(token, token + 1)
            assert str(path) in str(error.value)
            assert not path.exists()
            other = (token + 50_000) % 100_000
            assert found.between(other, other + 1) == data[other : other + 1]
        else:
            assert np.array_equal(found.between(token, token + 1), data[token : token + 1])


def test_tokens_of_data_that_were_changed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERVISE_TOKENS", str(tmp_path / "tokens"))
    path = tmp_path / "a.jsonl"
    for number in range(3):
        path.write_text('{"text": "abcdefgh"}\n' * (number + 9))
        first = read_examples(loader(path, sequence_length=8), 257)
        before = first[0].copy()
        read_examples(loader(path, sequence_length=16), 257)
        (tmp_path / "tokens" / "notes.txt").write_text("mine")
        kept = sorted((tmp_path / "tokens").glob("*.tokens"))
        assert len(kept) == 2, "of each config one"
        assert np.array_equal(first[0], before)
    assert (tmp_path / "tokens" / "notes.txt").exists()


def test_tokens_that_find_no_room_leave_nothing(tmp_path: Path) -> None:
    def little_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    env = {**os.environ, "SUPERVISE_TOKENS": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    argv = [sys.executable, "-B", "-c", MAPPED]
    pipes: Any = {"capture_output": True, "text": True, "check": False}
    failed = subprocess.run(argv, env=env, preexec_fn=little_room, **pipes)
    assert "File too large" in failed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["digest.lock"]


@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_a_lock_that_is_no_file_is_neither_waited_for_nor_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    store, foreign = tmp_path / "tokens", tmp_path / "foreign"
    store.mkdir()
    lock = store / "digest.lock"
    lock.symlink_to(foreign) if kind == "link" else os.mkfifo(lock)
    monkeypatch.setenv("SUPERVISE_TOKENS", str(store))
    with pytest.raises(UnreadableError, match=r"digest\.lock is "):
        stored(iter([np.zeros(3, np.int32)]), "digest")
    assert not foreign.exists()


def problems(**keys: Any) -> list[str]:
    mapping = tiny("/tmp/checkpoints")
    mapping["trainer"]["init"] |= keys.pop("init", {})
    mapping["trainer"]["fit"] = {"train_dataloader": {"paths": "stdlib/json/*.py", **keys}}
    return [
        f"{'.'.join(map(str, where))}: {told}"
        for where, told in check(mapping["trainer"], [1]).problems
    ]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"messages_field": "m"}, "init.tokenizer: is required for messages_field"),
        ({"packing": "examples"}, "packing: is examples, which needs completion_field or messages"),
        (
            {
                "messages_field": "m",
                "packing": "stream",
                "init": {"tokenizer": str(GIVEN / "llama")},
            },
            "packing: is stream, but chats are packed whole",
        ),
        (
            {
                "messages_field": "m",
                "tokens_field": "t",
                "init": {"tokenizer": str(GIVEN / "llama")},
            },
            "tokens_field: is given beside messages_field",
        ),
        ({"init": {"tokenizer": "/nowhere"}}, "init.tokenizer: has no tokenizer.json"),
    ],
)
def test_what_does_not_go_together_is_refused(keys: dict[str, Any], told: str) -> None:
    assert any(told in one for one in problems(**keys))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused() -> None:
    mapping = tiny("/tmp/checkpoints")
    mapping["trainer"]["init"]["tokenizer"] = str(GIVEN / "llama")
    with pytest.raises(PretrainedError, match=r"has 298 tokens, but .*vocab_size is 264"):
        tokenizer_of(parse(mapping).init)


@pytest.mark.parametrize("end", [-5, 384, 10**12])
def test_no_token_lies_beyond_the_embedding(tmp_path: Path, end: int) -> None:
    """A gap between the ids, or an end that only config.json names: such an id would train on the
    row of another token."""
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        found = json.loads((GIVEN / "llama" / name).read_text())
        if name == "tokenizer_config.json":
            found["eos_token"] = None
        elif name == "config.json":
            found["eos_token_id"] = end
        (tmp_path / name).write_text(json.dumps(found))
    with pytest.raises(PretrainedError, match=rf"config.json: eos_token_id .* 384, .*value {end}"):
        PretrainedTokenizer(tmp_path, 384)
    found = json.loads((tmp_path / "tokenizer.json").read_text())
    found["model"]["vocab"]["b"] = 1000
    (tmp_path / "tokenizer.json").write_text(json.dumps(found))
    with pytest.raises(PretrainedError, match=r"has 1001 tokens, but .*vocab_size is 384"):
        PretrainedTokenizer(tmp_path, 384)
