"""How many floating-point operations a step needs, and how many a device can do in a second.

Together they make the model FLOPs utilisation (MFU; Chowdhery et al., 2022, appendix B): operations
that the model needs, whatever is computed again (`loop.remat`), over those that the devices could
have done. It is counted from the shape of the model: what XLA counts of a compiled program has the
body of a loop once, however often it runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.config.training.resolved import InitConfig
from supervisor.config.training.sections import ModelConfig
from trainer.objective import Objective

_TERA = 1e12

PEAK_FLOPS: Mapping[str, float] = {
    # https://cloud.google.com/tpu/docs/v4, v5e, v5p and v6e: "peak compute per chip (bf16)"
    "TPU v4": 275 * _TERA,
    "TPU v5 lite": 197 * _TERA,
    "TPU v5e": 197 * _TERA,
    "TPU v5": 459 * _TERA,
    "TPU v5p": 459 * _TERA,
    "TPU v6 lite": 918 * _TERA,
    "TPU v6e": 918 * _TERA,
    # NVIDIA's datasheets of the A100, H100 and H200: "BFLOAT16 Tensor Core", without sparsity
    "NVIDIA A100-SXM4-40GB": 312 * _TERA,
    "NVIDIA A100-SXM4-80GB": 312 * _TERA,
    "NVIDIA A100-PCIE-40GB": 312 * _TERA,
    "NVIDIA A100 80GB PCIe": 312 * _TERA,
    "NVIDIA H100 80GB HBM3": 989.4 * _TERA,
    "NVIDIA H100 PCIe": 756 * _TERA,
    "NVIDIA H200": 989.4 * _TERA,
}
"""Operations a second in bfloat16, dense, by the `device_kind` of jax."""


def peak_flops(device_kind: str, num_devices: int) -> float | None:
    """Return the operations that all devices can do in a second, in bfloat16; None: not known."""
    peak = PEAK_FLOPS.get(device_kind)
    return None if peak is None else peak * num_devices


def step_flops(init: InitConfig, objective: Objective, length: int) -> float | None:
    """Return the operations of one optimizer step on sequences of `length` tokens; None: not known,
    because the model also makes completions. These take time, and maybe devices of their own, and
    their operations depend on their lengths.

    A product with weights that are trained takes three times as many as in the forward pass: the
    gradients of its inputs and of the weights. Frozen weights have the former only, and the
    reference of an objective has a forward pass of its own. Adapters are left out: they are small.
    """
    if objective.rollout is not None:
        return None
    tokens = init.loop.global_batch_size * objective.rows * length
    weights, attention = _forward_flops(init.model, length)
    passes = 3 if init.lora is None else 2
    reference = 1 if objective.reads_reference else 0
    return tokens * (weights * (passes + reference) + attention * (3 + reference))


def _forward_flops(model: ModelConfig, length: int) -> tuple[float, float]:
    """Return the operations of a forward pass for one token: of the products with weights, and of
    attention, which is counted whole, as if it were not causal."""
    queries, pairs = model.num_heads * model.head_size, model.num_kv_heads * model.head_size
    attention = model.hidden_size * (2 * queries + 2 * pairs)
    mlp = 3 * model.hidden_size * model.mlp_size
    weights = model.num_layers * (attention + mlp) + model.hidden_size * model.vocab_size
    return 2.0 * weights, 4.0 * model.num_layers * queries * length
