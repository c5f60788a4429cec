"""Laws of the trace readers: every format by hand, nothing lost without a count."""

from __future__ import annotations

from fractions import Fraction

import pytest
from traces_read import APEX, HERE, MEMORY, VIDUR, jsonl, read

from opt.core.errors import InstanceError
from opt.core.traces import read_trace
from opt.core.traces.clock import calendar_moment, exact_rate

# One small file for each format, its numbers worked out by hand.


def test_azure_keeps_every_tick_of_100_ns_and_orders_across_midnight():
    found = read_trace(HERE / "azure.csv", "azure", memory=MEMORY)
    assert found.prompt.tolist() == [374, 396, 879]
    assert found.output.tolist() == [44, 109, 55]
    assert found.arrival_s.tolist() == [0.0, 2e-07, 1.5000001]
    assert found.origin["shift"] == "2023-11-16 23:59:59.9999999"
    assert found.origin["shift_unit"] == "date and time, UTC"
    assert found.name == "azure"


def test_azure_2024_times_have_an_offset_and_sometimes_no_fraction():
    found = read_trace(HERE / "azure_2024.csv", "azure", memory=MEMORY)
    assert found.arrival_s.tolist() == [0.0, 0.007405, 0.99007]
    assert found.prompt.tolist() == [2162, 2399, 76]


def test_an_offset_is_taken_off_a_date():
    assert calendar_moment("t", "1970-01-01 02:30:00+02:00") == (1800 * 10**9, 9)
    assert calendar_moment("t", "1970-01-01T00:00:00.5-00:30") == (1_800_500_000_000, 9)
    assert calendar_moment("t", "1970-01-02 00:00:00Z") == (86_400 * 10**9, 9)


def test_vidur_has_no_arrivals_unless_the_column_is_there():
    found = read_trace(HERE / "vidur.csv", "vidur", memory=MEMORY)
    assert (found.prompt.tolist(), found.output.tolist()) == ([3772, 2015], [54, 156])
    assert found.arrival_s is None
    assert found.origin["ignored_fields"] == ["pd_ratio"]
    timed = read_trace(HERE / "vidur_arrived.csv", "vidur", memory=MEMORY)
    assert timed.prompt.tolist() == [10, 20, 30]
    assert timed.arrival_s.tolist() == [0.0, 0.2, 0.6]  # as floats, 0.3 - 0.1 is 0.19999999999999998


def test_apex_merges_its_parts_by_time_or_keeps_one():
    merged = read_trace(HERE / "apex.csv", "apex", memory=MEMORY)
    assert merged.prompt.tolist() == [36, 24, 23]
    assert merged.arrival_s.tolist() == [0.0, 1.000000001, 7.0]
    one = read_trace(HERE / "apex.csv", "apex", memory=MEMORY, part=0)
    assert one.prompt.tolist() == [24, 23]
    assert one.arrival_s.tolist() == [0.0, 5.999999999]
    assert one.origin["part"] == 0
    with pytest.raises(InstanceError, match="no column part"):
        read([APEX, "0,1,1"], "apex", part=1)


def test_mooncake_hashes_become_the_prefix_exactly():
    found = read_trace(HERE / "mooncake.jsonl", "mooncake", memory=MEMORY)
    assert found.prefix_chunk == 512
    assert found.prefix_offsets.tolist() == [0, 2, 5, 6]
    # 2**53 + 1 has no float, and 2**64 - 1 no signed integer: both arrive.
    assert found.prefix_ids.tolist() == [46, 2**64 - 1, 46, 2**64 - 2, 2**53 + 1, 0]
    assert found.arrival_s.tolist() == [0.0, 3.053, 3.053]
    assert found.origin["shift"] == "27.482"


def test_burstgpt_both_schemas():
    plain = read_trace(HERE / "burstgpt.csv", "burstgpt", memory=MEMORY)
    assert (plain.prompt.tolist(), plain.arrival_s.tolist()) == ([472, 1087, 417], [0.0, 40.0, 113.0])
    assert plain.session is None
    later = read_trace(HERE / "burstgpt_sessions.csv", "burstgpt", memory=MEMORY)
    assert later.arrival_s.tolist() == [0.0, 51.5, 82.0]
    assert later.session == ("aa-01", None, "aa-01")
    assert later.origin["ignored_fields"] == ["Elapsed time", "Model", "Log Type"]


