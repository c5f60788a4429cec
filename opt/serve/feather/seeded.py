"""The bandit seeded by the analytic former: it tries the other action where the model is not sure, within a budget.

The analytic former proposes a block and says by which share serving it now is cheaper than later. Beyond `CLOSE` either
way that is final. Within it a table decides, one for each advice, once it has seen the other action `ENOUGH` times and its
mean reward is better by `MARGIN`; the other action is tried when it has fewer visits than the logarithm of those of the
advice. (With one table, rewards of adding where that was advised would speak for adding where it was not.)

A trial is not a matter of one step, however close the decision: a block that joins a homogeneous batch switches off what
its members shared, others follow it as seats become free, and the batch may stay mixed for as long as anybody waits. Two
such trials among 164 decisions were seen to cost 15 % of a run. So

* a trial is charged the time until the batch has drained and a request has been served after it, and all trials together
  may take `BUDGET` of the engine's time. Without one, as in the first minutes, every step is the analytic former's;
* the reward is the rate of tokens over that time, measured on the engine's clock, not that of the batch as it was built:
  a fuller batch is nearly always faster at once, and what waiting for a drained one is worth shows only after it. What is
  still being measured when a trial begins is dropped.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from opt.serve.feather.analytic import Analytic, Block
from opt.serve.feather.bandit import ADD, STOP, State, Table, state_of
from opt.serve.feather.estimate import decode_seconds, shape_of
from opt.serve.feather.tracker import Tracker
from opt.sim.batch import FOREVER, Batch, View

__all__ = ["BUDGET", "Seeded"]

CLOSE, MARGIN, ENOUGH = 0.02, 0.02, 8
PATIENCE = 5  # powers of two before the first trial
BUDGET = 0.02  # of the engine's time


Decision: TypeAlias = tuple[int, State, int]  # what was advised, where, and what was done


class Open(NamedTuple):
    """Decisions whose outcome is being measured: from when until when, and the tokens made before."""

    begun_s: float
    due_s: float
    tokens: int
    decisions: list[Decision]


@dataclass
class Seeded:
    """The former; `advisor` holds the age limit.

    Args:
        advisor: whom it follows.
        tables: visits and mean rewards, in tokens a second, by what was advised.
        spent_s: what trials have been charged.
        open: decisions whose outcome is being measured, the oldest first.
    """

    advisor: Analytic
    tables: tuple[Table, Table] = field(default_factory=lambda: (Table(), Table()))
    spent_s: float = 0.0
    open: deque[Open] = field(default_factory=deque)

    def fill(self, view: View, batch: Batch, tracker: Tracker) -> int:
        """Admit blocks as long as advice and table say so, and measure what was open to both."""
        decisions: list[Decision] = []
        stay = 0.0
        while batch.seats > 0 and batch.budget > 0 and len(view.waiting):
            block, margin = self.advisor.weigh(view, tracker)
            advice = action = ADD if margin > 0 else STOP
            if abs(margin) < CLOSE:
                stay = stay or _stay(view, tracker, block)
                state = _state(tracker, block)
                action = self._ask(view, state, advice, stay)
                decisions.append((advice, state, action))
            if action == STOP or not self.advisor.admit(view, batch, tracker, block):
                break
        if decisions or self.open:
            self._measure(view, tracker, decisions, stay)
        return 1 if tracker.held_back else FOREVER

    def _ask(self, view: View, state: State, advice: int, stay: float) -> int:
        table, other = self.tables[advice], STOP if advice == ADD else ADD
        tried = table.visits(state, other)
        if tried < math.log2(table.visits(state, advice) + 1) - PATIENCE:
            if self.spent_s + stay > BUDGET * (view.now - view.idle_s):
                return advice
            self.spent_s += stay
            self.open.clear()
            return other
        better = tried >= ENOUGH and table.mean(state, other) > (1 + MARGIN) * table.mean(state, advice)
        return other if better else advice

    def _measure(self, view: View, tracker: Tracker, decisions: list[Decision], stay: float) -> None:
        """Reward decisions whose time is over, and begin to measure new ones."""
        tokens = tracker.made + int(view.progress.produced[view.running].sum())
        while self.open and self.open[0].due_s <= view.now:
            begun_s, _, before, mine = self.open.popleft()
            for advice, state, action in mine:
                self.tables[advice].learn(state, action, (tokens - before) / (view.now - begun_s))
        if decisions:
            self.open.append(Open(view.now, view.now + stay, tokens, decisions))


def _stay(view: View, tracker: Tracker, block: Block) -> float:
    """Return the seconds until the running batch has drained and a request like the block's has been served after it."""
    return (tracker.left(view) + tracker.output(view, block.first)) * decode_seconds(view, tracker, shape_of(view, tracker))


def _state(tracker: Tracker, block: Block) -> State:
    tree = tracker.tree
    after = tree.common_with(block.first)
    return state_of(len(tree.active), tree.common, after, tree.sharers(block.first, after))
