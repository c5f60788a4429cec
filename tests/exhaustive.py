"""A second, slow reading of the model: memory counted round by round, starts tried one by one.

Nothing here is shared with `opt`; where the two disagree, one of them is wrong.
"""

from fractions import Fraction
from functools import cache
from itertools import combinations

import numpy as np


def rows(instance):
    """The requests as (prompt, output, arrival) in Python integers."""
    return list(zip(instance.prompt.tolist(), instance.output.tolist(), instance.arrival.tolist(), strict=True))


def usage(instance, start, kv="separate"):
    """Tokens held in rounds 0, 1, .. up to the last completion."""
    held = [0] * (max((x + o for x, (_, o, _) in zip(start, rows(instance), strict=True)), default=0) + 1)
    for t in range(len(held)):
        active = [i for i, (_, o, _) in enumerate(rows(instance)) if start[i] < t <= start[i] + o]
        if kv == "separate":
            held[t] = sum(int(instance.prompt[i]) + t - int(start[i]) for i in active)
        else:
            held[t] = sum(t - int(start[i]) for i in active) + sum(stored_chunks(instance, active).values())
    return held


def stored_chunks(instance, active):
    """Tokens of every prompt chunk that some active request holds: each hash once, at the largest size it has."""
    sizes = {}
    hashes = instance.prefix_rows()
    for i in active:
        left = int(instance.prompt[i])
        if hashes is None:
            sizes[i, None] = left
            continue
        for key in hashes[i]:
            sizes[key] = max(sizes.get(key, 0), min(left, instance.prefix_chunk))
            left -= instance.prefix_chunk
    return sizes


def feasible(instance, start):
    in_time = all(x >= a for x, (_, _, a) in zip(start, rows(instance), strict=True))
    return in_time and max(usage(instance, start)) <= instance.memory


def latency(instance, start):
    return sum(x + o - a for x, (_, o, a) in zip(start, rows(instance), strict=True))


def optimum(instance):
    """The least total latency and starts that reach it, by trying all start rounds (a handful of requests).

    A branch is left only when the waits so far, with nobody else waiting at all, are no better than the best known.
    """
    jobs = rows(instance)
    order = sorted(range(len(jobs)), key=lambda i: -jobs[i][0] * jobs[i][1] - jobs[i][1] ** 2)
    best = strict(instance, range(len(jobs)))
    least = sum(x - jobs[i][2] for i, x in enumerate(best))
    held = [0] * (max(best, default=0) + least + sum(o for _, o, _ in jobs) + 1)
    start = [0] * len(jobs)

    def place(depth, waited):
        nonlocal best, least
        if depth == len(order):
            best, least = list(start), waited
            return
        s, o, a = jobs[order[depth]]
        wait = 0
        while waited + wait < least:
            x = a + wait
            if all(held[x + k] + s + k <= instance.memory for k in range(1, o + 1)):
                start[order[depth]] = x
                for k in range(1, o + 1):
                    held[x + k] += s + k
                place(depth + 1, waited + wait)
                for k in range(1, o + 1):
                    held[x + k] -= s + k
            wait += 1

    place(0, 0)
    return latency(instance, best), best


class Shelf:
    """Memory in use, round by round."""

    def __init__(self, instance):
        self.jobs, self.memory = rows(instance), instance.memory
        self.held = np.zeros(max((a for _, _, a in self.jobs), default=0) + 2 * sum(o for _, o, _ in self.jobs) + 2, np.int64)
        self.start = [None] * len(self.jobs)

    def fits(self, i, t):
        s, o, _ = self.jobs[i]
        return bool((self.held[t + 1 : t + o + 1] + s + np.arange(1, o + 1) <= self.memory).all())

    def put(self, i, t):
        s, o, _ = self.jobs[i]
        self.held[t + 1 : t + o + 1] += s + np.arange(1, o + 1)
        self.start[i] = t

    def waiting(self, order, t):
        return [i for i in order if self.start[i] is None and self.jobs[i][2] <= t]


def strict(instance, order):
    """Head of line: in every round the first of those waiting starts if it fits, then the next, until one does not."""
    shelf, t = Shelf(instance), 0
    while None in shelf.start:
        for i in shelf.waiting(order, t):
            if not shelf.fits(i, t):
                break
            shelf.put(i, t)
        t += 1
    return shelf.start


def skip(instance, order):
    """In every round each of those waiting starts if it fits."""
    shelf, t = Shelf(instance), 0
    while None in shelf.start:
        for i in shelf.waiting(order, t):
            if shelf.fits(i, t):
                shelf.put(i, t)
        t += 1
    return shelf.start


def serial(instance, order):
    """One request after another, each in the first round where it fits."""
    shelf = Shelf(instance)
    for i in order:
        t = shelf.jobs[i][2]
        while not shelf.fits(i, t):
            t += 1
        shelf.put(i, t)
    return shelf.start


RULES = {"strict": strict, "skip": skip, "pack": serial}


def fits_together(instance, batch):
    """Whether the batch can start in one round: every completion round is counted out."""
    jobs = [rows(instance)[i] for i in batch]
    return all(sum(s + t for s, o, _ in jobs if o >= t) <= instance.memory for _, t, _ in jobs)


def subsets(members):
    members = list(members)
    return (batch for size in range(1, len(members) + 1) for batch in combinations(members, size))


def f_of(instance, batch):
    return Fraction(sum(int(instance.output[i]) for i in batch), len(batch) ** 2)


def rate_of(instance, batch):
    return Fraction(max(int(instance.output[i]) for i in batch), len(batch))


def batches(batch_of):
    """The members of batches 0, 1, .. as lists."""
    return [np.flatnonzero(batch_of == number).tolist() for number in range(int(np.max(batch_of, initial=-1)) + 1)]


def random_instance(rng, n, memory, *, arrivals=0, outputs=None):
    """Requests of any shape that fits; `outputs` caps the output and `arrivals` is the last round of arrival."""
    from opt.core.instance import Instance

    output = np.array([int(rng.integers(1, min(memory, outputs or memory) + 1)) for _ in range(n)], np.int64)
    prompt = np.array([int(rng.integers(0, memory - o + 1)) for o in output], np.int64)
    arrival = {"arrival": rng.integers(0, arrivals + 1, n)} if arrivals else {}
    return Instance(memory, prompt, output, **arrival)


def four():
    """The smallest known case in which every order loses: starting earlier means holding more later."""
    from opt.core.instance import Instance

    return Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3])


@cache
def tiny():
    """Fifty instances of at most five requests with their optimum: offline, with arrivals, with many ties."""
    rng = np.random.default_rng(20)
    found = [four()]
    for k in range(49):
        memory = int(rng.integers(2, 13))
        found.append(random_instance(rng, 2 + k % 4, memory, arrivals=(0, 0, 9)[k % 3], outputs=(None, 3)[k % 2]))
    return [(instance, optimum(instance)[0]) for instance in found]
