"""What a user may set, read from the engine's own configuration; wrong names and values are refused when it starts."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

__all__ = ["Settings", "settings_from"]


@dataclass(frozen=True)
class Settings:
    """The plug-in's settings.

    Args:
        predictor: what stands for a missing hint: "quantile" of the outputs seen so far, or the "limit" `max_tokens`.
        quantile: which one.
        look_ahead: admit only who fits beside the running ones also in all steps to come, as expected.
        patience_s: who has waited longer goes first, oldest first, so nobody starves.
        seed: for the order `random`.
        cost: for token budgets and prefix groups: a name that `kvopt list costs` shows, or a cost file.
        tpot_s: for token budgets: the target of requests that bring none; None for no target.
        bank: for token budgets: time that earlier tokens have saved may be spent.
        least_chunk: for token budgets: prompt tokens that a step may take even if no time is left; 0 lets prompts wait.
        locality: for prefix groups: the price of a repeated read of a shared token, from 0 to 1; the cost's own by default.
        shared_reads, cache_tokens: for prefix groups: which repeated reads are cheap, as in `opt.sim.config`.
        chunk: for prefix groups: tokens by which prompts are told apart, rounded down to whole blocks.

    Raises:
        ValueError: a value is out of range.
    """

    predictor: str = "quantile"
    quantile: float = 0.75
    look_ahead: bool = True
    patience_s: float = 120.0
    seed: int = 0
    cost: str = ""
    tpot_s: float | None = None
    bank: bool = True
    least_chunk: int = 16
    locality: float | None = None
    shared_reads: Literal["each", "all"] = "each"
    cache_tokens: int | None = None
    chunk: int = 128

    def __post_init__(self) -> None:
        if self.predictor not in ("quantile", "limit"):
            raise ValueError(f"kvopt: predictor = {self.predictor!r}: must be quantile or limit")
        if not _number(self.quantile) or not 0 < self.quantile <= 1:
            raise ValueError(f"kvopt: quantile = {self.quantile!r}: must be above 0 and at most 1")
        if not _number(self.patience_s) or not self.patience_s > 0:
            raise ValueError(f"kvopt: patience_s = {self.patience_s!r}: must be a number of seconds above 0")
        if self.tpot_s is not None and not (_number(self.tpot_s) and 0 < self.tpot_s < math.inf):
            raise ValueError(f"kvopt: tpot_s = {self.tpot_s!r}: must be a number of seconds above 0")
        for name in ("look_ahead", "bank"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"kvopt: {name} = {getattr(self, name)!r}: must be true or false")
        if self.locality is not None and not (_number(self.locality) and 0 <= self.locality <= 1):
            raise ValueError(f"kvopt: locality = {self.locality!r}: must be from 0 to 1")
        if self.shared_reads not in ("each", "all"):
            raise ValueError(f"kvopt: shared_reads = {self.shared_reads!r}: must be each or all")
        for name, least in (("seed", 0), ("least_chunk", 0), ("chunk", 1), ("cache_tokens", 1)):
            value = getattr(self, name)
            if value is None and name == "cache_tokens":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
                raise ValueError(f"kvopt: {name} = {value!r}: must be an integer from {least} to 2**31 - 1")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def settings_from(given: object) -> Settings:
    """Return the settings of a mapping; None or an empty one gives the defaults.

    Raises:
        ValueError: no mapping, an unknown name, or a value out of range.

    >>> settings_from({"quantile": 0.9}).quantile
    0.9
    """
    if not given:
        return Settings()
    if not isinstance(given, Mapping):
        raise ValueError(f"kvopt: settings = {given!r}: must be a mapping from names to values")
    known = [field.name for field in fields(Settings)]
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
            raise ValueError(f"kvopt: unknown setting {name!r}{hint}")
        values[name] = value
    return Settings(**values)