def test_sharegpt_counts_only_as_it_is_told():
    first = read_trace(HERE / "sharegpt.json", "sharegpt", memory=MEMORY, count="words")
    assert (first.prompt.tolist(), first.output.tolist()) == ([3, 3], [2, 1])
    assert list(first.ids) == ["a_0", "b_0"]
    assert first.arrival_s is None
    assert first.origin["count"] == "words"
    everything = read_trace(HERE / "sharegpt.json", "sharegpt", memory=MEMORY, count="words", turns="all")
    # The second prompt of a_0 is 3 + 2 + 1 words: the question and answer before it, and its own question.
    assert (everything.prompt.tolist(), everything.output.tolist()) == ([3, 6, 3], [2, 4, 1])
    assert list(everything.ids) == ["a_0/0", "a_0/1", "b_0/0"]
    assert everything.session == ("a_0", "a_0", "b_0")
    quarter = read_trace(HERE / "sharegpt.json", "sharegpt", memory=MEMORY, count="chars/4")
    assert (quarter.prompt.tolist(), quarter.output.tolist()) == ([4, 3], [3, 2])  # 13, 9, 8 + 4 and 7 characters
    with pytest.raises(InstanceError, match=r"sharegpt.json:2: prompt_tokens is missing: .* say how to count"):
        read_trace(HERE / "sharegpt.json", "sharegpt", memory=MEMORY)
    stated = read_trace(HERE / "sharegpt_counted.json", "sharegpt", memory=MEMORY)
    assert (stated.prompt.tolist(), stated.output.tolist()) == ([12, 3], [7, 90])


def test_splitwise_sorts_and_keeps_application_and_priority():
    found = read_trace(HERE / "splitwise.csv", "splitwise", memory=MEMORY)
    assert list(found.ids) == ["1", "0", "2"]
    assert found.client == ("7", "7", "9")
    assert found.priority.tolist() == [0, 1, 1]
    assert found.arrival_s.tolist() == [0.0, 0.008538145, 1.249915]  # 8.5e-05 is 0.000085
    assert found.origin["shift"] == "0.000085"


def test_vllm_timed_trace():
    found = read_trace(HERE / "vllm_timed.jsonl", "vllm-bench", memory=MEMORY)
    assert list(found.ids) == ["r1", "r0"]
    assert found.arrival_s.tolist() == [0.0, 0.25]
    assert found.prefix_chunk == 16
    assert found.prefix_ids.tolist() == [1, 1, 2, 3]


def test_vllm_names_units_and_block_sizes_are_options():
    rows = [{"timestamp": 1500, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}]
    found = read(jsonl(*rows, rows[0] | {"timestamp": 1750}), "vllm-bench", time_unit="ms", prefix_chunk=512)
    assert found.arrival_s.tolist() == [0.0, 0.25]
    assert found.prefix_chunk == 512
    with pytest.raises(
        InstanceError, match=r"2 ids for 600 prompt tokens in blocks of 16; must be 38 \(blocks of 512 would fit\)"
    ):
        read(jsonl(*rows), "vllm-bench")
    with pytest.raises(InstanceError, match="both stand for the prompt"):
        read(jsonl({"timestamp": 1, "input_len": 6, "prompt_len": 6, "output_len": 1}), "vllm-bench")
    with pytest.raises(InstanceError, match=r"timestamp is missing \(also known as arrival_time"):
        read(jsonl({"prompt_len": 6, "output_len": 1}), "vllm-bench")
    for wrong in ({"time_unit": "min"}, {"prefix_chunk": 0}):
        with pytest.raises(InstanceError, match="must be"):
            read(jsonl(*rows), "vllm-bench", **wrong)


def test_vllm_result_of_a_run():
    found = read_trace(HERE / "vllm_result.json", "vllm-bench", memory=MEMORY)
    assert (found.prompt.tolist(), found.output.tolist()) == ([100, 200, 300], [3, 2, 9])
    assert found.arrival_s.tolist() == [0.0, 0.039298933, 2.0]
    assert found.origin["kind"] == "vllm bench serve result"


def test_a_request_that_failed_in_the_run_is_a_bad_row():
    result = {"request_throughput": 1, "input_lens": [10, 20, 30], "output_lens": [3, 0, 0], "errors": ["", "refused", ""]}
    with pytest.raises(InstanceError, match="request 2: errors = 'refused': the request failed"):
        read(jsonl(result), "vllm-bench")
    kept = read(jsonl(result), "vllm-bench", on_bad_row="skip")
    assert kept.prompt.tolist() == [10]
    assert kept.arrival_s is None  # an older version, without start_times
    assert kept.origin["bad_rows"] == {"count": 2, "first_requests": [2, 3]}
    with pytest.raises(InstanceError, match="equally long"):
        read(jsonl(result | {"errors": [""]}), "vllm-bench", on_bad_row="skip")
    with pytest.raises(InstanceError, match="--save-detailed"):
        read(jsonl({"request_throughput": 1}), "vllm-bench")
    with pytest.raises(InstanceError, match="keep one result in a file"):
        read(jsonl(result, result), "vllm-bench")


