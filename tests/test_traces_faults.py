"""What the trace readers refuse: each kind of bad row by its message, and faults of a whole file."""

from __future__ import annotations

import json

import pytest
from traces_read import APEX, AZURE, BURST, GOOD_AZURE, SPLIT, VIDUR, as_source, jsonl, mooncake_row, read

from opt.core.errors import InstanceError

# Bad rows: each kind by its message, counted when skipped.

BAD_ROWS = [
    ("azure", [AZURE, GOOD_AZURE, "2023-11-16 18:17:04,-3,8"], r":3: ContextTokens = '-3': must be an integer >= 1"),
    ("azure", [AZURE, GOOD_AZURE, "2023-11-16 18:17:04,0,8"], r":3: ContextTokens = '0': must be an integer >= 1"),
    ("azure", [AZURE, GOOD_AZURE, "2023-11-16 18:17:04,9,0"], r":3: GeneratedTokens = '0': must be an integer >= 1"),
    (
        "azure",
        [AZURE, GOOD_AZURE, "2023-11-16 18:17:04,9,2147483648"],
        r":3: GeneratedTokens = '2147483648': must be an integer <= ",
    ),
    ("azure", [AZURE, GOOD_AZURE, "2023-11-16 18:17:04,9," + "9" * 5000], r":3: GeneratedTokens = '999.*must be an integer"),
    ("azure", [AZURE, GOOD_AZURE, "2023-11-16 18:17:04,9.0,8"], r":3: ContextTokens = '9.0': must be an integer >= 1"),
    ("azure", [AZURE, GOOD_AZURE, "2023-11-16 18:17:04,nan,8"], r":3: ContextTokens = 'nan'"),
    ("azure", [AZURE, GOOD_AZURE, "2023-11-16 18:17:04,1_000,8"], r":3: ContextTokens = '1_000'"),
    ("azure", [AZURE, GOOD_AZURE, "2023-11-16 18:17:04,\u0663,8"], r":3: ContextTokens = '\u0663'"),
    ("azure", [AZURE, GOOD_AZURE, "2023-11-16 18:17:04,,8"], r":3: ContextTokens = ''"),
    ("azure", [AZURE, GOOD_AZURE, "2023-11-16 18:17:04,9"], r":3: 2 columns where the header has 3"),
    ("azure", [AZURE, GOOD_AZURE, "2023-11-16 18:17:04,9,8,7"], r":3: 4 columns where the header has 3"),
    ("azure", [AZURE, GOOD_AZURE, ",9,8"], r":3: TIMESTAMP = '': must be a date and time"),
    ("azure", [AZURE, GOOD_AZURE, "NaN,9,8"], r":3: TIMESTAMP = 'NaN'"),
    ("azure", [AZURE, GOOD_AZURE, "2023-02-30 18:17:04,9,8"], r":3: .* there is no such day"),
    ("azure", [AZURE, GOOD_AZURE, "2023-11-16 24:17:04,9,8"], r":3: .* there is no such time of day"),
    ("azure", [AZURE, GOOD_AZURE, "1969-12-31 23:59:59,9,8"], r":3: .* must be a date from 1970 to 2999"),
    ("azure", [AZURE, GOOD_AZURE, "9999-12-31 23:59:59-23:00,9,8"], r":3: .* must be a date from 1970 to 2999"),
    ("azure", [AZURE, GOOD_AZURE, "2040-11-16 18:17:03,9,8"], r":3: TIMESTAMP: 2040-11-16 18:17:03 is more than ten years from"),
    ("apex", [APEX, "5,9,8", "-1,9,8"], r":3: arrival_ns = '-1': must be a time >= 0"),
    ("apex", [APEX, "5,9,8", "nan,9,8"], r":3: arrival_ns = 'nan': must be a time, a number >= 0"),
    ("apex", [APEX, "5,9,8", "inf,9,8"], r":3: arrival_ns = 'inf'"),
    ("apex", [APEX, "5,9,8", ".,9,8"], r":3: arrival_ns = '.'"),
    ("apex", [APEX, "5,9,8", "1e99,9,8"], r":3: arrival_ns = '1e99': must be a time of at most 40 digits"),
    ("apex", [APEX, "5,9,8", "1e999999999,9,8"], r":3: arrival_ns = '1e999999999'"),
    ("vidur", [VIDUR, "9,8,17", "9,8,18"], r":3: num_total_tokens = 18: must be 9 \+ 8 = 17"),
    (
        "burstgpt",
        [BURST, "5,GPT-4,9,8,17,API log", "6,GPT-4,9,0,9,API log"],
        r":3: Response tokens = '0': must be an integer >= 1",
    ),
    ("burstgpt", [BURST, "5,GPT-4,9,8,17,API log", "6,GPT-4,9,8,9,API log"], r":3: Total tokens = 9: must be 9 \+ 8"),
    ("splitwise", [SPLIT, "0,2,0,0.5,1,9,8", "0,2,0,0.6,1,9,8"], r":3: id = '0': already the id of line 2; ids must be unique"),
    ("splitwise", [SPLIT, "0,2,0,0.5,1,9,8", ",2,0,0.6,1,9,8"], r":3: request_id = '': must not be empty"),
    ("splitwise", [SPLIT, "0,2,0,0.5,1,9,8", "1,0,0,0.6,1,9,8"], r":3: request_type = '0': must be 2"),
    ("splitwise", [SPLIT, "0,2,0,0.5,1,9,8", "1,2,0,0.6,4,9,8"], r":3: batch_size = '4': must be 1"),
    ("mooncake", [mooncake_row(), "{"], r":2: unreadable JSON"),
    ("mooncake", [mooncake_row(), "[" * 100_000], r":2: unreadable JSON"),
    ("mooncake", [mooncake_row(), "7"], r":2: 7 must be a JSON object"),
    ("mooncake", [mooncake_row(), '{"timestamp": 0, "timestamp": 1}'], r":2: the key 'timestamp' stands twice in one object"),
    ("mooncake", [mooncake_row(), '{"timestamp": 0}'], r":2: input_length is missing"),
    ("mooncake", [mooncake_row(), mooncake_row(input_length=None)], r":2: input_length = null: must be an integer >= 1"),
    ("mooncake", [mooncake_row(), mooncake_row(input_length="20")], r":2: input_length = '20': must be an integer >= 1"),
    ("mooncake", [mooncake_row(), mooncake_row(output_length=True)], r":2: output_length = True: must be an integer >= 1"),
    ("mooncake", [mooncake_row(), mooncake_row(output_length=5.0)], r":2: output_length = 5.0: must be an integer >= 1"),
    ("mooncake", [mooncake_row(), mooncake_row(output_length=float("nan"))], r":2: output_length = NaN: must be an integer >= 1"),
    ("mooncake", [mooncake_row(), mooncake_row(timestamp=float("nan"))], r":2: timestamp = NaN: must be a time"),
    ("mooncake", [mooncake_row(), mooncake_row(timestamp=float("inf"))], r":2: timestamp = Infinity: must be a time"),
    ("mooncake", [mooncake_row(), mooncake_row(timestamp=-1)], r":2: timestamp = -1: must be a time >= 0"),
    ("mooncake", [mooncake_row(), mooncake_row(timestamp=None)], r":2: timestamp = null: must be a time"),
    (
        "mooncake",
        [mooncake_row(), mooncake_row(hash_ids=[1, 2])],
        r":2: hash_ids: 2 ids for 20 prompt tokens in blocks of 512; must be 1",
    ),
    ("mooncake", [mooncake_row(), mooncake_row(hash_ids=7)], r":2: hash_ids = 7: must be a list"),
    (
        "mooncake",
        [mooncake_row(), mooncake_row(hash_ids=[2**64])],
        r":2: hash_ids: 18446744073709551616 must be an integer from 0",
    ),
    ("mooncake", [mooncake_row(), mooncake_row(hash_ids=[-1])], r":2: hash_ids: -1 must be an integer from 0"),
    ("mooncake", [mooncake_row(), mooncake_row(hash_ids=[1.5])], r":2: hash_ids: 1.5 must be an integer from 0"),
    (
        "mooncake",
        [mooncake_row(), mooncake_row(timestamp=1_700_000_000_000)],
        r":2: timestamp: 1700000000 s is more than ten years from the median 0 s",
    ),
    (
        "llmservingsim",
        [{"input_toks": 1, "output_toks": 1, "arrival_time_ns": 1}, {"input_toks": 1, "output_toks": 1}],
        "is missing",
    ),
    (
        "llmservingsim",
        [
            {"input_toks": 1, "output_toks": 1, "arrival_time_ns": 1},
            {"input_toks": 1, "output_toks": 1, "arrival_time_ns": 1, "arrival_time": 1},
        ],
        "both stand for the arrival",
    ),
]


