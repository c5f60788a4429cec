"""Feather's bandit: one decision, ADD or STOP, for each candidate, learned by UCB1 from cold (arXiv 2605.06046).

State: (min(B div 4, 10), clip(before - after, -5, 5), min(w div 4, 10)), with B running requests, `before` and `after`
the chunks common to all of them without and with the candidate, and w the other waiting requests that share the
`after`-long prefix. Score of an action: mean reward + 200 sqrt(ln(steps + 1) / visits); unseen is infinite, a tie adds. An
empty batch, and a candidate that costs nothing of a positive common prefix, are added without asking. The candidate is
the waiting request with the fewest chunks missing. Reward: batch size / batch time, for every decision that built the
batch.

One point is ours, in the bandit's favour: the batch time is that of a decode step of the batch as it was built, by the
cost model, without prompt computation. The step in which a request is added also computes its prompt; charged with that,
every ADD looks bad, and the bandit learns to refuse work where nothing is shared.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeAlias

from opt.serve.feather.estimate import decode_seconds, shape_of
from opt.serve.feather.loop import admit
from opt.serve.feather.tracker import Tracker
from opt.sim.batch import FOREVER, Batch, View

__all__ = ["ADD", "STOP", "Bandit", "State", "Table", "build", "state_of"]

State: TypeAlias = tuple[int, int, int]

STOP, ADD = 0, 1
EXPLORATION = 200.0


def state_of(size: int, before: int, after: int, sharers: int) -> State:
    """Return the state of a decision.

    >>> state_of(9, 20, 1, 100)
    (2, 5, 10)
    """
    return min(size // 4, 10), max(-5, min(5, before - after)), min(sharers // 4, 10)


@dataclass
class Table:
    """Visits and mean rewards by state and action, and how many decisions were rewarded."""

    cells: dict[tuple[State, int], tuple[int, float]] = field(default_factory=dict)
    steps: int = 0

    def visits(self, state: State, action: int) -> int:
        """Return how often an action was rewarded in a state."""
        return self.cells.get((state, action), (0, 0.0))[0]

    def mean(self, state: State, action: int) -> float:
        """Return its mean reward, 0 if there was none."""
        return self.cells.get((state, action), (0, 0.0))[1]

    def score(self, state: State, action: int) -> float:
        """Return the upper confidence bound of an action."""
        visits, mean = self.cells.get((state, action), (0, 0.0))
        return mean + EXPLORATION * math.sqrt(math.log(self.steps + 1) / visits) if visits else math.inf

    def choose(self, state: State) -> int:
        """Return the action with the larger score; ADD if they are equal."""
        return ADD if self.score(state, ADD) >= self.score(state, STOP) else STOP

    def learn(self, state: State, action: int, reward: float) -> None:
        """Count one reward."""
        visits, mean = self.cells.get((state, action), (0, 0.0))
        self.cells[state, action] = (visits + 1, mean + (reward - mean) / (visits + 1))
        self.steps += 1


Asked: TypeAlias = tuple[int, State]  # the candidate and its state


def build(view: View, batch: Batch, tracker: Tracker) -> Generator[Asked, int, bool]:
    """Yield every open decision, take its action, and return whether the last one, an ADD, was refused for lack of room."""
    tracker.sync(view)
    tree = tracker.tree
    while batch.seats > 0 and batch.budget > 0 and (found := tree.select()) is not None:
        i, _ = found
        size, before, after = len(tree.active), tree.common, tree.common_with(i)
        asked = size > 0 and not after >= before > 0
        if asked and (yield i, state_of(size, before, after, tree.sharers(i, after))) == STOP:
            return False
        if not admit(view, batch, tracker, i):
            return asked
    return False


@dataclass
class Bandit:
    """The former that asks the table."""

    table: Table = field(default_factory=Table)

    def fill(self, view: View, batch: Batch, tracker: Tracker) -> int:
        """Add candidates until the table says stop or nobody fits, and reward the decisions by the batch they built."""
        decisions = self._decide(build(view, batch, tracker))
        if decisions:
            shape = shape_of(view, tracker)
            reward = shape.size / decode_seconds(view, tracker, shape)
            for state, action in decisions:
                self.table.learn(state, action, reward)
        return 1 if decisions or (tracker.tree.waiting and batch.seats > 0) else FOREVER

    def _decide(self, building: Generator[Asked, int, bool]) -> list[tuple[State, int]]:
        """Answer every question, and return the decisions that took effect."""
        decisions: list[tuple[State, int]] = []
        try:
            _, state = next(building)
            while True:
                decisions.append((state, self.table.choose(state)))
                _, state = building.send(decisions[-1][1])
        except StopIteration as end:
            return decisions[:-1] if end.value else decisions
