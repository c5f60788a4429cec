"""SGLang's real iterations beside those of our engine under the policy of the same name."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from opt.core.cost import CostModel
from opt.core.instance import Instance
from opt.plugins.sglang.serve import Served
from opt.sim.door import simulate
from opt.sim.policies import SGLANG
from opt.sim.timeline import Timeline

__all__ = ["Replay", "replay"]

COUNTED = CostModel("iterations", "linear", {"base": 1.0})
Step = tuple[int, int, int]  # prompt tokens, chunks, decodes


@dataclass(frozen=True)
class Replay:
    """Two runs of the same requests, iteration by iteration.

    Args:
        iterations: of SGLang.
        equal: how many are the same from the first on.
        there, here: the first that differs, in SGLang and in ours; None where the run has ended.
        timeline: our run.
    """

    iterations: int
    equal: int
    there: Step | None
    here: Step | None
    timeline: Timeline


def replay(
    run: Served, instance: Instance, policy: str, *, seats: int = 16, budget: int = 512, cost: CostModel = COUNTED
) -> Replay:
    """Serve a backlog that SGLang has served without overlap with our engine, and compare every iteration.

    Args:
        run, instance: what SGLang did with which requests.
        policy: SGLang's `schedule_policy`.
        seats, budget: as in `opt.plugins.sglang.serve.serve`.
        cost: what iterations take here, by default a second each; it does not change the order of a backlog.
    """
    config = SGLANG.replace(token_budget=budget, max_running=seats)
    timeline = simulate(instance, f"sglang-{policy}", cost, engine=config)
    here = _steps(timeline)
    there = [(int(load.prefill_tokens), int(load.prefill_sequences), int(load.decodes)) for load, _ in run.iterations]
    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(there, here, strict=False)))
    theirs, ours = (steps[equal] if equal < len(steps) else None for steps in (there, here))
    return Replay(len(there), equal, theirs, ours, timeline)


def _steps(timeline: Timeline) -> list[Step]:
    runs = timeline.engines[0].log.runs
    return [(int(run.prefill_tokens), int(run.chunks), int(run.decodes)) for run in runs for _ in range(run.steps)]
