"""Feather: batches that share a prefix, on groups of requests, for several prices of reading shared keys and values again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from opt.bench import feather
from opt.bench.claims.claim import Claim, Verdict, listed
from opt.bench.claims.dots import dots
from opt.bench.runner import Params, Picture, Record

__all__ = ["FEATHER"]

BASE, BANDIT, OURS = "vllm-fcfs", "feather-bandit", "feather-analytic"
RIVALS = ("vllm-fcfs", "sglang-fcfs", "sglang-lpm", "sglang-dfs-weight")  # those of the claim
SHOWN = {
    "sglang-lpm": "SGLang LPM",
    "sglang-dfs-weight": "SGLang DFS weight",
    "feather-oracle": "oracle of groups",
    BANDIT: "Feather's bandit",
    OURS: "by predicted rate (ours)",
}
PRICES = {
    "1": "no locality",
    "0.43": "L2 bound",
    "0.02 tree": "kernel for trees of prefixes",
    "0.02 all-share": "kernel if all share",
}
QUICK = (
    *(("1", groups) for groups in (5, 100)),
    *(("0.43", groups) for groups in (0, 5, 100)),
    ("0.02 tree", 5),
    ("0.02 tree", 100),
)
GROUPS = (0, 1, 5, 20, 100)


def _tasks(seeds: int, quick: bool) -> list[Params]:
    """One seed where quick: a task has twelve cells for each of nine policies."""
    cells = QUICK if quick else [(reads, groups) for reads in PRICES for groups in GROUPS if groups or reads == "0.43"]
    return [
        {"part": "throughput", "reads": reads, "groups": groups, "seed": seed}
        for reads, groups in cells
        for seed in range(1 if quick else seeds)
    ]


PUBLISHED = ((5, "about 4"), (100, "10"))  # gains over vLLM FCFS, by groups, with 5K shared tokens or more

Cell = tuple[str, int, dict[str, float], int]  # price, groups, throughput of every policy, shared tokens


def _cells(records: list[Record]) -> list[Cell]:
    return [
        (
            record["params"]["reads"],
            record["params"]["groups"],
            {name: run["tokens_per_s"] for name, run in cell["runs"].items()},
            cell["shared"],
        )
        for record in records
        for cell in record["values"]["cells"]
    ]


def _gains(cells: Sequence[Cell], name: str, over: Sequence[str] = (BASE,)) -> list[float]:
    """Return a policy's throughput over the best of others, in every cell."""
    return [run[name] / max(run[other] for other in over) for _, _, run, _ in cells]


def _verdict(records: list[Record]) -> Verdict:
    cells = _cells(records)
    shared = {price: [cell for cell in cells if cell[0] == price and cell[1]] for price in PRICES}
    there = {price: mine for price, mine in shared.items() if mine}
    alone = _gains([cell for cell in cells if not cell[1]], BANDIT)
    measured = [_as_published(groups, figure, cells) for groups, figure in PUBLISHED]
    measured = [text for text in measured if text] + [f"{_price(price)}: {_said_of(mine)}" for price, mine in there.items()]
    measured += [f"without sharing {_spread(alone)} times vLLM FCFS"] if alone else []
    holds = [_counted(price, mine) for price, mine in there.items() if max(_gains(mine, BANDIT)) >= 2]
    fails = [_lost(price, mine) for price, mine in there.items() if min(_gains(mine, BANDIT)) < 2]
    best = _gains([cell for cell in cells if cell[1]], BANDIT, RIVALS)
    over = f"; twice the best usual policy in {sum(gain >= 2 for gain in best)} of {len(best)} cells" if best else ""
    return Verdict(listed(measured, most=9), f"twice vLLM FCFS or more: {listed(holds)}{over}", listed(fails))


def _as_published(groups: int, figure: str, cells: Sequence[Cell]) -> str:
    """Return what the bandit gains in the setting of a published figure, at whatever price, or nothing."""
    mine = [cell for cell in cells if cell[1] == groups and cell[3] >= 5_000]
    gains = _spread(_gains(mine, BANDIT)) if mine else ""
    return f"{groups} groups of 5K shared tokens or more: {gains} times vLLM FCFS, reported {figure}" if mine else ""


def _price(price: str) -> str:
    return f"price of a repeated read {price.split()[0]} ({PRICES[price]})"


def _said_of(cells: Sequence[Cell]) -> str:
    """Return a price's throughput against the usual policies: mean, least and most over its cells."""
    best = _spread(_gains(cells, BANDIT, RIVALS))
    ours = _spread(_gains(cells, OURS, RIVALS))
    base = _spread(_gains(cells, BANDIT))
    return f"the bandit has {base} times the throughput of vLLM FCFS, {best} times that of the best usual policy; ours {ours}"


def _spread(ratios: Sequence[float]) -> str:
    return f"{_geometric(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _counted(price: str, cells: Sequence[Cell]) -> str:
    gains = _gains(cells, BANDIT)
    groups = sorted({groups for (_, groups, _, _), gain in zip(cells, gains, strict=True) if gain >= 2})
    return f"{_price(price)}, {sum(gain >= 2 for gain in gains)} of {len(gains)} cells, with {_words(groups)} groups"


def _lost(price: str, cells: Sequence[Cell]) -> str:
    gains = _gains(cells, BANDIT)
    level, lost = sum(0.98 <= gain < 2 for gain in gains), sum(gain < 0.98 for gain in gains)
    return f"{_price(price)}: less than twice in {level} of {len(gains)} cells, slower than vLLM FCFS by over 2 % in {lost}"


def _words(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _pictures(records: list[Record]) -> list[Picture]:
    cells = _cells(records)
    rows = []
    for price, groups in dict.fromkeys((price, groups) for price, groups, _, _ in cells):
        mine = [cell for cell in cells if cell[:2] == (price, groups)]
        rows.append((f"{price}, {groups} groups", {shown: _geometric(_gains(mine, name)) for name, shown in SHOWN.items()}))
    return [
        dots(
            rows,
            axis="throughput over vLLM FCFS, geometric mean",
            title="Groups that share a prefix: what homogeneous batches gain, by the price of a repeated read",
            caption="Throughput over that of vLLM first come first served, a line for each price of reading shared keys and "
            "values again and number of groups.",
            one="vLLM FCFS",
        )
    ]


def _geometric(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


FEATHER = Claim(
    "feather",
    "Feather: batches whose members share one prefix",
    "arXiv 2605.06046",
    "2 to 10 times the throughput of vLLM FCFS and of SGLang's policies with groups that share a prefix (about 4 with 5 groups "
    "of 5-10K shared tokens, 10 with 100 groups), and no loss without sharing.",
    "1,000 requests in 0 to 100 groups, 1K to 10K shared tokens, outputs to 10 or 200, at once or Poisson, Llama-3-8B on an H100 "
    "(fitted); the price of reading shared keys and values again within a step is a parameter, since it is not published.",
    _tasks,
    feather.measure,
    _verdict,
    feather.tables,
    _pictures,
)
