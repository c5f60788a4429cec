"""Checks for the per-request columns of an instance: each refuses a bad cell by name, index, value and limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from opt.core.errors import InstanceError

__all__ = ["ABSENT", "FloatArray", "IntArray", "Label", "floats", "frozen", "integers", "labels", "unique_ids"]

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Label: TypeAlias = str | int
Cell = TypeVar("Cell", bound=np.generic)

ABSENT = -1  # marks a request without a value in an optional integer column; NaN does so in a float column


def frozen(array: npt.NDArray[Cell]) -> npt.NDArray[Cell]:
    """Return a read-only view of `array`."""
    view = array.view()
    view.flags.writeable = False
    return view


def integers(name: str, values: npt.ArrayLike, n: int | None, low: int, high: int, *, optional: bool = False) -> IntArray:
    """Return `values` as read-only int64 of length `n`, each within `low..high` (or `ABSENT` when `optional`).

    Raises:
        InstanceError: a value is no integer (booleans and fractions included) or out of range; it is named by index.
    """
    if optional and isinstance(values, Sequence):
        values = [ABSENT if value is None else value for value in values]
    array = _array(name, values)
    if array.dtype.kind not in "iu" or (isinstance(values, Sequence) and bool in set(map(type, values))):
        cells = list(values) if isinstance(values, Sequence) else array.tolist()
        for at, cell in enumerate(cells):
            if type(cell) is not int or not (low <= cell <= high or (optional and cell == ABSENT)):
                _refuse_cell(name, cells, low, high, at)
        array = np.array(cells, np.int64)
    _check_length(name, array, n)
    bad = (array < low) | (array > high)
    if optional:
        bad &= array != ABSENT
    if bad.any():
        _refuse_cell(name, array.tolist(), low, high, int(np.flatnonzero(bad)[0]))
    return frozen(array.astype(np.int64))


def floats(name: str, values: npt.ArrayLike, n: int, *, minimum: float, optional: bool) -> FloatArray:
    """Return `values` as read-only float64 of length `n`, each finite and at least `minimum`.

    Where `optional`, None or NaN means that the request has no value, and `minimum` itself is excluded.
    """
    if optional and isinstance(values, Sequence):
        values = [np.nan if value is None else value for value in values]
    array = _array(name, values)
    if array.size and array.dtype.kind not in "iuf":
        raise InstanceError(f"{name}: every value must be a number of seconds, got {array.ravel()[0]!r}")
    _check_length(name, array, n)
    array = array.astype(np.float64)
    good = np.isnan(array) | (np.isfinite(array) & (array > minimum)) if optional else np.isfinite(array) & (array >= minimum)
    if not good.all():
        at = int(np.flatnonzero(~good)[0])
        rule = f"a finite number {'>' if optional else '>='} {minimum:g}"
        raise InstanceError(f"{name}[{at}] = {array[at]}: must be {rule} (seconds)")
    return frozen(array)


def labels(name: str, values: Iterable[Label | None], n: int) -> tuple[Label | None, ...]:
    """Return `values` as a tuple of length `n` of strings, integers or None."""
    cells = tuple(values)
    if len(cells) != n:
        raise InstanceError(f"{name} has {len(cells)} values for {n} requests")
    for at, cell in enumerate(cells):
        if cell is not None and (isinstance(cell, bool) or not isinstance(cell, str | int)):
            raise InstanceError(f"{name}[{at}] = {cell!r}: must be a string or an integer")
    return cells


def unique_ids(ids: Sequence[Label] | None, n: int) -> Sequence[Label]:
    """Return the request ids (the indices when None), refusing one that names two requests.

    Raises:
        InstanceError: an id stands twice (compared as text, so 7 and "7" clash).
    """
    if isinstance(ids, np.ndarray):
        ids = ids.tolist()
    if ids is None or ids == range(n):
        return range(n)
    cells = labels("ids", ids, n)
    names = [str(cell) for cell in cells]
    if None in cells or len(set(names)) < n:
        seen: dict[str, int] = {}
        for at, name in enumerate(names):
            if cells[at] is None:
                raise InstanceError(f"ids[{at}] is missing: give every request an id, or none")
            if name in seen:
                raise InstanceError(f"ids[{at}] = {name!r}: already the id of request {seen[name]}; ids must be unique")
            seen[name] = at
    return tuple(cell for cell in cells if cell is not None)


def _array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise InstanceError(f"{name}: not a list of numbers ({error})") from None
    if array.ndim != 1:
        raise InstanceError(f"{name}: must be one list of numbers, one for each request, got shape {array.shape}")
    return array


def _check_length(name: str, array: npt.NDArray[Any], n: int | None) -> None:
    if n is not None and len(array) != n:
        raise InstanceError(f"{name} has {len(array)} values for {n} requests")


def _refuse_cell(name: str, cells: list[Any], low: int, high: int, at: int) -> NoReturn:
    raise InstanceError(f"{name}[{at}] = {cells[at]!r}: must be an integer from {low} to {high}")