def test_llmservingsim_workload_and_log():
    found = read_trace(HERE / "llmservingsim.jsonl", "llmservingsim", memory=MEMORY)
    assert found.arrival_s.tolist() == [0.0, 0.301012144]
    assert found.origin["ignored_fields"] == ["input_tok_ids"]
    log = read_trace(HERE / "llmservingsim_log.jsonl", "llmservingsim", memory=MEMORY)
    # As floats the two epoch times differ by 0.2650914192...: an epoch leaves a float only seven decimals.
    assert log.arrival_s.tolist() == [0.0, 0.2650914]
    assert log.origin["shift"] == "1787267980.0827403"
    assert list(log.ids) == ["bench-0", "bench-1"]


def test_llmservingsim_sessions_arrive_as_early_as_they_could():
    found = read_trace(HERE / "llmservingsim_sessions.jsonl", "llmservingsim", memory=MEMORY)
    assert list(found.ids) == ["task-0/0", "row 2", "task-0/1"]
    assert found.session == ("task-0", None, "task-0")
    assert found.arrival_s.tolist() == [0.0, 1.0, 3.000000001]
    assert "tool times" in found.origin["assumption"]
    twice = (HERE / "llmservingsim_sessions.jsonl").read_text().splitlines()[0]
    with pytest.raises(InstanceError, match=":2: id = 'task-0/0': already the id of line 1"):
        read(jsonl(twice, twice), "llmservingsim")
    with pytest.raises(InstanceError, match=r"sub_requests\[0\]: output_toks is missing"):
        read(jsonl({"session_id": "s", "arrival_time_ns": 0, "sub_requests": [{"input_toks": 1}]}), "llmservingsim")


# Memory, order, limit, rate, backlog.


def test_oversized_requests_are_refused_or_counted_and_never_clipped():
    lines = [APEX, "0,10,5000", "1,9,8"]
    with pytest.raises(InstanceError, match=r"peak 5010 .* exceeds the memory of 4096"):
        read(lines, "apex", memory=4096)
    kept = read(lines, "apex", memory=4096, oversized="drop")
    assert kept.output.tolist() == [8]
    assert kept.origin["oversized_dropped"] == {"count": 1, "first_ids": [0]}
    assert kept.arrival_s.tolist() == [1e-09]  # the clock starts with the trace, dropped requests included


def test_rows_are_sorted_by_time_and_ties_keep_the_order_of_the_file():
    found = read([APEX, "7,1,1", "3,2,1", "7,3,1", "3,4,1", "7.0,5,1"], "apex")
    assert found.prompt.tolist() == [2, 4, 1, 3, 5]


def test_limit_takes_the_first_in_time_and_still_checks_the_rest():
    lines = [APEX, "7,1,1", "3,2,1", "5,3,1"]
    found = read(lines, "apex", limit=2)
    assert found.prompt.tolist() == [2, 3]
    assert (found.origin["limit"], found.origin["rows"]) == (2, 3)
    with pytest.raises(InstanceError, match=":5: prompt_tokens"):
        read([*lines, "9,0,1"], "apex", limit=1)


def test_rate_scale_divides_the_decimal_value_before_the_one_rounding():
    lines = [APEX, "0,1,1", "300000000,1,1", "1000000000,1,1"]
    assert read(lines, "apex", rate_scale="3").arrival_s.tolist() == [0.0, 0.1, float(Fraction(1, 3))]
    assert read(lines, "apex", rate_scale=0.1).arrival_s.tolist() == [0.0, 3.0, 10.0]
    assert read(lines, "apex", rate_scale=0.1).origin["rate_scale"] == "0.1"
    assert "rate_scale" not in read(lines, "apex").origin
    for wrong in (0, -1, "nan", "inf", "fast", True, "1e999999999"):
        with pytest.raises(InstanceError, match=r"rate_scale = .* must be a number"):
            read(lines, "apex", rate_scale=wrong)
    with pytest.raises(InstanceError, match="no arrival times to scale"):
        read([VIDUR, "9,8,17"], "vidur", rate_scale=2)
    with pytest.raises(InstanceError, match="no arrival times to scale"):
        read(lines, "apex", rate_scale=2, backlog=True)
    assert exact_rate("1e-3") == Fraction(1, 1000)


def test_backlog_drops_the_arrivals_and_says_so():
    found = read([APEX, "7,1,1", "3,2,1"], "apex", backlog=True)
    assert found.arrival_s is None
    assert found.offline
    assert found.prompt.tolist() == [2, 1]
    assert found.origin["backlog"] is True
    assert "shift" not in found.origin


def test_a_file_with_a_header_alone_has_no_requests():
    for lines, form in (([APEX], "apex"), (["[]"], "sharegpt")):
        found = read(lines, form)
        assert found.n == 0
        assert found.origin["rows"] == 0
