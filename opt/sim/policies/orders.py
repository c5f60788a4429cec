"""The offline orders as online policies, by announced outputs, with the exact look-ahead check.

The waiting queue is ordered by the key; strict: the head starts as soon as it fits beside what is running, also in all
steps to come; skip: in every step, whoever fits starts. A better key that arrives later becomes the head at once. With
unit cost, one token to a block and no budget, the starts are those of the offline solver of the same name.
"""

from __future__ import annotations

import numpy as np

from opt.core.columns import ABSENT, IntArray
from opt.core.instance import MAX_MEMORY, Instance
from opt.sim.batch import FOREVER, Batch, View
from opt.sim.config import MAX_TOKENS, EngineConfig
from opt.sim.engine import Policy
from opt.sim.policies.lookahead import Lookahead
from opt.sim.policies.vllm import decode_or_preempt
from opt.sim.workload import Requests
from opt.solvers.orders import KEYS, Rule

__all__ = ["ROUNDS", "add_partial", "order", "require_announced"]

# The engine of the model of rounds: exact tokens, the new one included, prompts whole in one step.
ROUNDS = EngineConfig(
    name="rounds", block_size=1, reserve_sampled=True, prefix_cache=False, token_budget=MAX_TOKENS, max_running=MAX_TOKENS
)
BLIND = ("fcfs", "random")  # orders that need no output


def order(requests: Requests, config: EngineConfig, *, key: str, rule: Rule = "strict", seed: int = 0) -> Policy:
    """Return the order `key` (a name in `opt.solvers.orders.KEYS`) under the rule "strict" or "skip".

    Raises:
        ValueError: the key needs outputs and a request announces none.
    """
    if key not in BLIND:
        require_announced(requests, key)
    announced = Instance(MAX_MEMORY, *_within(requests.prompt, np.maximum(requests.expected, 1)))
    rank = KEYS[key](announced, seed)
    return Policy(_strict if rule == "strict" else _skip, None if key == "fcfs" else rank)


def _within(prompt: IntArray, expected: IntArray) -> tuple[IntArray, IntArray]:
    """A prediction may be absurd; keep it within what an instance may hold."""
    return prompt, np.minimum(expected, MAX_MEMORY - prompt)


def require_announced(requests: Requests, name: str) -> None:
    """Refuse requests without announced outputs, for a policy that plans with them."""
    missing = np.flatnonzero(requests.expected == ABSENT)
    if missing.size:
        raise ValueError(
            f"policy {name} needs announced outputs, and request {requests.ids[int(missing[0])]!r} has none: give "
            "`predicted` or `max_output`, or let policies know the true outputs (lengths = output)"
        )


def add_partial(view: View, batch: Batch) -> None:
    """Go on with unfinished prompts, in the order of admission."""
    for i in view.partial():
        batch.add(i)


def _strict(view: View) -> Batch:
    batch = _begin(view)
    while (head := view.waiting.head) is not None:
        steps = Lookahead(view).steps_until(head)
        if steps or not batch.add(head):
            return _end(batch, steps)
    return _end(batch, FOREVER)


def _skip(view: View) -> Batch:
    batch = _begin(view)
    while len(view.waiting):
        candidates = np.fromiter(view.waiting, np.int64, len(view.waiting))
        at, steps = Lookahead(view).first(candidates)
        if at < 0 or not batch.add(int(candidates[at])):
            return _end(batch, steps)
    return _end(batch, FOREVER)


def _begin(view: View) -> Batch:
    batch = view.batch()
    decode_or_preempt(view, batch)
    add_partial(view, batch)
    return batch


def _end(batch: Batch, steps: int) -> Batch:
    batch.repeat = 1 if batch.chunks or batch.preempted else max(steps, 1)
    return batch
