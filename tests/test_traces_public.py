"""The public traces read as their sources describe them; they are found through the environment variable KVOPT_DATA."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from opt.core.traces import read_trace

DATA = Path(os.environ.get("KVOPT_DATA") or "absent")
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="KVOPT_DATA names no folder of public traces")

MEMORY = 1_000_000


def raw(name):
    data = (DATA / name).read_bytes()
    return (gzip.decompress(data) if name.endswith(".gz") else data).decode()


def seconds(stamp):
    """Seconds since midnight of 2023-11-16 in Decimal arithmetic; the trace lies within that day."""
    day, clock = stamp.split(" ")
    assert day == "2023-11-16"
    hour, minute, second = clock.split(":")
    return Decimal(hour) * 3600 + Decimal(minute) * 60 + Decimal(second)


# rows, total prompt and total output tokens; the means are those of the sources (Azure: 1155 and 211, 2048 and 28;
# Mooncake: 12035 and 343, 15325 and 149; Vidur's arXiv: 2588 and 291).
TRACES = [
    ("azure/AzureLLMInferenceTrace_conv.csv.gz", "azure", 19_366, 22_361_870, 4_088_665, (1155, 211)),
    ("azure/AzureLLMInferenceTrace_code.csv.gz", "azure", 8_819, 18_059_974, 245_896, (2048, 28)),
    ("mooncake/conversation_trace.jsonl.gz", "mooncake", 12_031, 144_793_823, 4_122_048, (12_035, 343)),
    ("mooncake/synthetic_trace.jsonl.gz", "mooncake", 3_993, 61_194_628, 595_432, (15_325, 149)),
    ("vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz", "vidur", 28_257, 73_131_321, 8_234_948, (2588, 291)),
    ("etalon/sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz", "vidur", 30_731, 71_911_571, 13_481_988, (2340, 439)),
    ("etalon/bwb_stats_llama2_tokenizer_filtered_v2.csv.gz", "vidur", 33_768, 36_036_681, 54_461_924, (1067, 1613)),
    ("apex_plus/llama_lmsys_05_lengths.csv", "apex", 1_024, 63_148, 165_996, (62, 162)),
    ("apex_plus/llama_creation_05_lengths.csv", "apex", 512, 157_563, 585_888, (308, 1144)),
    ("apex_plus/llama_summarization_05_lengths.csv", "apex", 1_302, 3_584_478, 222_011, (2753, 171)),
    ("apex_plus/mistral_lmsys_05_lengths.csv", "apex", 1_024, 75_084, 194_025, (73, 189)),
    ("apex_plus/mistral_creation_05_lengths.csv", "apex", 725, 258_099, 552_065, (356, 761)),
    ("llmservingsim/RTX4090_Llama-3.1-8B_vllm_run_requests.jsonl.gz", "llmservingsim", 300, 257_239, 195_753, (857, 653)),
    ("llmservingsim/RTXPRO6000_Llama-3.1-8B_vllm_run_requests.jsonl.gz", "llmservingsim", 300, 257_239, 195_753, (857, 653)),
]


@pytest.mark.parametrize(("name", "form", "rows", "prompt", "output", "means"), TRACES, ids=[case[0] for case in TRACES])
def test_rows_totals_and_means(name, form, rows, prompt, output, means):
    begin = time.perf_counter()
    found = read_trace(DATA / name, form, memory=MEMORY)
    assert time.perf_counter() - begin < 5  # it takes a fifth of a second; a busy machine is given time
    assert found.n == found.origin["rows"] == rows
    assert (int(found.prompt.sum()), int(found.output.sum())) == (prompt, output)
    assert (round(found.prompt.mean()), round(found.output.mean())) == means
    assert "bad_rows" not in found.origin
    json.dumps(found.origin, allow_nan=False)


@pytest.mark.parametrize("kind", ["conv", "code"])
def test_azure_arrivals_are_exact_to_the_last_tick(kind):
    name = f"azure/AzureLLMInferenceTrace_{kind}.csv.gz"
    stamps = [seconds(row["TIMESTAMP"]) for row in csv.DictReader(io.StringIO(raw(name)))]
    found = read_trace(DATA / name, "azure", memory=MEMORY)
    assert found.arrival_s.tolist() == [float(stamp - stamps[0]) for stamp in stamps]
    assert len(set(found.arrival_s.tolist())) == len(set(stamps))
    # No microsecond is lost: the float leads back to the very tick of 100 ns.
    ticks = [int((stamp - stamps[0]) * 10**7) for stamp in stamps]
    assert np.rint(found.arrival_s * 1e7).astype(np.int64).tolist() == ticks


def test_mooncake_conversation_shares_as_described():
    found = read_trace(DATA / "mooncake/conversation_trace.jsonl.gz", "mooncake", memory=MEMORY)
    rows = [json.loads(line) for line in raw("mooncake/conversation_trace.jsonl.gz").splitlines()]
    assert found.prefix_ids.tolist() == [value for row in rows for value in row["hash_ids"]]
    assert found.prefix_chunk == 512
    assert (len(found.prefix_ids), len(np.unique(found.prefix_ids))) == (288_500, 182_790)
    assert len(np.unique(found.arrival_s)) == 1_180
    assert np.unique(found.prefix_ids[found.prefix_offsets[:-1]]).size == 1  # every request begins with the same block
    assert found.arrival_s.tolist() == [row["timestamp"] / 1000 for row in rows]


def test_the_four_parts_of_the_summarization_trace():
    name = "apex_plus/llama_summarization_05_lengths.csv"
    merged = read_trace(DATA / name, "apex", memory=MEMORY)
    parts = [read_trace(DATA / name, "apex", memory=MEMORY, part=part) for part in range(4)]
    assert sum(part.n for part in parts) == merged.n == 1_302
    assert (np.diff(merged.arrival_s) >= 0).all()


def test_the_run_log_keeps_the_digits_of_its_epoch():
    name = "llmservingsim/RTX4090_Llama-3.1-8B_vllm_run_requests.jsonl.gz"
    times = [json.loads(line, parse_float=Decimal)["arrival_time"] for line in raw(name).splitlines()]
    found = read_trace(DATA / name, "llmservingsim", memory=MEMORY)
    assert found.origin["shift"] == "1787267980.0827403"
    assert found.arrival_s.tolist() == [float(moment - times[0]) for moment in times]
    assert round(found.n / found.arrival_s[-1], 1) == 10.3


@pytest.mark.parametrize("category", ["language_m-large", "language_m-mid", "language_m-small", "reason_deepseek-r1"])
def test_servegen_sends_at_the_rate_of_its_files(category):
    start = 36_000
    windows = [row for row in csv.DictReader(io.StringIO(raw(f"servegen/{category}_trace.csv.gz"))) if row["t_s"] == str(start)]
    rate = sum(float(row["rate_req_s"]) for row in windows)
    source = DATA / f"servegen/{category}_trace.csv.gz"
    found = read_trace(source, "servegen", memory=MEMORY, start=start, duration=20, seed=1)
    assert set(found.client) <= {int(row["client"]) for row in windows}
    # Each client's count varies by about rate * cv**2 * 20; six of the summed deviations leave no room for luck.
    spread = sum(float(row["rate_req_s"]) * (1 + float(row["cv"]) ** 2) for row in windows) * 20
    assert abs(found.n - rate * 20) < 6 * spread**0.5
    again = read_trace(source, "servegen", memory=MEMORY, start=start, duration=20, seed=1)
    assert np.array_equal(found.arrival_s, again.arrival_s)
    assert np.array_equal(found.output, again.output)


def test_a_file_given_to_the_wrong_reader_is_told_the_right_one():
    with pytest.raises(ValueError, match="fit --format azure"):
        read_trace(DATA / "azure/AzureLLMInferenceTrace_code.csv.gz", "vidur", memory=MEMORY)
    with pytest.raises(ValueError, match="fit --format mooncake"):
        read_trace(DATA / "mooncake/synthetic_trace.jsonl.gz", "burstgpt", memory=MEMORY)