@pytest.mark.parametrize(("form", "lines", "message"), BAD_ROWS)
def test_a_bad_row_is_refused_by_place_field_and_limit(form, lines, message):
    with pytest.raises(InstanceError, match=f"{message}.*; fix the row or skip bad rows \\(--on-bad-row skip\\)$") as caught:
        read(as_source(lines), form)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("form", "lines", "message"), BAD_ROWS)
def test_a_skipped_row_is_counted(form, lines, message):
    found = read(as_source(lines), form, on_bad_row="skip")
    assert found.n == 1
    assert found.origin["rows"] == 2
    assert found.origin["bad_rows"] == {"count": 1, "first_lines": [3 if isinstance(lines[0], str) else 2]}


def test_all_bad_rows_are_counted_and_the_first_twenty_named():
    found = read([APEX, *("0,0,1" for _ in range(30)), "5,9,8"], "apex", on_bad_row="skip")
    assert found.origin["bad_rows"] == {"count": 30, "first_lines": list(range(2, 22))}
    assert read([APEX, "5,9,8"], "apex", on_bad_row="skip").origin["bad_rows"] == {"count": 0, "first_lines": []}


def test_a_file_without_one_good_row_is_the_wrong_file():
    with pytest.raises(InstanceError, match=r"not one of its 2 rows is good; the first: .*:1: hash_ids is missing; .*vllm-bench"):
        row = {"timestamp": 0, "input_length": 20, "output_length": 5}
        read(jsonl(row, row), "mooncake", on_bad_row="skip")


