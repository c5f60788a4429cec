"""Cost files, format `kvopt-cost/1`: JSON, read strictly; the keys are the fields of `CostModel`."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from opt.core.cost.model import CostModel, Form
from opt.core.errors import InstanceError
from opt.core.source import TraceSource
from opt.core.strict_json import as_json, load_as, write_bytes

__all__ = ["COST_FORMAT", "read_cost", "write_cost"]

COST_FORMAT = "kvopt-cost/1"
NUMBERS = re.compile(r"\[\s*([-+.\de]+),\s*([-+.\de]+)\s*\]")  # a pair of numbers, put on one line


class _CostFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: Literal["kvopt-cost/1"]
    name: str
    form: Form
    terms: dict[str, float]
    knots: list[tuple[float, float]] = []
    exponent: float = 1.0
    decode_knee: float = 0.0
    locality: float = 1.0
    valid: dict[str, tuple[float, float]] = {}
    memory: int | None = None
    machine: dict[str, Any] = {}
    error: dict[str, Any] = {}
    origin: dict[str, Any] = {}


def read_cost(source: TraceSource) -> CostModel:
    """Return the cost model in a file; `-` is standard input.

    Raises:
        InstanceError: unreadable, another format, an unknown key, or a value out of range; the message names the place.
    """
    place, file = load_as(source, _CostFile, COST_FORMAT, "a cost file")
    fields = msgspec.structs.asdict(file)
    fields.pop("format")
    try:
        return CostModel(**{**fields, "knots": tuple(file.knots)})
    except InstanceError as error:
        raise InstanceError(f"{place}: {error}") from None


def write_cost(model: CostModel, path: str | Path) -> None:
    """Write a cost model to a file, `-` for standard output; fields at their defaults are left out."""
    fields = {field.name: field for field in dataclasses.fields(CostModel)}
    value: dict[str, Any] = {"format": COST_FORMAT}
    for name, field in fields.items():
        held = getattr(model, name)
        default = {} if field.default_factory is not dataclasses.MISSING else field.default
        if held != default:
            value[name] = dict(held) if isinstance(default, dict) else held
    text = NUMBERS.sub(r"[\1, \2]", as_json(value).decode())
    write_bytes(text.encode(), path)
