"""The F-metric of a batch, F(X) = (sum of outputs in X) / |X|**2, and formers of batches that make it small.

F is Smith's rule for batches: a batch of k requests that together keep the memory busy for about (sum of outputs)/k
rounds and take k requests off the queue. X must be feasible when started together: sorted by output, longest first,
every prefix satisfies `s_(1) + .. + s_(k) + k * o_(k) <= memory` (the k-th request's last round).

* `exact_batches` finds the minimum of F by a dynamic program over (size, prompt tokens): pseudo-polynomial,
  `O(n * size * memory)` a batch.
* `fast_batches` is near-linear in n for the whole partition. It walks the requests still waiting along a fan of
  priority axes (output + lambda * prompt for a range of exchange rates lambda, and smallest prompt among outputs up to
  a cap), keeps the best prefix that fits, and improves it by exchanges. Its batches are trimmed, that is no
  member's removal lowers F, but nothing is promised about their distance from the minimum.

Source: Sorted-F and its batch formers are of Wang, Ye and Zhou (arXiv 2508.06133); the axes and exchanges here are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.instance import Instance
from opt.core.jit import compiled

__all__ = ["batch_f", "batch_fits", "exact_batches", "exact_work", "fast_batches"]

POWERS = 6  # exchange rates between output and prompt reach 2**-6 .. 2**6 times the ratio of their medians
CAPS = 16  # caps on the output, geometrically spaced
COARSE_FROM = 100_000  # requests; beyond, every other axis must do
MAX_TABLE = 2**31  # bytes
MISSES = 12  # requests that do not fit before a walk gives up
EXCHANGE_WORK = 50_000  # members times candidates up to which exchanges are tried; larger batches gain little
PATIENCE = 64  # a walk gives up once it has a quarter (and 16) more members than its best prefix
IMPROVE_UP_TO = 20_000  # requests; beyond, exchanges would dominate the run


def batch_f(instance: Instance, members: Iterable[int]) -> Fraction:
    """Return F of a batch, exact.

    >>> batch_f(Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3]), [1, 3])
    Fraction(2, 1)
    """
    outputs = instance.output[list(members)].tolist()
    return Fraction(sum(outputs), len(outputs) ** 2)


def batch_fits(instance: Instance, members: Iterable[int]) -> bool:
    """Return whether the batch can be started together within the memory."""
    at = np.array(sorted(members, key=lambda i: -instance.output[i]), np.int64)
    sizes = np.arange(1, len(at) + 1)
    return bool((np.cumsum(instance.prompt[at]) + sizes * instance.output[at] <= instance.memory).all())


def exact_work(instance: Instance) -> int:
    """Return the order of the steps of `exact_batches`: n/k batches of size about k, each n * k * memory steps."""
    largest = _largest_batch(instance.prompt, instance.output, instance.memory)
    return instance.n * (instance.memory + 1) * max(instance.n, largest)


def _largest_batch(prompt: IntArray, output: IntArray, memory: int) -> int:
    """Return an upper bound on the size of a batch that fits: k requests hold at least the k least prompts and k outputs."""
    if not len(prompt):
        return 0
    sizes = np.arange(1, len(prompt) + 1)
    return int(np.count_nonzero(np.cumsum(np.sort(prompt)) + sizes * output.min() <= memory))


def exact_batches(instance: Instance) -> IntArray:
    """Return the batch number of each request (n,): batch k minimises F over all feasible sets left by batches < k.

    Ties prefer the larger batch. Time and space grow with `n * memory * size of a batch`; see `exact_work`.

    Raises:
        ValueError: the table of the first batch would not fit in a sensible amount of memory.
    """
    table = instance.n * (_largest_batch(instance.prompt, instance.output, instance.memory) + 1) * (instance.memory + 1)
    if table > MAX_TABLE:
        raise ValueError(
            f"exact batches would need {table / 2**30:.0f} GiB for n = {instance.n}; use the fast former (former=fast)"
        )
    batch_of = np.full(instance.n, -1, np.int64)
    left = np.lexsort((instance.prompt, -instance.output))  # longest output first
    number = 0
    while len(left):
        largest = _largest_batch(instance.prompt[left], instance.output[left], instance.memory)
        chosen = _exact_batch(instance.prompt[left], instance.output[left], instance.memory, largest)
        batch_of[left[chosen]] = number
        left = left[~chosen]
        number += 1
    return batch_of


@compiled
def _exact_batch(prompt: IntArray, output: IntArray, memory: int, largest: int) -> npt.NDArray[np.bool_]:
    """Return the mask of a minimum-F batch of requests sorted by output, longest first.

    least[j, S] is the least sum of outputs of j requests with S prompt tokens that fit. Adding the next (shortest so
    far) request makes the set's only new condition S + s + (j + 1) * o <= memory.
    """
    n = len(prompt)
    far = np.int64(1) << np.int64(62)
    least = np.full((largest + 1, memory + 1), far)
    least[0, 0] = 0
    taken = np.zeros((n, largest + 1, memory + 1), np.bool_)
    for i in range(n):
        s, o = prompt[i], output[i]
        for j in range(min(i, largest - 1), -1, -1):
            for total in range(memory - s - (j + 1) * o + 1):
                value = least[j, total] + o
                if value < least[j + 1, total + s]:
                    least[j + 1, total + s] = value
                    taken[i, j + 1, total + s] = True
    size = prompt_sum = np.int64(0)
    best = far
    for j in range(1, largest + 1):
        at = np.argmin(least[j])
        if least[j, at] < far and (size == 0 or least[j, at] * size * size <= best * j * j):
            best, size, prompt_sum = least[j, at], np.int64(j), np.int64(at)
    chosen = np.zeros(n, np.bool_)
    for i in range(n - 1, -1, -1):
        if size > 0 and taken[i, size, prompt_sum]:
            chosen[i] = True
            size -= 1
            prompt_sum -= prompt[i]
    return chosen


def fast_batches(instance: Instance) -> IntArray:
    """Return the batch number of each request (n,), each batch feasible, trimmed and of small F, near-linear in n."""
    n, prompt, output = instance.n, instance.prompt, instance.output
    if n == 0:
        return np.zeros(0, np.int64)
    rate = np.median(output) / (np.median(prompt) + 1.0)
    keys = [output + 0.0, prompt + output / (2.0 * instance.memory)]
    step = 1 if n < COARSE_FROM else 2
    keys += [output + rate * 2.0**power * prompt for power in range(-POWERS, POWERS + 1, step)]
    for cap in np.unique(np.geomspace(output.min(), output.max(), CAPS // step).astype(np.int64)):
        keys.append(prompt + (output > cap) * float(2 * instance.memory))
    axes = np.empty((len(keys), n), np.int32)
    for row, key in enumerate(keys):
        axes[row] = np.argsort(key, kind="stable")
    return _fast_batches(prompt, output, instance.memory, axes, n <= IMPROVE_UP_TO)


@compiled
def _next(links: npt.NDArray[np.int32], at: int) -> int:
    """Return the first position at or after `at` that is still waiting, shortening the path."""
    root = at
    while links[root] != root:
        root = links[root]
    while links[at] != root:
        links[at], at = root, links[at]
    return root


@compiled
def _place(prompts: IntArray, outputs: IntArray, names: IntArray, size: int, s: int, o: int, i: int, memory: int) -> bool:
    """Insert (s, o) into a batch kept longest output first; return False and change nothing if it does not fit."""
    total = np.int64(0)
    at = 0
    while at < size and outputs[at] >= o:
        total += prompts[at]
        at += 1
    total += s
    if total + (at + 1) * o > memory:
        return False
    for k in range(at, size):
        total += prompts[k]
        if total + (k + 2) * outputs[k] > memory:
            return False
    for k in range(size, at, -1):
        prompts[k], outputs[k], names[k] = prompts[k - 1], outputs[k - 1], names[k - 1]
    prompts[at], outputs[at], names[at] = s, o, i
    return True


@compiled
def _copy(source: IntArray, target: IntArray, size: int) -> None:
    for k in range(size):
        target[k] = source[k]


@compiled
def _remove(prompts: IntArray, outputs: IntArray, names: IntArray, size: int, at: int) -> None:
    for k in range(at, size - 1):
        prompts[k], outputs[k], names[k] = prompts[k + 1], outputs[k + 1], names[k + 1]


@compiled
def _sort_batch(prompts: IntArray, outputs: IntArray, names: IntArray, size: int) -> None:
    """Bring a batch into the order of `_place`, longest output first (Shell's sort: short, and quick to compile)."""
    gap = 1
    while 3 * gap + 1 < size:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap, size):
            s, o, i, at = prompts[k], outputs[k], names[k], k
            while at >= gap and outputs[at - gap] < o:
                prompts[at], outputs[at], names[at] = prompts[at - gap], outputs[at - gap], names[at - gap]
                at -= gap
            prompts[at], outputs[at], names[at] = s, o, i
        gap //= 3