def test_the_clock_of_most_rows_is_the_clock():
    hour = [f"{1_700_000_000 + k},GPT-4,9,8,17,API log" for k in range(4)]
    found = read([BURST, "3,GPT-4,9,8,17,API log", *hour], "burstgpt", on_bad_row="skip")
    assert found.arrival_s.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert found.origin["bad_rows"] == {"count": 1, "first_lines": [2]}
    with pytest.raises(InstanceError, match=":2: Timestamp: 3 s is more than ten years from the median 1700000001 s"):
        read([BURST, "3,GPT-4,9,8,17,API log", *hour], "burstgpt")
    nine_years = 9 * 365 * 86_400
    assert read([BURST, "3,GPT-4,9,8,17,API log", f"{nine_years},GPT-4,9,8,17,API log"], "burstgpt").n == 2


# Faults of the file as a whole are never skipped.


@pytest.mark.parametrize("policy", ["error", "skip"])
@pytest.mark.parametrize(
    ("form", "lines", "message"),
    [
        (
            "azure",
            [VIDUR, "9,8,17"],
            r":1: the header lacks .*TIMESTAMP, which format azure needs; its fields fit --format vidur",
        ),
        ("azure", ["TIMESTAMP,ContextTokens", "x,9"], r":1: the header lacks GeneratedTokens, which .*; it has 'TIMESTAMP, Con"),
        ("azure", [json.dumps(mooncake_row())], r"the header lacks .* fit --format mooncake"),
        ("azure", [AZURE + ",TIMESTAMP", "x,1,1,x"], r":1: the header names TIMESTAMP twice"),
        ("azure", [AZURE, GOOD_AZURE, '2023-11-16 18:17:04,"9,8', GOOD_AZURE], r":3: not CSV"),
        ("azure", [AZURE, GOOD_AZURE, '2023-11-16 18:17:04,"9', '",8'], r":3: a quoted cell runs on to line 4"),
        ("azure", ["", "  "], r"the file is empty"),
        ("mooncake", [""], r"the file is empty"),
        ("sharegpt", ['[{"id": 1, "prompt_tokens": 1, "output_tokens": 1}', '{"id": 2}]'], r":2: the JSON array breaks off"),
        ("sharegpt", ['[{"id": 1, "prompt_tokens": 1, "output_tokens": 1},', '{"id": 2'], r":3: unreadable JSON array"),
        ("sharegpt", ['[{"id": 1, "prompt_tokens": 1, "output_tokens": 1}]', "[]"], r":2: there is more after the end"),
    ],
)
def test_a_fault_of_the_file_is_an_error_under_either_policy(form, lines, message, policy):
    with pytest.raises(InstanceError, match=message):
        read(lines, form, on_bad_row=policy)


