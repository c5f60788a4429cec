"""Part of the suite `clock`: the same backlogs in seconds, ordered by volume and by the machine's seconds."""

from __future__ import annotations

from typing import Any

from opt.bench.runner import Params, Record, Table, grouped

__all__ = ["plan_tables", "plan_tasks", "plans"]

BACKLOG = 4000  # requests, all there at the start
LENGTHS = {
    "summaries": ("vidur", "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz"),
    "chats with history": ("vidur", "etalon/sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz"),
    "book translation": ("vidur", "etalon/bwb_stats_llama2_tokenizer_filtered_v2.csv.gz"),
    "conversation": ("azure", "azure/AzureLLMInferenceTrace_conv.csv.gz"),
    "code": ("azure", "azure/AzureLLMInferenceTrace_code.csv.gz"),
}
COSTS = ("a100-llama-2-7b", "h100-llama-3-8b", "h100-llama-3-70b-tp4", "h200-qwen3-32b")
ORDERS = ("fcfs", "sof", "svf", "svf-pack", "svf-seconds", "svf-seconds-pack")


def plan_tasks(seeds: int) -> list[Params]:
    """Return a task for each backlog; it is scored on every cost model."""
    return [{"part": "plans", "lengths": lengths, "seed": seed} for lengths in LENGTHS for seed in range(seeds)]


def plans(params: Params) -> dict[str, Any]:
    """Return the total latency in rounds and in seconds of each order on a backlog drawn from a public trace."""
    import numpy as np

    from opt.comparison import compare
    from opt.core.cost import cost_model
    from opt.core.instance import Instance
    from opt.core.traces import read_trace
    from opt.fit.recipes import data_folder

    reader, file = LENGTHS[params["lengths"]]
    found = {}
    for cost in COSTS:
        memory = cost_model(cost).memory
        assert memory is not None
        trace = read_trace(data_folder() / file, reader, memory=memory, oversized="drop")
        drawn = np.random.default_rng(params["seed"]).permutation(trace.n)[:BACKLOG]
        backlog = Instance(memory, trace.prompt[drawn], trace.output[drawn], name=params["lengths"])
        rows = compare([backlog], solvers=ORDERS, bound="trivial", cost=cost)
        found[cost] = {row["solver"]: {"rounds": row["total_latency"], "seconds": row["total_latency_s"]} for row in rows}
    return found


def plan_tables(records: list[Record]) -> list[Table]:
    """Return ratios to the least of each row, in seconds and in rounds; means over seeds."""
    return [_table(records, unit) for unit in ("seconds", "rounds")]


def _table(records: list[Record], unit: str) -> Table:
    rows = []
    for (lengths,), mine in grouped(records, "lengths").items():
        for cost in COSTS:
            figures = [record["values"][cost] for record in mine]
            rows.append([lengths, cost, *(_mean_ratio(figures, order, unit) for order in ORDERS)])
    title = f"total latency in {unit} over the least of the row, {BACKLOG:,} requests at once"
    return Table(title, ["backlog", "cost", *ORDERS], rows)


def _mean_ratio(figures: list[dict[str, Any]], order: str, unit: str) -> float:
    ratios = [found[order][unit] / min(other[unit] for other in found.values()) for found in figures]
    return float(sum(ratios) / len(ratios))
