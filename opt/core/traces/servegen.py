"""ServeGen: what each client of a service sends, in windows of ten minutes, turned into a seeded workload.

The files hold rates, not requests. For every client and window they give the mean rate, the coefficient of variation (CV)
of the gaps and which law fitted the gaps better; for every client the mean and three quantiles of its lengths. What this
module invents, because the files do not say it:

* The gaps of a client are independent within a window, Gamma or Weibull with the stated rate and CV, and windows do not
  know of each other. Each window begins in the steady state (the first gap is what is left of one under way), so the
  expected count is the rate times the duration, whatever the CV.
* Prompt and output of a request are independent. A length is drawn by inverting a monotone curve through 1, P50, P90 and
  P99; its bend is the one number that also meets the mean. Nothing exceeds P99 unless the mean demands it.
* A client without length statistics takes those of another one, drawn in proportion to their requests; the origin
  records which.

The draws are raw PCG64 integers, one stream for each client and window: a client's requests do not depend on who else is
generated, and the same seed gives the same workload.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from opt.core.errors import InstanceError
from opt.core.source import Source, TraceSource, open_source
from opt.core.traces.csv_formats import open_table, read_count
from opt.core.traces.draws import Gamma, Lengths, Uniform, Weibull, arrivals
from opt.core.traces.fields import SERVEGEN_CLIENTS
from opt.core.traces.table import MAX_COUNT, BadRow, Request, Rows, Sieve, collect, shown

__all__ = ["Window", "servegen"]

Description: TypeAlias = tuple[float, Lengths, Lengths]  # requests, prompt and output lengths of a client

WINDOW_S = 600
MAX_REQUESTS = 2**53  # so that a total is exact as a weight
NANOSECONDS = 9
QUANTILES = ("p50", "p90", "p99")
RATES = 1e-9, 1e6  # requests per second
VARIATIONS = 1e-3, 1e4  # within this range the quantiles of both laws are finite; the public files reach 1038
ARRIVALS, LENGTHS, DONORS, TENANTS = range(4)  # the purposes of the random streams


@dataclass(frozen=True)
class Window:
    """What one client sends in one window.

    Args:
        client: its number.
        start_s: the beginning, seconds from the start of the trace.
        rate: mean requests per second.
        cv: coefficient of variation of the gaps.
        pattern: "Gamma" or "Weibull".
    """

    client: int
    start_s: int
    rate: float
    cv: float
    pattern: str


def servegen(
    source: Source,
    sieve: Sieve,
    *,
    clients: TraceSource | None = None,
    n: int | None = None,
    start: int = 0,
    duration: int | None = None,
    seed: int = 0,
    tenants: int | None = None,
) -> Rows:
    """client, t_s (s), rate_req_s (1/s), cv, pattern; with a second file of lengths in tokens: a seeded generator.

    Gaps and lengths are drawn, not recorded; the head of this module says what is invented.

    Args:
        source: the rates, a ServeGen *_trace.csv as one file for a category.
        sieve: the policy for bad rows of the rates; a bad row of the clients file is always an error.
        clients: the clients file; when absent, the file beside the rates with _clients.csv in place of _trace.csv.
        n: take the first `n` requests. Without `duration` as many windows as needed are generated.
        start: where to begin, in seconds from the start of the trace.
        duration: seconds to generate; 600 when neither `n` nor `duration` is given.
        seed: of all draws.
        tenants: keep this many of the active clients, drawn without replacement in proportion to their requests.

    Raises:
        InstanceError: an option is out of range, nobody sends anything then, or fewer than `n` requests come.
    """
    _check_options(n=(n, 1), start=(start, 0), duration=(duration, 1), seed=(seed, 0), tenants=(tenants, 1))
    beside = _clients_source(source, clients)
    windows = _read_windows(source, sieve)
    lengths = _read_lengths(beside)
    span = start, _end(windows, start, n, duration)
    windows, expected = _chosen(_active(windows, span, source.place), span, seed, tenants)
    donors = _donors(expected, lengths, seed, beside.place)
    kinds = {client: found for client, donor in donors.items() if (found := lengths[donor]) is not None}
    requests = _generate(windows, span, seed, n, kinds)
    if n is not None and len(requests) < n:
        come = f"only {len(requests)} requests come from {span[0]} s to {span[1]} s"
        raise InstanceError(f"n = {n}: {come}; ask for fewer, begin earlier or go on longer")
    asked = {"n": n, "start_s": start, "duration_s": duration, "seed": seed, "tenants": tenants}
    if n is None:
        asked["duration_s"] = span[1] - start
    origin: dict[str, Any] = {"generator": "servegen", "clients": beside.name, "clients_sha256": beside.sha256}
    origin |= {name: value for name, value in asked.items() if value is not None}
    origin |= {"borrowed_lengths": {str(client): donor for client, donor in donors.items() if client != donor}}
    return Rows(requests, [1] * len(requests), "t_s", origin=origin)


def _check_options(**options: tuple[Any, int]) -> None:
    for name, (value, low) in options.items():
        if value is not None and (type(value) is not int or value < low):
            raise InstanceError(f"{name} = {value!r}: must be an integer >= {low}")


def _active(windows: Iterable[Window], span: tuple[int, int], place: str) -> list[Window]:
    """Return the windows that reach into the span."""
    active = [window for window in windows if window.start_s < span[1] and window.start_s + WINDOW_S > span[0]]
    if not active:
        raise InstanceError(f"{place}: no client sends anything from {span[0]} s to {span[1]} s; choose another start")
    return active


def _clients_source(source: Source, clients: TraceSource | None) -> Source:
    if clients is not None:
        return open_source(clients)
    if source.path is None or "_trace." not in source.name:
        raise InstanceError(f"{source.place}: give the file of clients and lengths too (option clients)")
    plain = source.name.removesuffix(".gz").replace("_trace.", "_clients.")
    beside = [path for path in (source.path.with_name(plain), source.path.with_name(f"{plain}.gz")) if path.exists()]
    if not beside:
        raise InstanceError(f"{source.place}: there is no {plain} beside it; give the file of clients (option clients)")
    return open_source(Path(beside[0]))


def _read_windows(source: Source, sieve: Sieve) -> list[Window]:
    """Return the windows of a rates file; the collected requests only serve to count the good rows."""
    table = open_table(source, sieve, "servegen")
    client, start, rate, cv, pattern = map(table.where, ("client", "t_s", "rate_req_s", "cv", "pattern"))
    found: dict[tuple[int, int], Window] = {}

    def window(cells: list[str]) -> None:
        key = read_count("client", cells[client], 0), read_count("t_s", cells[start], 0)
        if key[1] % WINDOW_S:
            raise BadRow(f"t_s = {key[1]}: must be a multiple of {WINDOW_S}, the length of a window in seconds")
        if key in found:
            raise BadRow(f"client {key[0]} has a row for t_s = {key[1]} already")
        law = cells[pattern].strip()
        if law not in ("Gamma", "Weibull"):
            raise BadRow(f"pattern = {shown(law)}: must be Gamma or Weibull")
        found[key] = Window(*key, _number("rate_req_s", cells[rate], *RATES), _number("cv", cells[cv], *VARIATIONS), law)

    collect(table.records, table.checked(window), sieve)
    return list(found.values())


def _number(name: str, text: str, low: float, high: float) -> float:
    try:
        value = math.nan if "_" in text else float(text)  # Python's float would take 1_0 for 10
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise BadRow(f"{name} = {shown(text)}: must be a number from {low:g} to {high:g}")
    return value


def _read_lengths(source: Source) -> dict[int, Description | None]:
    """Return for each client its requests, prompt and output lengths; None where the file has no lengths for it."""
    sieve = Sieve(source.place, way_out="fix the row")
    wanted = ("client", "requests_total", *(f"{kind}_{what}" for kind in ("input", "output") for what in ("mean", *QUANTILES)))
    table = open_table(source, sieve, "servegen (clients)", SERVEGEN_CLIENTS)
    places = {name: table.where(name) for name in wanted}
    found: dict[int, Description | None] = {}

    def client(cells: list[str]) -> None:
        row = {name: cells[place] for name, place in places.items()}
        key = read_count("client", row["client"], 0)
        if key in found:
            raise BadRow(f"client {key} stands in the file twice")
        if not any(row[name].strip() for name in wanted[2:]):
            found[key] = None
            return
        kinds = [Lengths(*(_number(name, row[name], 1, MAX_COUNT) for name in wanted[at : at + 4])) for at in (2, 6)]
        for kind in kinds:
            if not kind.p50 <= kind.p90 <= kind.p99:
                raise BadRow(f"quantiles {kind.p50:g}, {kind.p90:g}, {kind.p99:g}: must not fall")
        found[key] = float(read_count("requests_total", row["requests_total"], 0, MAX_REQUESTS)), kinds[0], kinds[1]

    collect(table.records, table.checked(client), sieve)
    return found


def _end(windows: Sequence[Window], start: int, n: int | None, duration: int | None) -> int:
    """Return where generation ends: after `duration`, or with `n` alone at the end of the trace (it stops before)."""
    if duration is not None:
        return start + duration
    if n is None:
        return start + WINDOW_S
    return max((window.start_s + WINDOW_S for window in windows), default=start + WINDOW_S)


def _expected(windows: Iterable[Window], span: tuple[int, int]) -> dict[int, float]:
    """Return the expected number of requests of each client within the span."""
    counts: dict[int, float] = {}
    for window in windows:
        seconds = min(window.start_s + WINDOW_S, span[1]) - max(window.start_s, span[0])
        counts[window.client] = counts.get(window.client, 0.0) + window.rate * seconds
    return counts


def _chosen(
    windows: list[Window], span: tuple[int, int], seed: int, tenants: int | None
) -> tuple[list[Window], dict[int, float]]:
    """Return the windows of the clients that take part, and what each of those is expected to send."""
    expected = dict(sorted(_expected(windows, span).items()))
    if tenants is None:
        return windows, expected
    if tenants > len(expected):
        raise InstanceError(f"tenants = {tenants}: only {len(expected)} clients are active then")
    # The smallest of exponential variates with these rates are a weighted sample without replacement.
    uniform = Uniform(seed, TENANTS).draw(len(expected))
    keys = -np.log1p(-uniform) / np.array(list(expected.values()))
    kept = {list(expected)[at] for at in np.argsort(keys, kind="stable")[:tenants].tolist()}
    return [window for window in windows if window.client in kept], {key: expected[key] for key in expected if key in kept}


def _donors(expected: Iterable[int], lengths: Mapping[int, Description | None], seed: int, place: str) -> dict[int, int]:
    """Return whose lengths each client takes: its own, or those of a client drawn in proportion to the requests."""
    described = [(key, kinds[0]) for key, kinds in sorted(lengths.items()) if kinds is not None and kinds[0] > 0]
    ends = np.cumsum([requests for _, requests in described])
    donors: dict[int, int] = {}
    for client in expected:
        if client not in lengths:
            raise InstanceError(f"{place}: client {client} of the rates is not in the file of clients")
        if lengths[client] is not None:
            donors[client] = client
            continue
        if not described:
            raise InstanceError(f"{place}: no client with requests has length statistics")
        mark = Uniform(seed, DONORS, client).draw(1)[0] * ends[-1]
        donors[client] = described[min(int(np.searchsorted(ends, mark, side="right")), len(described) - 1)][0]
    return donors


def _generate(
    windows: Iterable[Window],
    span: tuple[int, int],
    seed: int,
    n: int | None,
    lengths: Mapping[int, Description],
) -> list[Request]:
    """Return the requests in time order, window by window until `n` are there."""
    by_start: dict[int, list[Window]] = {}
    for window in sorted(windows, key=lambda window: (window.start_s, window.client)):
        by_start.setdefault(window.start_s, []).append(window)
    requests: list[Request] = []
    for group in by_start.values():
        fresh = [found for window in group for found in _requests(window, span, seed, n, lengths[window.client])]
        requests.extend(sorted(fresh, key=lambda found: found.ticks))
        if n is not None and len(requests) >= n:
            return requests[:n]
    return requests


def _requests(window: Window, span: tuple[int, int], seed: int, n: int | None, kinds: Description) -> Iterator[Request]:
    """Yield what one client sends in one window; at most `n`, as no more than that are kept of all."""
    begin, end = max(window.start_s, span[0]), min(window.start_s + WINDOW_S, span[1])
    gaps = Uniform(seed, ARRIVALS, window.client, window.start_s)
    law = (Gamma if window.pattern == "Gamma" else Weibull)(window.rate, window.cv)
    times = arrivals(law, gaps, end - begin, n)
    ticks = begin * 10**NANOSECONDS + np.rint(times * 1e9).astype(np.int64)
    draws = Uniform(seed, LENGTHS, window.client, window.start_s).draw(2 * len(times))
    prompts, outputs = kinds[1].draw(draws[0::2]), kinds[2].draw(draws[1::2])
    for prompt, output, tick in zip(prompts.tolist(), outputs.tolist(), ticks.tolist(), strict=True):
        yield Request(prompt, output, tick, NANOSECONDS, client=window.client)
