"""Instance and plan files: read strictly, written the same everywhere. See `instances/README.md` for the format.

A file is JSON, `.gz` or not. Unknown and duplicate keys, NaN, and numbers that are no integers or out of range are
errors that name their place (`file: $.requests[3].prompt: ...`).
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from opt.core.certify import certify
from opt.core.columns import ABSENT, IntArray
from opt.core.errors import CertificateError, InstanceError
from opt.core.instance import LABELS, SECONDS, TOKENS, Instance
from opt.core.model import Bound, KvMode, Proposal, Result
from opt.core.source import STDIN, TraceSource
from opt.core.strict_json import compact, load_json, pretty, strictly, write_bytes

__all__ = [
    "Plan",
    "digest",
    "plan_of",
    "read",
    "read_instance",
    "read_plan",
    "to_json",
    "verify",
    "write",
]

INSTANCE_FORMAT = "kvopt-instance/1"
PLAN_FORMAT = "kvopt-plan/1"
FRACTION = re.compile(r"-?\d{1,4000}(/0*[1-9]\d{0,4000})?", re.ASCII)
ROWS_UP_TO = 50  # requests; small files list requests one by one for human eyes, larger ones go by columns

Label = str | int | None


class _Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    prompt: int
    output: int
    id: str | int | None = None
    arrival: int | None = None
    arrival_s: float | None = None
    prefix: list[int] | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    priority: int | None = None
    max_output: int | None = None
    predicted: int | None = None
    predicted_low: int | None = None
    predicted_high: int | None = None
    session: Label = None
    client: Label = None


class _Columns(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    prompt: list[int]
    output: list[int]
    id: list[str | int] | None = None
    arrival: list[int] | None = None
    arrival_s: list[float] | None = None
    prefix: list[list[int]] | None = None
    ttft_s: list[float | None] | None = None
    tpot_s: list[float | None] | None = None
    itl_s: list[float | None] | None = None
    priority: list[int | None] | None = None
    max_output: list[int | None] | None = None
    predicted: list[int | None] | None = None
    predicted_low: list[int | None] | None = None
    predicted_high: list[int | None] | None = None
    session: list[Label] | None = None
    client: list[Label] | None = None


class _InstanceFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: Literal["kvopt-instance/1"]
    memory: int
    name: str = ""
    requests: list[_Request] | None = None
    columns: _Columns | None = None
    prefix_chunk: int | None = None
    origin: dict[str, Any] = {}


class _Ref(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    path: str
    sha256: str


class _BoundFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    method: str
    value: str
    certificate: dict[str, Any] = {}
    kv: Literal["separate", "shared"] = "separate"


class _PlanFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: Literal["kvopt-plan/1"]
    start: list[int]
    solver: str = ""
    kv: Literal["separate", "shared"] = "separate"
    instance: _InstanceFile | None = None
    instance_ref: _Ref | None = None
    bound: _BoundFile | None = None


@dataclass(frozen=True)
class Plan:
    """Starts for an instance and the bound they are held against, as a file has them: nothing checked yet.

    Args:
        instance: the requests.
        start: (n,) rounds.
        solver: who made it.
        kv: the memory mode it is meant for.
        bound: a lower bound with its certificate, or None.
    """

    instance: Instance
    start: IntArray
    solver: str = ""
    kv: KvMode = "separate"
    bound: Bound | None = None


def read(source: TraceSource) -> Instance | Plan:
    """Return the instance or the plan in a kvopt file; `-` is standard input.

    Raises:
        InstanceError: unreadable, not one of the two formats, or a value is wrong; the message names the place.
    """
    place, data = load_json(source)
    kind = data.get("format") if isinstance(data, dict) else None
    if kind == PLAN_FORMAT:
        return _plan(place, data, _folder(source))
    return _instance(place, data)


def read_instance(source: TraceSource, *, oversized: Literal["error", "drop"] = "error") -> Instance:
    """Return the instance in a file; "drop" leaves out and counts requests that exceed the memory."""
    return _instance(*load_json(source), oversized=oversized)


def read_plan(source: TraceSource) -> Plan:
    """Return the plan in a file. A referenced instance is read too, and must have the recorded hash."""
    place, data = load_json(source)
    return _plan(place, data, _folder(source))


def _folder(source: TraceSource) -> Path:
    return Path(source).parent if isinstance(source, str | Path) and source != STDIN else Path()


def _convert(place: str, data: Any, kind: Any) -> Any:
    if not isinstance(data, dict) or "format" not in data:
        raise InstanceError(f'{place}: not a kvopt file: a JSON object with "format": "{INSTANCE_FORMAT}" or "{PLAN_FORMAT}"')
    wanted, other = (INSTANCE_FORMAT, PLAN_FORMAT) if kind is _InstanceFile else (PLAN_FORMAT, INSTANCE_FORMAT)
    if data["format"] == other:
        raise InstanceError(f"{place}: this is a {other} file, and {wanted} is needed")
    return strictly(place, data, kind)


def _instance(place: str, data: Any, *, oversized: Literal["error", "drop"] = "error") -> Instance:
    return _build(place, _convert(place, data, _InstanceFile), oversized)


def _build(place: str, file: _InstanceFile, oversized: Literal["error", "drop"] = "error") -> Instance:
    if (file.requests is None) == (file.columns is None):
        raise InstanceError(f"{place}: give the requests either as `requests` (a list) or as `columns`")
    cells = _from_rows(place, file.requests) if file.requests is not None else _from_columns(file.columns)
    try:
        return Instance(
            file.memory, **cells, prefix_chunk=file.prefix_chunk, name=file.name, origin=file.origin, oversized=oversized
        )
    except InstanceError as error:
        raise InstanceError(f"{place}: {error}") from None


def _from_columns(columns: _Columns | None) -> dict[str, Any]:
    cells = {key: cell for key, cell in msgspec.structs.asdict(columns).items() if cell is not None} if columns else {}
    if "id" in cells:
        cells["ids"] = cells.pop("id")
    return cells


def _from_rows(place: str, requests: list[_Request]) -> dict[str, Any]:
    """Return the columns of a list of requests; a required-for-all field that only some have is an error."""
    cells: dict[str, Any] = {}
    for key in _Request.__struct_fields__:
        column = [getattr(request, key) for request in requests]
        missing = column.count(None)
        if missing == len(column) and key not in ("prompt", "output"):
            continue
        if missing and key in ("id", "arrival", "arrival_s", "prefix"):
            raise InstanceError(
                f"{place}: $.requests[{column.index(None)}]: lacks {key}, which others have; give it to all or none"
            )
        cells["ids" if key == "id" else key] = column
    return cells


def _plan(place: str, data: Any, folder: Path) -> Plan:
    file: _PlanFile = _convert(place, data, _PlanFile)
    if (file.instance is None) == (file.instance_ref is None):
        raise InstanceError(f"{place}: a plan has either `instance` or `instance_ref`")
    if file.instance is not None:
        instance = _build(f"{place}: $.instance", file.instance)
    else:
        assert file.instance_ref is not None
        instance = read_instance(folder / file.instance_ref.path)
        if digest(instance) != file.instance_ref.sha256:
            raise CertificateError(
                f"{place}: the plan was made for another version of {file.instance_ref.path} (its hash differs)"
            )
    try:
        start = np.array(file.start, np.int64)
    except OverflowError:
        raise InstanceError(f"{place}: $.start: a round is out of range (64 bits)") from None
    return Plan(instance, start, file.solver, file.kv, _bound(place, file.bound))


def _bound(place: str, file: _BoundFile | None) -> Bound | None:
    if file is None:
        return None
    if FRACTION.fullmatch(file.value) is None:
        raise InstanceError(f"{place}: $.bound.value = {file.value[:60]!r}: must be a fraction such as 7/2")
    return Bound(Fraction(file.value), file.method, file.kv, file.certificate)


def to_json(instance: Instance) -> dict[str, Any]:
    """Return an instance as the JSON value of its file."""
    head: dict[str, Any] = {"format": INSTANCE_FORMAT, "name": instance.name, "memory": instance.memory}
    if instance.prefix_chunk is not None:
        head["prefix_chunk"] = instance.prefix_chunk
    columns = _to_columns(instance)
    if 0 < instance.n <= ROWS_UP_TO:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        body: dict[str, Any] = {"requests": [{k: cell for k, cell in row.items() if cell is not None} for row in rows]}
    else:
        body = {"columns": columns}
    return {**head, "origin": instance.origin, **body}


def _to_columns(instance: Instance) -> dict[str, list[Any]]:
    cells = instance.columns()
    columns: dict[str, list[Any]] = {"id": list(cells["ids"])} if "ids" in cells else {}
    for key in ("arrival", "arrival_s", "prompt", "output", *SECONDS, "priority", *TOKENS, *LABELS):
        if key in cells:
            column = cells[key].tolist() if isinstance(cells[key], np.ndarray) else list(cells[key])
            if key in SECONDS:
                column = [None if math.isnan(cell) else cell for cell in column]
            elif key in TOKENS:
                column = [None if cell == ABSENT else cell for cell in column]
            columns[key] = column
    rows = instance.prefix_rows()
    if rows is not None:
        columns["prefix"] = rows
    return columns


def digest(instance: Instance) -> str:
    """Return the SHA-256 of an instance's canonical JSON: by columns, keys sorted, no spaces, ids always written out.

    Row files, column files and packed copies of the same requests have the same digest. The name and the origin
    belong to it.
    """
    columns = {"id": list(instance.ids), **_to_columns(instance)}
    value = {"name": instance.name, "memory": instance.memory, "prefix_chunk": instance.prefix_chunk, "origin": instance.origin}
    return hashlib.sha256(compact({**value, "columns": columns}, sort=True)).hexdigest()


def plan_of(result: Result) -> Plan:
    """Return the plan of a certified result.

    Raises:
        ValueError: the result has no schedule.
    """
    if result.schedule is None:
        raise ValueError(f"{result.solver} found no schedule, so there is no plan to write")
    schedule = result.schedule
    return Plan(schedule.instance, schedule.start, result.solver, schedule.kv, result.bound)


def write(thing: Instance | Plan | Result, path: str | Path, *, instance_path: str | Path | None = None) -> None:
    """Write an instance, a plan or a result's plan; `-` is standard output, and a name ending in .gz is packed.

    Args:
        thing: what to write.
        path: where; a file is replaced only when the new one is complete.
        instance_path: the instance's own file. The plan then refers to it, by a path relative to the plan and its
            hash, instead of containing it.
    """
    if isinstance(thing, Instance):
        value = to_json(thing)
    else:
        value = _plan_json(plan_of(thing) if isinstance(thing, Result) else thing, Path(path), instance_path)
    write_bytes(pretty(value), path)


def _plan_json(plan: Plan, path: Path, instance_path: str | Path | None) -> dict[str, Any]:
    value: dict[str, Any] = {"format": PLAN_FORMAT}
    if instance_path is None or str(path) == STDIN:
        value["instance"] = to_json(plan.instance)
    else:
        relative = os.path.relpath(Path(instance_path).resolve(), path.resolve().parent)
        value["instance_ref"] = {"path": Path(relative).as_posix(), "sha256": digest(plan.instance)}
    value |= {"solver": plan.solver, "kv": plan.kv, "start": plan.start.tolist()}
    if plan.bound is not None:
        bound = plan.bound
        fraction = f"{bound.value.numerator}/{bound.value.denominator}"
        value["bound"] = {"method": bound.method, "value": fraction, "kv": bound.kv, "certificate": dict(bound.certificate)}
    return value


def verify(plan: Plan | Result | str | Path) -> Result:
    """Return the certified result of a plan: memory, objective and bound re-derived from the file alone.

    Raises:
        CertificateError: the plan is not feasible, or its bound is not proved by its certificate.
        InstanceError: the file is not a plan.
    """
    if isinstance(plan, str | Path):
        plan = read_plan(plan)
    if isinstance(plan, Result):
        plan = plan_of(plan)
    return certify(plan.instance, Proposal(plan.start, bound=plan.bound, kv=plan.kv), solver=plan.solver)
