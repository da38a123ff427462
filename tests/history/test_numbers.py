"""Numbers of the journal that no clock gives: the sums of goodput would fail on them."""

import pytest

from supervisor.history.encoding import EncodingError, decode


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -1e300, 10**400], ids=lambda n: "")
def test_a_time_out_of_range_is_damage(number: float) -> None:
    with pytest.raises(EncodingError, match=r"is .*, which is out of range$"):
        decode(number, float)
