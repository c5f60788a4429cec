"""Does a cost model ask more of the chip than it has? Floating-point rate and memory bandwidth against peak.

Coefficients in circulation are not always possible. Four figures are implied by a model whose machine is known: the
rate of the matrix products (marginal seconds of a prefill token), the rate of attention (seconds of a pair), the
bandwidth of reading the KV cache (seconds of a KV token), and that of reading the weights (seconds of the smallest
iteration). None may exceed what the datasheet says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opt.core.capacity import BYTES, GPUS, MODELS, named
from opt.core.cost.load import Load
from opt.core.cost.model import CostModel
from opt.core.cost.shapes import Shape, shape_of
from opt.core.errors import InstanceError

__all__ = ["PEAKS", "Check", "Peak", "checks", "faults"]


@dataclass(frozen=True)
class Peak:
    """Dense 16-bit FLOP/s with 32-bit accumulation, 8-bit FLOP/s where the chip has it, and bytes/s of device memory."""

    flops: float
    flops_fp8: float
    bandwidth: float


# Datasheets of the fastest board of each name (SXM, 600 W), dense, so that what exceeds them is impossible on any.
PEAKS: dict[str, Peak] = {
    "A100-40": Peak(312e12, 312e12, 1.555e12),
    "A100-80": Peak(312e12, 312e12, 2.039e12),
    "H100-80": Peak(989.4e12, 1978.9e12, 3.352e12),
    "H200-141": Peak(989.4e12, 1978.9e12, 4.8e12),
    "RTX-4090": Peak(165.2e12, 330.3e12, 1.008e12),
    "RTX-PRO-6000": Peak(503.8e12, 1007.6e12, 1.792e12),
}

CHUNK = 2048  # tokens of a prefill, where the range that was measured allows; far above any knee


@dataclass(frozen=True)
class Check:
    """One implied figure: `implied` and `peak` in `unit`; possible where the one does not exceed the other."""

    what: str
    implied: float
    peak: float
    unit: str

    @property
    def possible(self) -> bool:
        """Whether the chip has what the model implies."""
        return self.implied <= self.peak

    def __str__(self) -> str:
        share = self.implied / self.peak
        verdict = f"{share:.0%} of peak" if self.possible else f"{share:.1f} times the peak: impossible"
        return f"{self.what}: {self.implied / 1e12:,.4g} {self.unit} against {self.peak / 1e12:,.4g}, {verdict}"


def checks(model: CostModel) -> list[Check]:
    """Return the implied figures of a model; none where its gpu or its model has no entry here."""
    machine = model.machine
    gpu, name = named({**GPUS}, str(machine.get("gpu", ""))), named(MODELS, str(machine.get("model", "")))
    if gpu not in PEAKS or name is None:
        return []
    try:
        shape = shape_of(name, int(machine.get("tp", 1)))
    except InstanceError:
        return []
    return list(_figures(model, PEAKS[gpu], shape))


def _figures(model: CostModel, peak: Peak, shape: Shape) -> Iterator[Check]:
    machine = model.machine
    tp, dtype = int(machine.get("tp", 1)), str(machine.get("dtype", "bf16"))
    flops = peak.flops_fp8 if dtype == "fp8" else peak.flops
    kv_bytes = BYTES[str(machine.get("kv_dtype", "bf16" if dtype == "fp8" else dtype))]
    token = _marginal(model)
    if token > 0:
        yield Check("matrix products", 2 * shape.layer_parameters / tp / token, flops, "TFLOP/s")
    pair = model.terms.get("per_pair", 0.0)
    if pair > 0:
        work = 4 * shape.layers * shape.heads * shape.head_dim / tp
        yield Check("prefill attention", work / pair, flops, "TFLOP/s")
    read = model.terms.get("per_kv_token", 0.0)
    if read > 0:
        size = 2 * shape.layers * max(shape.kv_heads // tp, 1) * shape.head_dim * kv_bytes
        yield Check("KV reads", size / read, peak.bandwidth, "TB/s")
    least = model.seconds(Load(decodes=1))
    if least > 0:
        yield Check("weight reads", shape.layer_parameters * BYTES[dtype] / tp / least, peak.bandwidth, "TB/s")


def _marginal(model: CostModel) -> float:
    """Return the seconds that one more prefill token takes where prefill is bound by compute, attention left out."""
    _, most = model.valid.get("prefill_tokens", (0, CHUNK))
    high = max(min(most, CHUNK), 2)
    loads = (Load(prefill_tokens=tokens, prefill_sequences=1) for tokens in (high / 2, high))
    less, more = (model.seconds(load) for load in loads)
    return (more - less) / (high / 2)


def faults(model: CostModel) -> list[str]:
    """Return, in words, every figure that the chip does not have."""
    return [str(check) for check in checks(model) if not check.possible]
