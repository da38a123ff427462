"""Numbers of the journal that no clock gives: the sums of goodput would fail on them."""

import pytest

from supervisor.core.events import Event, WorkerReported
from supervisor.history.encoding import EncodingError, decode, encode
from supervisor.protocol.messages import StepMessage


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -1e300, 10**400], ids=lambda n: "")
def test_a_time_out_of_range_is_damage(number: float) -> None:
    with pytest.raises(EncodingError, match=r"is .*, which is out of range$"):
        decode(number, float)


@pytest.mark.parametrize("loss", [float("inf"), float("nan"), 1e300])
def test_a_loss_may_be_any_number(loss: float) -> None:
    """Such a report is journalled where it ends a recovery."""
    told = WorkerReported(1.0, 2, 0, StepMessage(1, {"loss": loss}))
    assert repr(decode(encode(told, Event), Event)) == repr(told)
