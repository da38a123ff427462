"""What one line of output says of the loss of the training."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest

from supervisor.diagnosis.step_lines import loss_in


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("step 20 val/loss=nan train/loss=0.150", 0.15),
        ("step 31 best loss inf current 0.097", None),
        ("step 3 best training loss inf loss 0.2", 0.2),
        ("step 3 kl loss 0.1 | loss nan", nan),
        ("step 3 val loss nan loss 0.1", 0.1),
        ("step 3 aux/loss=nan loss=0.2", 0.2),
        ("step 3 best_loss=inf loss=2", 2.0),
        ("step 3 ema loss nan", None),
        ("step 3 test.loss=nan", None),
        ("{'loss': 0.3, 'eval_loss': nan}", 0.3),
        ("10/10 - 1s - loss: 0.3 - val_loss: nan", 0.3),
        ("Validation step 20: loss=nan", None),
        ("[eval] step 20 loss=nan", None),
        ("step 20 val/acc=0.9 loss=0.150", 0.15),
        ("step 3 loss 0.1 train_loss=nan", nan),
        ("step 3 loss -inf", -inf),
        ("step 3 training loss 1e-3", 0.001),
        ("step 3 total loss: 2.5", 2.5),
        ("[100] loss=2.3", 2.3),
        ("train.py:12] step 4 loss 3", 3.0),
        ("step 3 loss_scale 65536", None),
        ("step 3", None),
    ],
)
def test_the_loss_of_the_training_is_told_from_others(line: str, loss: float | None) -> None:
    found = loss_in(line)
    if loss is not None and isnan(loss):
        assert found is not None
        assert isnan(found)
    else:
        assert found == loss
