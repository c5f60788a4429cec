"""From files to a cost model that says how good it is: fit on all, error on withheld halves, what the chip allows."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from opt.core.capacity import GPUS, MODELS, capacity, named
from opt.core.cost.load import Load
from opt.core.cost.model import CostModel, Form
from opt.core.cost.plausible import Check, checks
from opt.core.cost.shapes import shape_of
from opt.core.errors import InstanceError
from opt.fit.fitting import FEWEST, fit_iterations
from opt.fit.holdout import PAIRS, SPLITS, Errors, held_out, held_out_log
from opt.fit.iterations import Iterations, compose
from opt.fit.log import Log
from opt.fit.operators import Dense, Operators, operators_of
from opt.fit.tables import Table

__all__ = ["LIMITS", "Setting", "fit_log", "fit_tables", "setting"]

# Iterations an engine may run: up to 16,384 tokens of prefill and 256 decodes; no other limit.
LIMITS = Load(prefill_tokens=16384, decodes=256)

SPLIT = (
    "half of the measured attention points train, the other half tests (the dense points serve both), 4 random splits pooled; "
    "weight 40 % decodes alone, 40 % prefill alone, 20 % mixed; relative error"
)
SPLIT_LOG = "half of the iterations of each kind train, the other half tests, 4 random splits pooled; relative error"


HELD = {"KV reads": "per_kv_token", "prefill attention": "per_pair"}  # a check, and the term that can be held at the peak
SLACK = 1.5  # times the peak: what a cache, or terms that rise together and share their time, explain
ABOVE = 1 + 1e-5  # so that rounding to six digits keeps a held term possible


@dataclasses.dataclass(frozen=True)
class Physical:
    """A fit, the terms held at the chip's peak with their seconds, and what it still asks beyond the peak."""

    model: CostModel
    least: Mapping[str, float]
    wrong: Sequence[Check]

    def checked(self) -> CostModel:
        """Return the model, or refuse it.

        Raises:
            InstanceError: with the implied figures and the peaks.
        """
        if self.wrong:
            said = "; ".join(str(check) for check in self.wrong)
            raise InstanceError(f"{self.model.name}: {said}. Check the machine (gpu, tp, model) and the units of the times")
        return self.model


