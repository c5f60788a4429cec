"""The formers as policies; their names are in `opt.sim.policies.POLICIES`."""

from __future__ import annotations

from opt.serve.feather.analytic import Analytic
from opt.serve.feather.bandit import Bandit
from opt.serve.feather.loop import Former, Loop
from opt.serve.feather.plain import Oracle, Plain
from opt.serve.feather.seeded import Seeded
from opt.serve.feather.tracker import Tracker
from opt.sim.config import EngineConfig
from opt.sim.engine import Policy
from opt.sim.workload import Requests

__all__ = ["MAX_WAIT_S", "analytic", "bandit", "oracle", "plain", "seeded"]

MAX_WAIT_S, OVERTAKE = 30.0, 0.5


def _policy(former: Former, requests: Requests, name: str) -> Policy:
    return Policy(Loop(former, Tracker.of(requests)).decide, name=name)


def bandit(requests: Requests, config: EngineConfig, *, seed: int = 0) -> Policy:
    """Return Feather's bandit, cold."""
    return _policy(Bandit(), requests, "feather-bandit")


def plain(requests: Requests, config: EngineConfig, *, seed: int = 0, threshold: int | None = None) -> Policy:
    """Return the tree's order: fewest missing chunks first, while at most `threshold` are missing (None: all)."""
    if threshold is not None and not (isinstance(threshold, int) and threshold >= 0):
        raise ValueError(f"threshold = {threshold!r}: must be a whole number of chunks, at least 0")
    return _policy(Plain(threshold), requests, "feather-cht")


def oracle(requests: Requests, config: EngineConfig, *, seed: int = 0) -> Policy:
    """Return the policy that knows the groups (the requests' `client`) and serves one at a time."""
    return _policy(Oracle(requests.client or (None,) * requests.n), requests, "feather-oracle")


def analytic(
    requests: Requests, config: EngineConfig, *, seed: int = 0, max_wait_s: float = MAX_WAIT_S, overtake: float = OVERTAKE
) -> Policy:
    """Return the former that weighs groups by the cost model; see `opt.serve.feather.analytic`."""
    return _policy(_analytic(max_wait_s, overtake), requests, "feather-analytic")


def seeded(
    requests: Requests, config: EngineConfig, *, seed: int = 0, max_wait_s: float = MAX_WAIT_S, overtake: float = OVERTAKE
) -> Policy:
    """Return the bandit that starts from the analytic decisions; see `opt.serve.feather.seeded`."""
    return _policy(Seeded(_analytic(max_wait_s, overtake)), requests, "feather-seeded")


def _analytic(max_wait_s: float, overtake: float) -> Analytic:
    if not (isinstance(max_wait_s, int | float) and max_wait_s > 0):
        raise ValueError(f"max_wait_s = {max_wait_s!r}: must be above 0 seconds")
    if not (isinstance(overtake, int | float) and 0 <= overtake < 1):
        raise ValueError(f"overtake = {overtake!r}: must be at least 0 and below 1, or nobody's wait is bounded")
    return Analytic(float(max_wait_s), float(overtake))
