"""The bandit's decision as a Gymnasium environment, for whoever wants to train something else on it (extra `[rl]`).

Observation: the bandit's state, shifted to be non-negative: (min(B div 4, 10), 5 + clipped loss, min(w div 4, 10)).
Action: 0 stops, 1 adds the candidate. Reward: minus the seconds until the next open decision (or the end), so the return
of an episode is minus the time that all requests take from the first decision on. `info` has the seconds and the candidate,
and at the end how many requests were completed, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from opt.core.cost import CostModel
from opt.core.instance import Instance
from opt.serve.feather.bandit import ADD, STOP, Asked, build
from opt.serve.feather.loop import begin
from opt.serve.feather.tracker import Tracker
from opt.sim.batch import FOREVER, Batch, View
from opt.sim.config import EngineConfig
from opt.sim.engine import Engine, Policy
from opt.sim.workload import workload

try:
    import gymnasium
except ImportError as error:  # pragma: no cover - the extra is there where this is tested
    raise ImportError("the environment needs gymnasium: pip install 'kvopt[rl]'") from error

__all__ = ["BatchFormer"]

Observation: TypeAlias = npt.NDArray[np.int64]


class _Pause(Exception):  # noqa: N818 - no error: the engine waits for a decision, and nothing has happened yet
    pass


class BatchFormer(gymnasium.Env[Observation, int]):  # type: ignore[misc]  # not looked into, see pyproject.toml
    """Add or stop, for one candidate after another.

    Args:
        make: from a seed to the requests of an episode; `reset(seed=...)` passes the seed on, 0 by default.
        cost: how long steps take.
        engine: its settings.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(self, make: Callable[[int], Instance], cost: CostModel, engine: EngineConfig | None = None) -> None:
        self.observation_space = gymnasium.spaces.MultiDiscrete([11, 11, 11])
        self.action_space = gymnasium.spaces.Discrete(2)
        self._make, self._cost, self._config = make, cost, engine or EngineConfig()
        self._game: Generator[Asked, int, None] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode, and run to its first open decision."""
        super().reset(seed=seed)
        instance = self._make(0 if seed is None else seed)
        load = workload(instance, lengths="none")
        self._batch: Batch | None = None
        self._engine = Engine(load, Policy(self._decide), self._config, self._cost, kv_tokens=instance.memory)
        self._engine.submit(range(instance.n))
        self._game = self._play(Tracker.of(load.requests))
        asked = next(self._game, None)
        return self._seen(asked), self._info(asked, 0.0)

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take an action, and run to the next open decision.

        Raises:
            ValueError: the action is neither 0 nor 1, or no episode is under way.
        """
        if action not in (STOP, ADD):
            raise ValueError(f"action = {action!r}: must be 0 (stop) or 1 (add)")
        if self._game is None:
            raise ValueError("no episode is under way: call reset() first")
        before = self._engine.now
        asked: Asked | None
        try:
            asked = self._game.send(int(action))
        except StopIteration:
            asked, self._game = None, None
        spent = self._engine.now - before
        return self._seen(asked), -spent, asked is None, False, self._info(asked, spent)

    def _decide(self, view: View) -> Batch:
        batch, self._batch = self._batch, None
        if batch is None:
            raise _Pause
        return batch

    def _play(self, tracker: Tracker) -> Generator[Asked, int, None]:
        """Run steps, and yield every open decision within them."""
        engine = self._engine
        while True:
            try:
                engine.step()
            except _Pause:
                batch = begin(engine.view)
                if not batch.preempted:
                    yield from build(engine.view, batch, tracker)
                    batch.repeat = FOREVER if not batch.chunks and not len(engine.waiting) else 1
                self._batch = batch
                continue
            if not engine.busy:
                return

    def _seen(self, asked: Asked | None) -> Observation:
        bucket, loss, sharers = (0, 0, 0) if asked is None else asked[1]
        return np.array([bucket, loss + 5, sharers], np.int64)

    def _info(self, asked: Asked | None, spent: float) -> dict[str, Any]:
        over = {"completed": self._engine.completed, "end_s": self._engine.now} if asked is None else {"candidate": asked[0]}
        return {"seconds": spent, **over}
