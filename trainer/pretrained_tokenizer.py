"""The tokenizer and the chat template of a folder of Hugging Face (`tokenizer.json`,
`tokenizer_config.json`, `chat_template.jinja`).

The template is a program of somebody else's: it runs in Jinja's sandbox, as `transformers` runs it.
It is not told the date, so that the same data give the same tokens on every day.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.config.training.data_files import DataError
from supervisor.config.training.pretrained import (
    CONFIG,
    LARGEST,
    PretrainedError,
    read_folder_object,
    read_linked,
)
from supervisor.config.training.sections import TOKENIZER
from supervisor.protocol.reading import UnreadableError, decode_text
from trainer.tokenizer import Ids

_SETTINGS = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_LARGEST = 256 << 20
"""Bytes of a tokenizer.json: the largest are of some 40 MB."""


class PretrainedTokenizer:
    """A `trainer.tokenizer.Tokenizer` that also renders chats."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """Load the tokenizer in `folder`, for a model with `vocab_size` rows of the embedding.

        Raises:
            PretrainedError: it is missing or damaged, has too many tokens, or no end of a text.
            OSError: a file cannot be read now.
        """
        from tokenizers import Tokenizer  # of the extra `models`, which few jobs need

        self._folder = folder
        path = folder / TOKENIZER
        try:
            data = read_linked(path, _LARGEST)
            self._tokenizer: Any = Tokenizer.from_buffer(data)
        except FileNotFoundError:
            raise PretrainedError(f"{path}: there is no such file: set init.tokenizer") from None
        except UnreadableError as error:
            raise PretrainedError(f"{error}: download it again") from None
        except Exception as error:  # the library raises no other type
            raise PretrainedError(f"{path}: {error}: download it again") from None
        # Ids may have gaps, so that there are fewer tokens than the last one says.
        self.size: int = max(self._tokenizer.get_vocab().values(), default=-1) + 1
        if self.size > vocab_size:
            raise PretrainedError(
                f"{path}: has {self.size} tokens, but init.model.vocab_size is {vocab_size}: use "
                "the tokenizer that the model was made with, or raise vocab_size"
            )
        self._settings = read_folder_object(folder / _SETTINGS)
        self.begin = self._begin()
        self.end = self._end(vocab_size)
        self._template_text = self._find_template()
        self._template: Any = None
        facts = [self.begin, self.end, self._template_text, self._special_tokens()]
        self.identity = hashlib.sha256(data + json.dumps(facts).encode()).hexdigest()

    def encode_all(self, texts: Sequence[bytes | str]) -> list[Ids]:
        """See `Tokenizer`. What is no UTF-8, such as a lone surrogate, is replaced."""
        encoded = (
            text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
            for text in texts
        )
        given = [each.decode("utf-8", "replace") for each in encoded]
        found = self._tokenizer.encode_batch(given, add_special_tokens=False)
        return [np.array(one.ids, np.int32) for one in found]

    def text(self, ids: Iterable[int]) -> str:
        """See `Tokenizer`. Special tokens are shown."""
        shown: str = self._tokenizer.decode([int(one) for one in ids], skip_special_tokens=False)
        return shown

    def render(self, messages: Sequence[Mapping[str, Any]], where: str, *, asks: bool) -> str:
        """Return `messages` as the chat template writes them; with `asks` also what it puts before
        an answer.

        Raises:
            PretrainedError: there is no chat template, or it is broken.
            DataError: it refuses these messages.
        """
        if self._template is None:
            self._template = self._compiled()
        try:
            rendered: str = self._template(
                messages=messages, add_generation_prompt=asks, **self._special_tokens()
            )
        except MemoryError:  # there may be more another time
            raise
        except Exception as error:  # whatever a program of somebody else's raises
            raise DataError(
                f"{where}: the chat template of {self._folder} refuses this chat: {error}"
            ) from None
        return rendered

    def _compiled(self) -> Any:
        from trainer.chat_template import compiled_template

        if self._template_text is None:
            raise PretrainedError(
                f"{self._folder}: has no chat template, neither {_TEMPLATE} nor chat_template in "
                f"{_SETTINGS}: use the folder of a model for chats, or prompt_field and "
                "completion_field"
            )
        try:
            return compiled_template(self._template_text)
        except ValueError as error:
            raise PretrainedError(
                f"{self._folder}: its chat template is broken: {error}: download it again"
            ) from None

    def _find_template(self) -> str | None:
        try:
            path = self._folder / _TEMPLATE
            return decode_text(read_linked(path, LARGEST), path)
        except FileNotFoundError:
            template = self._settings.get("chat_template")
        if isinstance(template, list):  # several, by name
            named = (one for one in template if isinstance(one, dict))
            template = next(
                (one.get("template") for one in named if one.get("name") == "default"), None
            )
        return template if isinstance(template, str) else None

    def _special_tokens(self) -> dict[str, str]:
        """Return the special tokens that a template may name, such as `bos_token`."""
        found = {}
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            token = self._settings.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                found[name] = token
        return found

    def _begin(self) -> tuple[int, ...]:
        """Return the special tokens that the tokenizer puts before a text."""
        found = self._tokenizer.encode("a")
        pairs = zip(found.ids, found.special_tokens_mask, strict=True)
        return tuple(one for one, _ in takewhile(lambda pair: pair[1], pairs))

    def _end(self, vocab_size: int) -> int:
        """Return the id after a document: that of `eos_token`, or else the model's."""
        token = self._special_tokens().get("eos_token")
        end = self._tokenizer.token_to_id(token) if token is not None else None
        if end is None and (self._folder / CONFIG).exists():
            end = read_folder_object(self._folder / CONFIG).get("eos_token_id")
            end = end[0] if isinstance(end, list) and end else end
        if type(end) is not int:
            raise PretrainedError(
                f"{self._folder / _SETTINGS}: eos_token names no token of {TOKENIZER}: download "
                f"both again (value {token!r})"
            )
        if not 0 <= end < vocab_size:
            raise PretrainedError(
                f"{self._folder / CONFIG}: eos_token_id must be below init.model.vocab_size, "
                f"{vocab_size}, and not below 0: download the model again (value {end})"
            )
        return end
