"""The visible dictionary of cost models, each read when it is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from opt.core.cost.files import read_cost
from opt.core.cost.model import UNIT, CostModel
from opt.core.errors import InstanceError

__all__ = ["COSTS", "PRESETS", "cost_model", "summary"]

PRESETS = Path(__file__).parent / "presets"

COSTS: dict[str, Callable[[], CostModel]] = {
    "unit": lambda: UNIT,
    **{path.stem: partial(read_cost, path) for path in sorted(PRESETS.glob("*.json"))},
}


def cost_model(name: str | Path | CostModel) -> CostModel:
    """Return a cost model by its name in `COSTS`, from a cost file, or as it is.

    Raises:
        InstanceError: neither a name nor a readable cost file.
    """
    if isinstance(name, CostModel):
        return name
    if str(name) in COSTS:
        return COSTS[str(name)]()
    if Path(name).exists() or str(name) == "-" or str(name).endswith((".json", ".json.gz")):
        return read_cost(name)
    longer = [known for known in COSTS if known.startswith(str(name).lower())]
    close = longer[:3] or difflib.get_close_matches(str(name), list(COSTS), 3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise InstanceError(f"cost {str(name)!r} is neither a name nor a file{hint} (`kvopt list costs` shows all names)")


def summary(name: str) -> str:
    """Return one line about a cost model: machine, what the chip cannot do, KV capacity, held-out error or source."""
    from opt.core.cost.plausible import checks

    model = COSTS[name]()
    machine, error = model.machine, model.error.get("held_out")
    wrong = [f"{check.what} at {check.implied / check.peak:.1f} times the peak" for check in checks(model) if not check.possible]
    said = [f"{machine['model']} on {machine.get('tp', 1)} x {machine['gpu']}"] if machine else []
    said += [f"IMPOSSIBLE: {', '.join(wrong)}"] if wrong else []
    said += [f"KV capacity {model.memory:,}"] if model.memory else []
    source = str(model.origin["source"]).partition(";")[0]
    said += [f"held-out error {error['median']:.1%} median, {error['p95']:.1%} P95" if error else source]
    return "; ".join(said)
