"""Progress messages: what is encoded is read back, and nothing that comes in breaks the reader."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.loss_spikes import LossSpike
from supervisor.protocol.messages import (
    MAX_LINE,
    MAX_NOTICE,
    MAX_STEP,
    AdjustableMessage,
    CompiledMessage,
    DevicesMessage,
    EvaluatedMessage,
    Message,
    NoticeCode,
    NoticeMessage,
    ProtocolError,
    RestoredMessage,
    SavedMessage,
    SigtermMessage,
    Stage,
    StageMessage,
    StepMessage,
    WroteMessage,
    decode,
    encode,
    printable,
)

steps = st.integers(min_value=0, max_value=MAX_STEP)
short = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
metrics = st.dictionaries(short, st.floats(allow_nan=False), max_size=10)
messages = st.one_of(
    st.builds(StageMessage, st.sampled_from(Stage), st.none() | steps, st.booleans()),
    st.builds(StepMessage, steps, metrics),
    st.builds(RestoredMessage, st.none() | steps, st.booleans()),
    st.builds(SavedMessage, st.none() | steps),
    st.builds(CompiledMessage, st.floats(min_value=0, max_value=10**9), short, short),
    st.builds(EvaluatedMessage, steps, metrics),
    st.builds(DevicesMessage, short, st.integers(min_value=0, max_value=10**6), short),
    st.builds(NoticeMessage, short),
    st.builds(WroteMessage, short),
    st.builds(SigtermMessage),
    st.builds(LossSpike, steps, *[st.floats(allow_nan=False, allow_infinity=False)] * 3),
)


@given(messages)
def test_what_is_encoded_is_read_back(message: Message) -> None:
    line = encode(message)
    assert decode(line) == message
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")


@given(
    st.one_of(
        st.builds(StepMessage, steps, st.dictionaries(st.text(), st.floats(), min_size=50)),
        st.builds(DevicesMessage, st.text(min_size=900), st.just(1), st.text(min_size=900)),
        st.builds(NoticeMessage, st.text(st.characters(min_codepoint=0x10000), min_size=400)),
    )
)
def test_a_line_never_exceeds_an_atomic_write(message: Message) -> None:
    line = encode(message)
    assert len(line) <= MAX_LINE
    assert type(decode(line)) is type(message)


def test_metrics_that_do_not_fit_are_dropped_and_the_step_stays() -> None:
    many = {f"metric {number} {'x' * 50}": 0.5 for number in range(64)}
    assert decode(encode(StepMessage(7, many))) == StepMessage(7)


def test_a_notice_is_cut_off_where_it_is_too_long() -> None:
    shortened = NoticeMessage("a " * (MAX_NOTICE // 2))
    assert decode(encode(NoticeMessage("a " * 9999))) == shortened


class Integer:
    """What numeric libraries hand out for a step."""

    def __index__(self) -> int:
        return 7


class Float:
    """What they hand out for a loss."""

    def __float__(self) -> float:
        return 0.5


def test_numbers_of_other_libraries_are_numbers() -> None:
    message: Any = StepMessage(Integer(), {"loss": Float()})  # type: ignore[arg-type, dict-item]
    assert decode(encode(message)) == StepMessage(7, {"loss": 0.5})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_metrics_may_be_no_number(value: float) -> None:
    read = decode(encode(StepMessage(1, {"loss": value})))
    assert isinstance(read, StepMessage)
    assert repr(read.metrics["loss"]) == repr(value)


@given(st.binary())
def test_any_bytes_are_a_message_or_a_protocol_error(line: bytes) -> None:
    with suppress(ProtocolError):
        decode(line)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
KINDS = ["stage", "step", "restored", "saved", "evaluated", "devices", "notice", "heartbeat"]


@given(
    st.fixed_dictionaries(
        {"v": st.sampled_from([1, 1, 1, 2, "1", None]), "kind": st.sampled_from(KINDS)},
        optional={
            "step": steps | json_values,
            "stage": st.sampled_from(Stage) | json_values,
            "metrics": st.dictionaries(st.text(), json_values) | json_values,
            "platform": json_values,
            "count": json_values,
            "device_kind": json_values,
            "text": json_values,
            "seconds": json_values,
            "name": json_values,
        },
    )
)
def test_any_object_is_a_message_or_a_protocol_error(body: dict[str, Any]) -> None:
    with suppress(ProtocolError):
        message = decode(json.dumps(body).encode())
        assert body["v"] == 1
        assert (message is None) == (body["kind"] == "heartbeat")
        for text in _texts(message):
            assert text.isprintable()
            assert len(text) <= MAX_NOTICE * 10


def _texts(message: Message | None) -> list[str]:
    if isinstance(message, DevicesMessage):
        return [message.platform, message.device_kind]
    if isinstance(message, CompiledMessage):
        return [message.name, message.source]
    if isinstance(message, NoticeMessage):
        return [message.text]
    if isinstance(message, StepMessage | EvaluatedMessage):
        return list(message.metrics)
    return []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b"step 3", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 4000, "not JSON"),
        (b"3", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b"{}", "protocol 'None', this supervisor speaks 1"),
        (b'{"v": 2, "kind": "step", "step": 1}', "protocol '2', this supervisor speaks 1"),
        (b'{"v": "1", "kind": "step", "step": 1}', "protocol '1', this supervisor speaks 1"),
        (b'{"v": 1}', "no kind"),
        (b'{"v": 1, "kind": 3}', "no kind"),
        (b'{"v": 1, "kind": "stage", "stage": "LUNCH"}', "unknown stage"),
        (b'{"v": 1, "kind": "step"}', "step is not a natural number"),
        (b'{"v": 1, "kind": "step", "step": -1}', "step is not a natural number"),
        (b'{"v": 1, "kind": "step", "step": true}', "step is not a natural number"),
        (b'{"v": 1, "kind": "step", "step": 1.0}', "step is not a natural number"),
        (b'{"v": 1, "kind": "saved", "step": 4611686018427387905}', "step is not a natural numb"),
        (b'{"v": 1, "kind": "saved", "step": -1}', "step is not a natural number"),
        (b'{"v": 1, "kind": "compiled", "seconds": "2"}', "seconds is not a duration"),
        (b'{"v": 1, "kind": "compiled", "seconds": NaN}', "seconds is not a duration"),
        (b'{"v": 1, "kind": "step", "step": 1, "metrics": []}', "metrics is not an object"),
        (b'{"v": 1, "kind": "step", "step": 1, "metrics": {"a": "1"}}', "a metric is not a num"),
        (b'{"v": 1, "kind": "step", "step": 1, "metrics": {"a": true}}', "a metric is not a nu"),
        (b'{"v": 1, "kind": "devices", "platform": 3}', "platform is not a string"),
        (b'{"v": 1, "kind": "devices", "count": -1}', "count is not a number of devices"),
        (b'{"v": 1, "kind": "devices", "count": 1e3}', "count is not a number of devices"),
        (b'{"v": 1, "kind": "step", "step": 1}' + b" " * MAX_LINE, "line of more than 4096 bytes"),
    ],
)
def test_what_is_refused_and_why(line: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(line)
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"v": 1, "kind": "heartbeat", "at": 3}', None),
        (b'{"v": 1, "kind": "saved", "step": 3, "new": [1]}', SavedMessage(3)),
        (b'{"v": 1, "kind": "saved"}', SavedMessage(None)),
        (b'{"v": 1, "kind": "stage", "stage": "SAVING"}', StageMessage(Stage.SAVING)),
        (
            b'{"v": 1, "kind": "stage", "stage": "SAVING", "inferred": true}',
            StageMessage(Stage.SAVING, inferred=True),
        ),
        (b'{"v": 1, "kind": "compiled", "seconds": 2}', CompiledMessage(2.0)),
        (b'{"v": 1, "kind": "restored"}', RestoredMessage(None)),
        (b'{"v": 1, "kind": "stage", "stage": "TRAINING"}', StageMessage(Stage.TRAINING)),
        (
            b'{"v": 1, "kind": "step", "step": 1, "metrics": {"a": 1' + b"0" * 400 + b"}}",
            StepMessage(1, {"a": math.inf}),
        ),
    ],
)
def test_what_a_newer_worker_says_is_understood_as_far_as_known(
    line: bytes, message: Message | None
) -> None:
    assert decode(line) == message


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss", "loss"),
        ("größe 3", "größe 3"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\r\x00\x7f", "a\\nb\\r\\x00\\x7f"),
        ("\u202e\u2028", "\\u202e\\u2028"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert printable(text) == shown
    read = decode(json.dumps({"v": 1, "kind": "devices", "platform": text, "count": 1}).encode())
    assert read == DevicesMessage(shown, 1)


def test_what_a_worker_can_adjust_is_a_list_of_names() -> None:
    message = AdjustableMessage(("inflight", "skip_steps"))
    assert decode(encode(message)) == message
    for wrong in (b'"inflight"', b"[1]", b"null"):
        with pytest.raises(ProtocolError, match="names"):
            decode(b'{"v":1,"kind":"adjustable","names":%s}' % wrong)


def test_a_notice_has_a_code_for_tools_and_older_programs_have_none() -> None:
    notice = NoticeMessage("its batch is skipped", NoticeCode.BATCH_SKIPPED, 7)
    assert decode(encode(notice)) == notice
    assert decode(b'{"v":1,"kind":"notice","text":"odd"}\n') == NoticeMessage("odd")
    assert decode(b'{"v":1,"kind":"notice","text":"odd","code":"No Code!"}\n') == NoticeMessage(
        "odd"
    )
