"""Run a grid of iterations on a device, and say what was measured on what."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from opt.core.capacity import GPUS, MODELS, capacity, named
from opt.core.cost.load import Load
from opt.core.cost.shapes import Shape, shape_of
from opt.core.errors import InstanceError
from opt.measure.grid import GRIDS, Step, steps

if TYPE_CHECKING:
    import torch

    from opt.measure.transformer import Transformer

__all__ = ["TINY", "Measured", "measure"]

TINY = Shape(hidden=64, ffn=128, heads=4, kv_heads=2, layers=2, vocab=256, head_dim=16)  # for tests, on any machine
WARM_UP = 2  # runs of each iteration that do not count
SHARE = 0.7  # of the memory that weights leave, for the KV cache
CPU_CACHE = 2**30  # bytes of KV cache on a CPU, at most

# What a driver adds to the name of a chip.
BOARD = re.compile(r"nvidia|geforce|blackwell|hbm\w*|sxm\d?|pcie|nvl|(server|workstation) edition", re.IGNORECASE)

Call = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """What a run gave.

    Args:
        rows: loads and the median seconds of each.
        machine, origin: for the head of the log.
        memory: KV capacity in tokens of the model on this GPU, where both are known.
        left_out, why: iterations of the grid that were not measured, and the reason.
        interrupted: whether Ctrl-C ended it.
    """

    rows: list[tuple[Load, float]]
    machine: Mapping[str, Any]
    origin: Mapping[str, Any]
    memory: int | None
    left_out: int
    why: str
    interrupted: bool


@dataclass(frozen=True)
class _Rig:
    """A model on a device, ready to run steps."""

    model: Transformer
    device: torch.device
    eager: bool
    once: bool

    def seconds(self, step: Step, repeat: int) -> float:
        """Return the median seconds of a step."""
        call = self._call(step)
        times = _on_gpu(call, repeat, eager=self.eager) if self.device.type == "cuda" else _on_cpu(call, repeat)
        return statistics.median(times)

    def _call(self, step: Step) -> Call:
        import torch

        rows, shape = step.chunk + step.decodes, self.model.shape
        tokens = torch.randint(shape.vocab, (rows,), device=self.device)
        angles = torch.randn(rows, 2, shape.head_dim // 2, **self.model.options)
        return lambda: self.model.run(step, tokens, angles, once=self.once)


def measure(
    *,
    device: Literal["cpu", "cuda"],
    model: str = "Llama-3-8B",
    layers: int | None = None,
    grid: str = "full",
    repeat: int = 5,
    budget_s: float | None = None,
    eager: bool = False,
    prefix_kernel: Literal["plain", "once"] = "plain",
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Measured:
    """Return the seconds of iterations of a transformer with random weights.

    Args:
        device: `cpu`, or `cuda` for the current GPU.
        model: whose sizes; `tiny` for a test.
        layers: fewer than the model has.
        grid: a name in `GRIDS`.
        repeat: runs of each iteration, of which the median counts.
        budget_s: seconds after which no further iteration is begun.
        eager: on a GPU, launch kernels one by one instead of replaying a captured graph.
        prefix_kernel: how decodes attend to a context they share: each on its own to one copy, or all in one read.
        seed: of weights and of the order of the grid.
        progress: is told what comes next.

    Raises:
        ImportError: torch is not installed.
        InstanceError: no such device, an unknown name, or the model does not fit.
    """
    torch = _torch()
    shape = TINY if model == "tiny" else shape_of(model)
    depth = min(layers or shape.layers, shape.layers)
    where = _device(torch, device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tokens = _kv_tokens(torch, where, shape, depth, dtype.itemsize)
    wanted, too_large = steps(GRIDS[grid], seed=seed, kv_tokens=tokens)
    from opt.measure.transformer import Transformer

    largest = max(step.kv_tokens for step in wanted)
    built = Transformer(shape, layers=depth, kv_tokens=largest, device=where, dtype=dtype, seed=seed)
    rig = _Rig(built, where, eager, prefix_kernel == "once")
    rows, interrupted = _all(rig, wanted, repeat, budget_s, progress)
    late = len(wanted) - len(rows)
    machine = _machine(torch, where, model, shape, depth, eager=eager)
    why = [f"{late} for lack of time"] * bool(late) + [f"{too_large} need more than {tokens:,} KV tokens"] * bool(too_large)
    origin = {
        "source": "kvopt measure",
        "date": datetime.date.today().isoformat(),
        "settings": {"grid": grid, "repeat": repeat, "seed": seed, "prefix_kernel": prefix_kernel, "left_out": late + too_large},
        "versions": {"kvopt": importlib.metadata.version("kvopt"), "torch": torch.__version__},
    }
    memory = _capacity(machine, model) if depth == shape.layers else None
    return Measured(rows, machine, origin, memory, late + too_large, ", ".join(why), interrupted)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ImportError("measuring needs torch: pip install 'kvopt[gpu]'") from None
    return torch


def _device(torch: Any, name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise InstanceError("--device cuda: torch sees no CUDA device; use --device cpu, or a build of torch for this GPU")
    found: torch.device = torch.device(name)
    return found


def _kv_tokens(torch: Any, device: torch.device, shape: Shape, layers: int, size: int) -> int:
    """Return how many tokens of KV cache there is room for, or refuse a model whose weights do not fit."""
    parameters = shape.layer_parameters // shape.layers * layers + 2 * shape.vocab * shape.hidden
    weights, token = parameters * size, 2 * layers * shape.kv_heads * shape.head_dim * size
    free = torch.cuda.mem_get_info()[0] if device.type == "cuda" else _free_on_host()
    room = int((free - weights) * SHARE) if device.type == "cuda" else min(free - weights, CPU_CACHE)
    if room < token:
        raise InstanceError(
            f"{parameters:,} parameters x {size} bytes = {weights / 2**30:.1f} GiB of weights, but {free / 2**30:.1f} GiB are "
            "free; take fewer layers (--layers) or a smaller model"
        )
    return int(room // token)


def _free_on_host() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _all(
    rig: _Rig, wanted: list[Step], repeat: int, budget_s: float | None, progress: Callable[[str], None] | None
) -> tuple[list[tuple[Load, float]], bool]:
    """Return loads and seconds of the steps, in order, as far as time allows, and whether Ctrl-C came."""
    rows: list[tuple[Load, float]] = []
    begun = time.monotonic()
    try:
        for at, step in enumerate(wanted, 1):
            if budget_s is not None and time.monotonic() - begun > budget_s:
                break
            if progress is not None:
                progress(f"[{at}/{len(wanted)}, {time.monotonic() - begun:.0f} s] {step}")
            rows.append((step.load, rig.seconds(step, repeat)))
    except KeyboardInterrupt:
        return rows, True
    return rows, False


def _on_cpu(call: Call, repeat: int) -> list[float]:
    times = []
    for run in range(WARM_UP + repeat):
        begun = time.perf_counter()
        call()
        if run >= WARM_UP:
            times.append(time.perf_counter() - begun)
    return times


def _on_gpu(call: Call, repeat: int, *, eager: bool) -> list[float]:
    """Return the seconds between two events around each run, of a captured graph unless `eager`."""
    import torch

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # capture wants kernels that have run before, on a stream of their own
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    launch = call if eager else _captured(call)
    launch()
    times = []
    for _ in range(repeat):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        launch()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) / 1000)
    return times


def _captured(call: Call) -> Call:
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()  # the graph writes into this memory

    def launch() -> object:
        graph.replay()
        return kept

    return launch


def _machine(torch: Any, device: torch.device, model: str, shape: Shape, layers: int, *, eager: bool) -> dict[str, Any]:
    cuda = device.type == "cuda"
    gpu = _gpu(torch.cuda.get_device_name()) if cuda else f"cpu: {platform.processor() or platform.machine()}"
    how = "one kernel at a time" if eager else "captured graphs"
    name = named(MODELS, model) or model
    return {
        "gpu": gpu,
        "tp": 1,
        "model": name if layers == shape.layers else f"{name}, {layers} of {shape.layers} layers",
        "dtype": "bf16" if cuda else "fp32",
        "engine": f"torch {torch.__version__}, scaled_dot_product_attention" + (f", {how}" if cuda else ""),
    }


def _gpu(reported: str) -> str:
    """Return the name in `GPUS` of a device as its driver calls it, or that name where none fits.

    >>> _gpu("NVIDIA H100 80GB HBM3"), _gpu("NVIDIA A100-SXM4-80GB"), _gpu("NVIDIA GeForce RTX 4090"), _gpu("NVIDIA H200")
    ('H100-80', 'A100-80', 'RTX-4090', 'H200-141')
    """
    words = BOARD.sub(" ", reported)
    return named({**GPUS}, "-".join(re.findall(r"[A-Za-z0-9]+", words))) or reported


def _capacity(machine: Mapping[str, Any], model: str) -> int | None:
    gpu, name = machine["gpu"], named(MODELS, model)
    return capacity(MODELS[name], GPUS[gpu]).tokens if gpu in GPUS and name is not None else None
