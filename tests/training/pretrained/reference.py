"""What `transformers` computes: `make` writes folders beside this file, `check FOLDER` compares.

It runs in the environment of `make test-layouts` (tests/checkpoints/requirements-layouts.txt) and
imports nothing of this project:

    .layouts/bin/python tests/training/pretrained/reference.py make

Each folder has a tiny random model as `save_pretrained` writes it, a tokenizer, and `golden.npz`:
`tokens` [2, length], `logits` [2, length, vocabulary], and `chat` and `prompt`: the tokens of
`CHAT` and of its part before the last answer, as the chat template of the folder renders them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

HERE = Path(__file__).parent
LENGTH = 48
CHAT = [
    {"role": "system", "content": "Add the numbers."},
    {"role": "user", "content": "What is 2+3?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "And 4+4?"},
    {"role": "assistant", "content": "That is 8."},
]
CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
THINKING = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.role == 'assistant' and loop.last %}"
    "{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{{- message.content + '<|im_end|>' + '\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""Like that of Qwen3, it changes what it has written of earlier turns."""
SPECIAL = ["<|begin|>", "<|im_start|>", "<|im_end|>"]
SHAPE: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def make() -> None:
    """Write all folders."""
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    tied = LlamaConfig(**SHAPE, tie_word_embeddings=True, rope_parameters=llama3, rms_norm_eps=1e-5)
    _make("llama", LlamaForCausalLM(tied), CHATML, "20KB")
    plain = {"rope_type": "default", "rope_theta": 1000.0}
    untied = Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=False, rope_parameters=plain)
    _make("qwen3", Qwen3ForCausalLM(untied), THINKING, "1GB")


def _make(name: str, model: Any, template: str, shard: str) -> None:
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=random) * 0.3
            weight.copy_((1 + drawn if "norm" in path else drawn).to(torch.bfloat16))
    model = model.to(torch.bfloat16)
    folder = HERE / name
    model.save_pretrained(folder, max_shard_size=shard)
    tokenizer = _tokenizer(template)
    tokenizer.save_pretrained(folder)
    tokens = torch.randint(0, SHAPE["vocab_size"], (2, LENGTH), generator=random)
    np.savez_compressed(
        folder / "golden.npz",
        tokens=tokens.numpy().astype(np.int32),
        logits=_logits(folder, tokens),
        chat=_rendered(tokenizer, CHAT, is_prompt=False),
        prompt=_rendered(tokenizer, CHAT[:-1], is_prompt=True),
    )


def _rendered(tokenizer: Any, chat: list[dict[str, str]], *, is_prompt: bool) -> Any:
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=is_prompt)
    return np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)


def _tokenizer(template: str) -> Any:
    """A byte-level BPE that has learned a few words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"] - 64,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    words = [message["content"] for message in CHAT] + ["system user assistant"] * 2
    tokenizer.train_from_iterator(words * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|begin|>",
        eos_token="<|im_end|>",
        chat_template=template,
    )


def _logits(folder: Path, tokens: Any) -> Any:
    """The logits of the model in `folder`, computed in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.as_tensor(tokens).long()).logits.numpy()


def check(folder: Path) -> None:
    """Print how far the logits of the model in `folder` are from those in its `golden.npz`. A
    tokenizer that is there must be one for `transformers`, too."""
    golden = np.load(folder / "golden.npz")
    apart = float(np.abs(_logits(folder, golden["tokens"]) - golden["logits"]).max())
    if (folder / "tokenizer.json").exists():
        AutoTokenizer.from_pretrained(folder)
    print(json.dumps({"apart": apart, "scale": float(np.abs(golden["logits"]).max())}))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make()
    else:
        check(Path(sys.argv[2]))
