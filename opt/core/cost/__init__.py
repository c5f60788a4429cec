"""Cost models: what an iteration does (`Load`), how long it takes (`CostModel`), and presets (`COSTS`).

>>> from opt.core.cost import UNIT, batch
>>> UNIT.seconds(batch(chunks=[(512, 0)], lengths=[100, 200]))
1.0
"""

from __future__ import annotations

from opt.core.cost.files import read_cost, write_cost
from opt.core.cost.load import Load, batch
from opt.core.cost.model import FORMS, UNIT, CostModel
from opt.core.cost.registry import COSTS, cost_model

__all__ = ["COSTS", "FORMS", "UNIT", "CostModel", "Load", "batch", "cost_model", "read_cost", "write_cost"]
