"""Laws of the trace readers: exact times, and the same answer whatever carries the bytes."""

from __future__ import annotations

import gzip
import io
import json
import sys
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces_read import APEX, BURST, HERE, MEMORY, SPLIT, read, text

from opt.core.errors import InstanceError
from opt.core.traces import READERS, read_trace
from opt.core.traces.clock import moment
from opt.core.traces.table import BadRow

# Exact times.


@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("vidur", lambda t: f"{t},9,8"),
        ("apex", lambda t: f"{int(t * 10**9)},9,8"),
        ("burstgpt", lambda t: f"{t},GPT-4,9,8,17,API log"),
        ("splitwise", lambda t: f"{t},2,0,{t},1,9,8"),
        ("mooncake", lambda t: f'{{"timestamp": {t * 1000}, "input_length": 9, "output_length": 8, "hash_ids": [1]}}'),
        ("vllm-bench", lambda t: f'{{"timestamp": {t}, "prompt_len": 9, "output_len": 8}}'),
        ("llmservingsim", lambda t: f'{{"arrival_time": {t}, "input_toks": 9, "output_toks": 8}}'),
    ],
)
def test_a_constant_added_to_all_times_changes_only_the_shift(form, row):
    header = {"vidur": "arrived_at,num_prefill_tokens,num_decode_tokens", "apex": APEX, "burstgpt": BURST, "splitwise": SPLIT}
    times = [Decimal("0.1"), Decimal("0.3000001"), Decimal("12.7"), Decimal("3599.999999999")]

    def at(offset):
        lines = [header[form]] if form in header else []
        return read([*lines, *(row(time + offset) for time in times)], form)

    here, later = at(0), at(1_700_000_000)
    assert here.arrival_s.tolist() == [float(time - times[0]) for time in times] == later.arrival_s.tolist()
    assert (here.origin["shift"], later.origin["shift"]) == ("0.1", "1700000000.1")


@given(st.lists(st.decimals(0, 10**8, allow_nan=False, allow_infinity=False, places=9), min_size=1, max_size=20), st.booleans())
def test_arrivals_are_the_floats_nearest_to_the_exact_differences(times, late):
    offset = 1_700_000_000 if late else 0
    found = read(["arrived_at,num_prefill_tokens,num_decode_tokens", *(f"{time + offset:f},9,8" for time in times)], "vidur")
    exact = sorted(Fraction(time) for time in times)
    assert found.arrival_s.tolist() == [float(time - exact[0]) for time in exact]


@given(st.integers(0, 10**12), st.integers(-12, 12), st.integers(0, 9))
def test_a_time_with_an_exponent_is_its_exact_value(mantissa, exponent, decimals):
    ticks, places = moment("t", f"{mantissa}e{exponent}", decimals)
    assert Fraction(ticks, 10**places) == Fraction(f"{mantissa}e{exponent}") / 10**decimals


@pytest.mark.parametrize(
    "bad", ["", " ", ".", "e5", "--1", "1e", "0x10", "1,5", "1 2", "\u0661", "-0.1", "1e+99", "1" * 41, "0." + "1" * 41]
)
def test_what_is_no_time(bad):
    with pytest.raises(BadRow, match="must be a time"):
        moment("t", bad)
    assert moment("t", "-0.0") == (0, 1)


# Bytes: line ends, byte-order mark, gzip, streams, provenance.


def test_line_ends_byte_order_mark_and_gzip_make_no_difference(tmp_path):
    plain = (HERE / "apex.csv").read_bytes()
    kinds = {
        "crlf": plain.replace(b"\n", b"\r\n"),
        "bom": b"\xef\xbb\xbf" + plain,
        "blank": plain + b"\n\r\n",
        "unended": plain.rstrip(b"\n"),
        "packed": gzip.compress(plain),
        "parts": gzip.compress(plain[:20]) + gzip.compress(plain[20:]),
    }
    expected = read_trace(HERE / "apex.csv", "apex", memory=MEMORY)
    for name, data in kinds.items():
        path = tmp_path / f"{name}.csv"  # no .gz in the name: the first bytes decide
        path.write_bytes(data)
        found = read_trace(path, "apex", memory=MEMORY)
        assert found.prompt.tolist() == expected.prompt.tolist(), name
        assert found.arrival_s.tolist() == expected.arrival_s.tolist(), name
        assert (found.origin["sha256"] == expected.origin["sha256"]) == (name in ("packed", "parts"))
    rows = (HERE / "mooncake.jsonl").read_bytes()
    crlf = read(io.BytesIO(b"\xef\xbb\xbf" + rows.replace(b"\n", b"\r\n")), "mooncake")
    assert crlf.prefix_ids.tolist() == read(io.BytesIO(rows), "mooncake").prefix_ids.tolist()


def test_a_json_string_may_hold_a_line_separator():
    row = json.dumps({"id": "x", "conversations": [{"from": "human", "value": "a\u2028b"}, {"from": "gpt", "value": "c"}]})
    found = read(text(json.dumps(json.loads(row), ensure_ascii=False)), "sharegpt", count="chars/4")
    assert found.n == 1


def test_the_origin_names_the_file_without_its_folder_and_repeats_itself(tmp_path):
    first, second = (read_trace(HERE / "apex.csv", "apex", memory=MEMORY) for _ in range(2))
    assert first.origin == second.origin
    assert first.origin == {
        "source": "apex.csv",
        "format": "apex",
        "sha256": first.origin["sha256"],
        "rows": 3,
        "shift": "1",
        "shift_unit": "s",
    }
    json.dumps(first.origin, allow_nan=False)
    packed = tmp_path / "apex.csv.gz"
    packed.write_bytes(gzip.compress((HERE / "apex.csv").read_bytes()))
    found = read_trace(str(packed), "apex", memory=MEMORY)
    assert (found.name, found.origin["sha256"]) == ("apex", first.origin["sha256"])
    assert read_trace(packed, "apex", memory=MEMORY, name="mine").name == "mine"


def test_standard_input_and_streams(monkeypatch):
    data = gzip.compress((HERE / "apex.csv").read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert read_trace("-", "apex", memory=MEMORY).origin["source"] == "stdin"
    with (HERE / "apex.csv").open("rb") as stream:
        assert read_trace(stream, "apex", memory=MEMORY).origin["source"] == "apex.csv"
    with pytest.raises(InstanceError, match="binary mode"):
        read_trace(io.StringIO("x"), "apex", memory=MEMORY)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InstanceError, match=r"absent\.csv: cannot be read"):
        read_trace(tmp_path / "absent.csv", "apex", memory=MEMORY)
    broken = gzip.compress((HERE / "apex.csv").read_bytes())[:-12]
    with pytest.raises(InstanceError, match="damaged gzip data"):
        read(io.BytesIO(broken), "apex")
    with pytest.raises(InstanceError, match=r":2: byte 0xff is not UTF-8"):
        read(io.BytesIO(APEX.encode() + b"\n\xff,1,1\n"), "apex")


def test_every_reader_says_its_columns_and_units_in_one_line():
    assert set(READERS) == {
        *("azure", "mooncake", "burstgpt", "sharegpt", "vidur", "splitwise", "vllm-bench", "apex", "llmservingsim", "servegen")
    }
    for reader in READERS.values():
        line = reader.__doc__.splitlines()[0]
        assert line.endswith(".")
        assert "tokens" in line