@compiled
def _walk(
    prompt: IntArray,
    output: IntArray,
    memory: int,
    axis: npt.NDArray[np.int32],
    links: npt.NDArray[np.int32],
    batch: tuple[IntArray, IntArray, IntArray],
    joined: IntArray,
    refused: IntArray,
) -> tuple[float, int, int, int]:
    """Fill a batch along an axis: return its least F over prefixes, that prefix's size, and how many joined and were refused.

    While the peaks sum to at most the memory everybody fits, whatever the order; only then the batch is sorted and
    each further request checked in full.
    """
    prompts, outputs, names = batch
    n = len(axis)
    best = np.inf
    # Typed zeros: a plain 0 is a type of its own to numba and would compile every callee twice.
    best_size, size, misses = np.int64(0), np.int64(0), np.int64(0)
    peaks, total = np.int64(0), np.int64(0)
    at = _next(links, np.int64(0))
    while at < n and misses < MISSES and 4 * size <= 5 * best_size + PATIENCE:
        i = np.int64(axis[at])
        s, o = prompt[i], output[i]
        fits = peaks + s + o <= memory
        if fits:
            prompts[size], outputs[size], names[size] = s, o, i
        else:
            if peaks <= memory:
                _sort_batch(prompts, outputs, names, size)
                peaks = memory + 1  # from here on, every request is checked in full
            fits = _place(prompts, outputs, names, size, s, o, i, memory)
        if fits:
            peaks += s + o
            total += o
            joined[size] = i
            size += 1
            value = total / (size * size)
            if value < best:
                best, best_size = value, size
        else:
            refused[misses] = i
            misses += 1
        at = _next(links, at + 1)
    return best, best_size, size, misses