def test_the_first_bad_row_of_a_wrong_file_names_the_reader_that_fits():
    with pytest.raises(InstanceError, match=r":1: unreadable JSON.*; its fields fit --format azure"):
        read([AZURE, GOOD_AZURE], "mooncake")
    with pytest.raises(InstanceError, match=r":1: prompt_len is missing.*; its fields fit --format llmservingsim"):
        read(jsonl({"input_toks": 1, "output_toks": 1, "arrival_time": 0}), "vllm-bench")


def test_unknown_formats_options_and_choices():
    with pytest.raises(InstanceError, match="format 'csv': unknown; known are azure, mooncake"):
        read([AZURE], "csv")
    with pytest.raises(TypeError, match="format sharegpt has no option counts; its options are count, turns"):
        read(["[]"], "sharegpt", counts="words")
    with pytest.raises(TypeError, match="format azure has no option count; it has none"):
        read([AZURE], "azure", count="words")
    for wrong in ({"on_bad_row": "ignore"}, {"oversized": "clip"}, {"limit": 0}, {"limit": True}):
        with pytest.raises(InstanceError, match=f"{next(iter(wrong))} = .* must be"):
            read([APEX, "0,1,1"], "apex", **wrong)
    for wrong in ({"count": "tokens"}, {"turns": "all"}):
        with pytest.raises(InstanceError, match="count"):
            read(["[]"], "sharegpt", **wrong)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "c", "conversations": []}, "there is no answer in it"),
        ({"id": "c", "conversations": {}}, "must be a list of turns"),
        ({"id": "c", "conversations": [{"from": "gpt", "value": "hi"}]}, r"\[0\]: an answer by 'gpt' before any question"),
        (
            {"id": "c", "conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "hi"}]},
            "both must be at least 1",
        ),
        ({"id": "c", "conversations": [{"from": "parrot", "value": "hi"}]}, r"\[0\]: from = 'parrot': must be one of"),
        ({"id": "c", "conversations": [{"from": "human", "value": 7}]}, r"\[0\]: value = 7: must be a string"),
        ({"id": "c", "conversations": ["hi"]}, r"conversations\[0\]: 'hi' must be a JSON object"),
        ({"conversations": []}, "id is missing"),
        ({"id": None, "conversations": []}, "id = null: must be a string .not empty. or an integer"),
    ],
)
def test_conversations_that_hold_no_request(row, message):
    with pytest.raises(InstanceError, match=message):
        read(jsonl(row), "sharegpt", count="words")
