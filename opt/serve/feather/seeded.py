"""The bandit seeded by the analytic former: it learns only where the model is not sure.

The analytic former proposes a block and says by which share serving it now is cheaper than later. Beyond `CLOSE` either
way that is final. Within it the table decides, once it has seen the other action `ENOUGH` times and its mean reward is
better by `MARGIN`; the other action is tried when it has fewer visits than the logarithm of those of the advice, so at
most a logarithmic share of close decisions is spent on trying.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from opt.serve.feather.analytic import Analytic, Block
from opt.serve.feather.bandit import ADD, STOP, State, Table, state_of
from opt.serve.feather.estimate import Shape, decode_seconds, shape_of
from opt.serve.feather.tracker import Tracker
from opt.sim.batch import FOREVER, Batch, View

__all__ = ["Seeded"]

CLOSE, MARGIN, ENOUGH = 0.02, 0.02, 8
PATIENCE = 5  # powers of two before the first trial


@dataclass
class Seeded:
    """The former; `advisor` holds the age limit."""

    advisor: Analytic
    table: Table = field(default_factory=Table)

    def fill(self, view: View, batch: Batch, tracker: Tracker) -> int:
        """Admit blocks as long as advice and table say so, and reward what was open to both."""
        decisions: list[tuple[State, int]] = []
        while batch.seats > 0 and batch.budget > 0 and len(view.waiting):
            block, margin = self.advisor.weigh(view, tracker)
            action = ADD if margin > 0 else STOP
            if abs(margin) < CLOSE:
                state = _state(tracker, block)
                action = self._ask(state, action)
                decisions.append((state, action))
            if action == STOP or not self.advisor.admit(view, batch, tracker, block):
                break
        self._learn(view, tracker, decisions)
        return 1 if decisions or tracker.held_back else FOREVER

    def _ask(self, state: State, advice: int) -> int:
        table, other = self.table, STOP if advice == ADD else ADD
        tried = table.visits(state, other)
        if tried < math.log2(table.visits(state, advice) + 1) - PATIENCE:
            return other
        better = tried >= ENOUGH and table.mean(state, other) > (1 + MARGIN) * table.mean(state, advice)
        return other if better else advice

    def _learn(self, view: View, tracker: Tracker, decisions: list[tuple[State, int]]) -> None:
        if decisions:
            reward = _rate(view, tracker, shape_of(view, tracker))
            for state, action in decisions:
                self.table.learn(state, action, reward)


def _state(tracker: Tracker, block: Block) -> State:
    tree = tracker.tree
    after = tree.common_with(block.first)
    return state_of(len(tree.active), tree.common, after, tree.sharers(block.first, after))


def _rate(view: View, tracker: Tracker, shape: Shape) -> float:
    """Return tokens a second of decode steps."""
    return shape.size / decode_seconds(view, tracker, shape)