def physical(fit: Callable[..., CostModel]) -> Physical:
    """Return a fit within what the chip has, as far as it goes.

    A small KV cache read from L2, or terms that rise together and share their time, make a price come out below what the
    peak allows; such a term is held at the peak and all others are fitted again. What exceeds the peak by more is wrong.
    """
    model = fit()
    beyond = [check for check in checks(model) if not check.possible]
    holdable = [check for check in beyond if check.what in HELD and check.implied <= SLACK * check.peak]
    if not holdable or len(holdable) < len(beyond):
        return Physical(model, {}, beyond)
    least = {HELD[check.what]: model.terms[HELD[check.what]] * check.implied / check.peak * ABOVE for check in holdable}
    model = fit(least=least)
    return Physical(model, least, [check for check in checks(model) if not check.possible])


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is needed to make iterations of operator tables: the measured parts, the KV capacity, the machine."""

    operators: Operators
    memory: int
    machine: Mapping[str, Any]

    def errors(self, form: Form, *, splits: range = range(SPLITS), thin: bool = False) -> Errors:
        """Return the held-out errors of a form, over splits with these seeds; `thin` withholds half of the dense points too."""
        least = self.fitted(form, name="held out").least
        return held_out(self.operators, form, limits=LIMITS, memory=self.memory, splits=splits, thin=thin, least=least)

    def fitted(self, form: Form, **fields: Any) -> Physical:
        """Return the fit of a form to all points, within what the chip has."""
        mixing, machine = self.operators.joint, fields.pop("machine", self.machine)
        return physical(partial(fit_iterations, self.iterations(), form, mixing=mixing, machine=machine, **fields))

    def iterations(self) -> Iterations:
        """Return the iterations of all measured points."""
        everything = np.arange(len(self.operators.attention.seconds))
        return compose(self.operators, everything, seed=0, pairs=PAIRS, limits=LIMITS, memory=self.memory)


def setting(tables: Sequence[Table], *, model: str, gpu: str, tp: int = 1, dense: Dense = "auto") -> Setting:
    """Return the operators of a model on a machine, with the KV capacity that `opt.core.capacity` counts.

    Raises:
        InstanceError: an unknown name, or a part that no table has.
    """
    gpu_key, model_key = named({**GPUS}, gpu), named(MODELS, model)
    if gpu_key is None or model_key is None:
        known, table = ("gpu", GPUS) if gpu_key is None else ("model", MODELS)
        raise InstanceError(f"{known} {gpu if gpu_key is None else model!r} is not known; known: {', '.join(table)}")
    operators = operators_of(tables, shape_of(model_key, tp), tp, dense=dense)
    memory = capacity(MODELS[model_key], GPUS[gpu_key], tp=tp).tokens
    return Setting(operators, memory, {"gpu": gpu_key, "model": model_key, "tp": tp, "dtype": "bf16"})


def fit_tables(
    tables: Sequence[Table],
    form: Form,
    *,
    name: str,
    model: str,
    gpu: str,
    tp: int = 1,
    dense: Dense = "auto",
    origin: Mapping[str, Any] | None = None,
    engine: str = "kernels of the tables, no host time",
) -> CostModel:
    """Return the cost model of a form, fitted on all measured points, with its held-out error.

    Args:
        tables: as read by `read_table`; which part comes from which is decided by their kinds.
        form: one of `opt.core.cost.FORMS`.
        name: kept in the model.
        model, gpu, tp: which rows of the tables, and the KV capacity.
        dense: `vidur` or `products` for the matrix products; `auto` takes Vidur's where they are of the same sizes.
        origin, engine: kept in the model beside the tables' hashes.

    Raises:
        InstanceError: as `setting`, or the fit asks more of the chip than it has.
    """
    made = setting(tables, model=model, gpu=gpu, tp=tp, dense=dense)
    sources = [{"file": Path(table.place).name, "kind": table.kind, "sha256": table.sha256} for table in tables]
    fields: dict[str, Any] = {
        "memory": made.memory,
        "machine": {**made.machine, "engine": engine},
        "origin": {**_stamp(), **(origin or {}), "tables": sources},
    }
    fitted = made.fitted(form, name=name, **fields).checked()
    return dataclasses.replace(fitted, error={"split": SPLIT, "held_out": made.errors(form).summary()})


def fit_log(
    logs: Sequence[Log], form: Form, *, name: str, machine: Mapping[str, Any] | None = None, memory: int | None = None
) -> CostModel:
    """Return the cost model of a form, fitted on all iterations of the logs, with its held-out error.

    Args:
        logs: of one machine; the first one's description is kept.
        form, name: as in `fit_tables`.
        machine: overrides what the log says.
        memory: KV capacity in tokens, if known.
    """
    iterations = logs[0].iterations
    for log in logs[1:]:
        rows = np.concatenate([iterations.rows, log.iterations.rows])
        iterations = type(iterations)(rows, np.concatenate([iterations.seconds, log.iterations.seconds]))
    fields: dict[str, Any] = {"machine": {**logs[0].machine, **(machine or {})}, "memory": memory}
    fields["origin"] = {**_stamp(), **logs[0].origin}
    fit = physical(partial(fit_iterations, iterations, form, mixing=True, name=name, **fields))
    if len(iterations) < 2 * FEWEST:
        return fit.checked()
    error = {"split": SPLIT_LOG, "held_out": held_out_log(iterations, form, mixing=True, least=fit.least).summary()}
    return dataclasses.replace(fit.checked(), error=error)


def _stamp() -> dict[str, Any]:
    return {"fitted": datetime.date.today().isoformat(), "by": f"kvopt {importlib.metadata.version('kvopt')}"}