@compiled
def _fast_batches(prompt: IntArray, output: IntArray, memory: int, axes: npt.NDArray[np.int32], improve: bool) -> IntArray:
    n, lines = len(prompt), len(axes)
    batch_of = np.full(n, -1, np.int64)
    links = np.empty((lines, n + 1), np.int32)
    position = np.empty((lines, n), np.int32)
    for line in range(lines):
        for at in range(n):
            links[line, at] = at
            position[line, axes[line, at]] = at
        links[line, n] = n
    batch = (np.empty(n + 2, np.int64), np.empty(n + 2, np.int64), np.empty(n + 2, np.int64))
    prompts, outputs, names = batch
    joined, refused, members = np.empty(n, np.int64), np.empty(MISSES, np.int64), np.empty(n, np.int64)
    pooled, pool = np.full(n, -1, np.int64), np.empty(n, np.int64)
    left, number = n, 0
    while left > 0:
        best, size, pool_size = np.inf, np.int64(0), np.int64(0)
        for line in range(lines):
            value, prefix, count, misses = _walk(prompt, output, memory, axes[line], links[line], batch, joined, refused)
            if value < best:
                best, size = value, prefix
                _copy(joined, members, size)
            if improve:
                for k in range(count + misses):
                    i = joined[k] if k < count else refused[k - count]
                    if pooled[i] != number:
                        pooled[i] = number
                        pool[pool_size] = i
                        pool_size += 1
        for k in range(size):
            i = members[k]
            prompts[k], outputs[k], names[k] = prompt[i], output[i], i
        _sort_batch(prompts, outputs, names, size)
        if improve and size * pool_size <= EXCHANGE_WORK:
            size = _exchange(prompt, output, memory, prompts, outputs, names, size, pool, pool_size)
        size = _trim(prompts, outputs, names, size)
        for k in range(size):
            batch_of[names[k]] = number
            for line in range(lines):
                at = position[line, names[k]]
                links[line, at] = at + 1
        left -= size
        number += 1
    return batch_of


@compiled
def _trim(prompts: IntArray, outputs: IntArray, names: IntArray, size: int) -> int:
    """Remove the longest member while that lowers F; return the size. Any other member's removal lowers F less."""
    total = np.int64(0)
    for k in range(size):
        total += outputs[k]
    while size > 1 and total * (2 * size - 1) < outputs[0] * size * size:
        total -= outputs[0]
        _remove(prompts, outputs, names, size, np.int64(0))
        size -= 1
    return size


@compiled
def _exchange(
    prompt: IntArray,
    output: IntArray,
    memory: int,
    prompts: IntArray,
    outputs: IntArray,
    names: IntArray,
    size: int,
    pool: IntArray,
    pool_size: int,
) -> int:
    """Lower F by taking one member out and filling up again, shortest output first, until nothing helps."""
    keys = np.empty(pool_size, np.int64)
    for k in range(pool_size):
        keys[k] = output[pool[k]]
    _sort_batch(np.empty(pool_size, np.int64), keys, pool, pool_size)
    p, o, who = np.empty(len(prompts), np.int64), np.empty(len(prompts), np.int64), np.empty(len(prompts), np.int64)
    inside = np.zeros(len(prompt), np.bool_)
    for k in range(size):
        inside[names[k]] = True
    improved = True
    while improved:
        improved = False
        total = np.int64(0)
        for k in range(size):
            total += outputs[k]
        for out in range(-1, size):  # -1: fill only
            _copy(prompts, p, size)
            _copy(outputs, o, size)
            _copy(names, who, size)
            trial, trial_total = size, total
            if out >= 0:
                if size == 1:
                    continue
                _remove(p, o, who, size, out)
                trial, trial_total = size - 1, total - outputs[out]
            for k in range(pool_size - 1, -1, -1):  # shortest output first
                i = pool[k]
                if output[i] * trial * trial > (2 * trial + 1) * trial_total:
                    break  # longer members would only raise F
                if not inside[i] and _place(p, o, who, trial, prompt[i], output[i], i, memory):
                    trial += 1
                    trial_total += output[i]
            if trial_total * size * size < total * trial * trial:
                for k in range(size):
                    inside[names[k]] = False
                size = trial
                _copy(p, prompts, size)
                _copy(o, outputs, size)
                _copy(who, names, size)
                for k in range(size):
                    inside[names[k]] = True
                improved = True
                break
    return size
