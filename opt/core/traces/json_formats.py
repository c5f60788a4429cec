"""The JSON and JSONL traces: one object, or one place in a list, for each request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from opt.core.errors import InstanceError
from opt.core.source import Source
from opt.core.traces.json_table import (
    Fields,
    Json,
    decode,
    fields,
    get,
    json_records,
    read_count,
    read_label,
    read_moment,
)
from opt.core.traces.table import BadRow, Request, Rows, Sieve, collect, shown

__all__ = ["llmservingsim", "mooncake", "sharegpt", "vllm_bench"]

MOONCAKE_CHUNK = 512
VLLM_CHUNK = 16  # the default of vLLM's --timed-trace-chunk-hash-size
BLOCKS = (16, 32, 64, 128, 256, 512, 1024)  # the sizes in use, to guess at one where the number of hashes is wrong
MILLISECONDS, NANOSECONDS = 3, 9
UNITS: Mapping[str, int] = {"s": 0, "ms": 3, "us": 6, "ns": 9}

TIMES = ("timestamp", "arrival_time", "arrived_at", "start_time")
PROMPTS = ("prompt_len", "input_len", "input_length", "input_tokens", "prompt_tokens")
OUTPUTS = ("output_len", "output_length", "output_tokens", "completion_tokens", "expected_output_len")

ASKING = frozenset({"human", "user"})
ANSWERING = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard"})
SPEAKING = ASKING | ANSWERING | {"system"}

Turns = Literal["first", "all"]
Count = Literal["words", "chars/4"]


def _hashes(row: Fields, prompt: int, chunk: int) -> Sequence[int]:
    """Return the hash ids of a row: one for each started chunk of the prompt, each from 0 to 2**64 - 1."""
    ids = get(row, "hash_ids")
    if type(ids) is not list:
        raise BadRow(f"hash_ids = {shown(ids)}: must be a list of integers")
    wanted = -(-prompt // chunk)
    if len(ids) != wanted:
        fits = [size for size in BLOCKS if -(-prompt // size) == len(ids)]
        hint = f" (blocks of {fits[0]} would fit)" if fits else ""
        raise BadRow(f"hash_ids: {len(ids)} ids for {prompt} prompt tokens in blocks of {chunk}; must be {wanted}{hint}")
    for value in ids:
        if type(value) is not int or not 0 <= value < 2**64:
            raise BadRow(f"hash_ids: {shown(value)} must be an integer from 0 to 2**64 - 1")
    return ids


def mooncake(source: Source, sieve: Sieve) -> Rows:
    """timestamp (ms), input_length, output_length (tokens), hash_ids (one for each 512 tokens): JSONL.

    Equal j-th hashes mean equal first j blocks, so they become the instance's prefix with `prefix_chunk` 512.
    """
    seen: set[str] = set()

    def request(row: Fields) -> Sequence[Request]:
        ticks, decimals = read_moment(row, "timestamp", MILLISECONDS)
        prompt = read_count(row, "input_length")
        prefix = _hashes(row, prompt, MOONCAKE_CHUNK)
        return (Request(prompt, read_count(row, "output_length"), ticks, decimals, prefix=prefix),)

    requests, lines = collect(*json_records(source, sieve, request, seen), sieve)
    ignored = sorted(seen - {"timestamp", "input_length", "output_length", "hash_ids"})
    return Rows(requests, lines, "timestamp", prefix_chunk=MOONCAKE_CHUNK, ignored=ignored)


def sharegpt(source: Source, sieve: Sieve, *, count: Count | None = None, turns: Turns = "first") -> Rows:
    """id, conversations [{from, value}]: a JSON list; tokens from prompt_tokens and output_tokens, or the option count.

    No arrivals. The published file holds text and no token counts, so one has to say how to count.

    Args:
        source: the file.
        sieve: the policy for bad rows.
        count: "words" counts words, "chars/4" a quarter of the characters, rounded up: both estimate, and the origin says
            so. None takes the fields prompt_tokens and output_tokens.
        turns: "first" makes a request of what stands before the first answer; "all" makes one of every answer, with all
            that was said before as its prompt and the conversation as its session.
    """
    if count not in (None, "words", "chars/4") or turns not in ("first", "all"):
        raise InstanceError(f"count = {count!r}, turns = {turns!r}: count is words or chars/4, turns is first or all")
    if count is None and turns == "all":
        raise InstanceError("turns = 'all': counts of single turns are not in the format; say count = words or chars/4")
    seen: set[str] = set()

    def request(row: Fields) -> Sequence[Request]:
        name = read_label(row, "id")
        if count is None:
            return (Request(_stated(row, "prompt_tokens"), _stated(row, "output_tokens"), id=name),)
        found = _dialogue(get(row, "conversations"), count)
        if turns == "first":
            return (Request(*found[0], id=name),)
        return [Request(*sizes, id=f"{name}/{k}", session=name) for k, sizes in enumerate(found)]

    requests, lines = collect(*json_records(source, sieve, request, seen), sieve)
    used = {"id", "conversations"} | ({"prompt_tokens", "output_tokens"} if count is None else set())
    origin = {"turns": turns, **({"count": count} if count else {})}
    return Rows(requests, lines, None, ignored=sorted(seen - used), origin=origin)


def _stated(row: Fields, name: str) -> int:
    if name not in row and "conversations" in row:
        raise BadRow(f"{name} is missing: the conversation is text; say how to count it (count = words or chars/4)")
    return read_count(row, name)


def _dialogue(turns: Json, count: Count) -> list[tuple[int, int]]:
    """Return (prompt, output) for every answer of a conversation, each prompt being all that stands before it."""
    if type(turns) is not list:
        raise BadRow(f"conversations = {shown(turns)}: must be a list of turns")
    found: list[tuple[int, int]] = []
    before, asked = 0, False
    for k, item in enumerate(turns):
        turn = fields(item, f"conversations[{k}]")
        speaker, size = _turn(turn, k, count)
        if speaker in ANSWERING:
            if not asked:
                raise BadRow(f"conversations[{k}]: an answer by {shown(speaker)} before any question")
            if before < 1 or size < 1:
                raise BadRow(f"conversations[{k}]: prompt {before} and output {size} {count}; both must be at least 1")
            found.append((before, size))
        asked = asked or speaker in ASKING
        before += size
    if not found:
        raise BadRow("conversations: there is no answer in it")
    return found


def _turn(turn: Fields, k: int, count: Count) -> tuple[str, int]:
    speaker, text = get(turn, "from"), get(turn, "value")
    if speaker not in SPEAKING:
        raise BadRow(f"conversations[{k}]: from = {shown(speaker)}: must be one of {', '.join(sorted(SPEAKING))}")
    if type(text) is not str:
        raise BadRow(f"conversations[{k}]: value = {shown(text)}: must be a string")
    return speaker, len(text.split()) if count == "words" else math.ceil(len(text) / 4)


def vllm_bench(source: Source, sieve: Sieve, *, time_unit: str = "s", prefix_chunk: int = VLLM_CHUNK) -> Rows:
    """timestamp (s), prompt_len, output_len (tokens), optional hash_ids: JSONL; or a result of vllm bench serve: JSON.

    JSONL is what `vllm bench serve --dataset-name timed_trace` replays; the usual other names of the three fields are
    understood, and the first row says which are meant. A result file (written with --save-detailed) has the lists
    input_lens, output_lens (produced tokens) and, in newer versions, start_times (s).

    Args:
        source: the file.
        sieve: the policy for bad rows.
        time_unit: "s", "ms", "us" or "ns", of the times of a JSONL file.
        prefix_chunk: tokens for each of the hash_ids.
    """
    if time_unit not in UNITS:
        raise InstanceError(f"time_unit = {time_unit!r}: must be one of {', '.join(UNITS)}")
    if type(prefix_chunk) is not int or prefix_chunk < 1:
        raise InstanceError(f"prefix_chunk = {prefix_chunk!r}: must be an integer >= 1")
    result = _result(source, sieve)
    if result is not None:
        return _benchmark(result, sieve)
    shape: dict[str, str] = {}
    seen: set[str] = set()

    def request(row: Fields) -> Sequence[Request]:
        if "input_lens" in row:
            raise BadRow("a further result, with a clock of its own; keep one result in a file")
        if not shape:
            shape.update(_shape(row))
        ticks, decimals = read_moment(row, shape["time"], UNITS[time_unit])
        prompt = read_count(row, shape["prompt"])
        return (
            Request(
                prompt,
                read_count(row, shape["output"]),
                ticks,
                decimals,
                id=read_label(row, "request_id") if "id" in shape else None,
                prefix=_hashes(row, prompt, prefix_chunk) if "prefix" in shape else None,
            ),
        )

    requests, lines = collect(*json_records(source, sieve, request, seen), sieve)
    chunk = prefix_chunk if "prefix" in shape else None
    ignored = sorted(seen - set(shape.values()))
    return Rows(requests, lines, shape.get("time", "timestamp"), prefix_chunk=chunk, ignored=ignored)


def _shape(row: Fields) -> dict[str, str]:
    """Return which field plays which part in a timed JSONL file."""
    parts = {"time": TIMES, "prompt": PROMPTS, "output": OUTPUTS}
    found: dict[str, str] = {}
    for part, names in parts.items():
        there = [name for name in names if name in row]
        if not there:
            raise BadRow(f"{names[0]} is missing (also known as {', '.join(names[1:])})")
        if len(there) > 1:
            raise BadRow(f"{' and '.join(there)} both stand for the {part}; keep one")
        found[part] = there[0]
    optional = {"id": "request_id", "prefix": "hash_ids"}
    return found | {part: name for part, name in optional.items() if name in row}


def _result(source: Source, sieve: Sieve) -> Fields | None:
    """Return the object of a result file, None where the file is a trace."""
    try:
        value = decode(source.text)
    except BadRow:
        return None  # several lines: a trace, whose lines will be judged one by one
    if type(value) is not dict or not {"input_lens", "request_throughput"} & value.keys():
        return None
    if "input_lens" not in value or "output_lens" not in value:
        sieve.fail(None, "the result has no lists input_lens and output_lens; run vllm bench serve with --save-detailed")
    return value


def _benchmark(result: Fields, sieve: Sieve) -> Rows:
    """Return the requests of one run; a request that failed there is a bad row."""
    sieve.item = "request"
    columns = {name: result[name] for name in ("input_lens", "output_lens", "start_times", "errors") if name in result}
    lengths = {name: len(cells) if type(cells) is list else -1 for name, cells in columns.items()}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        sieve.fail(None, f"the lists of a result must be equally long, not {lengths}")
    timed = "start_times" in columns

    def request(row: Fields) -> Sequence[Request]:
        if row.get("errors"):
            raise BadRow(f"errors = {shown(row['errors'])}: the request failed")
        found = Request(read_count(row, "input_lens"), read_count(row, "output_lens"))
        ticks, decimals = read_moment(row, "start_times") if timed else (0, 0)
        return (found._replace(ticks=ticks, decimals=decimals),)

    rows = (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    requests, lines = collect(enumerate(rows, 1), request, sieve)
    return Rows(requests, lines, "start_times" if timed else None, origin={"kind": "vllm bench serve result"})


def llmservingsim(source: Source, sieve: Sieve) -> Rows:
    """input_toks, output_toks (tokens), arrival_time_ns (ns) or arrival_time (s), optional request_id: JSONL.

    Three kinds of row: a workload request (arrival_time_ns), a request of a run log (arrival_time), and an agent's session
    (session_id, arrival_time_ns, sub_requests). A later call of a session has no arrival of its own: it is given the
    earliest possible one, the session's start plus the tool times before it, and the origin says so.
    """
    seen: set[str] = set()
    named: list[bool] = []
    origin: dict[str, Any] = {}

    def request(row: Fields) -> Sequence[Request]:
        if "sub_requests" in row:
            origin["assumption"] = "a later call of a session arrives at its start plus the tool times before it"
            return _session(row)
        if not named:
            named.append("request_id" in row)
        name = read_label(row, "request_id") if named[0] else None
        ticks, decimals = _either_time(row)
        return (Request(read_count(row, "input_toks"), read_count(row, "output_toks"), ticks, decimals, id=name),)

    requests, lines = collect(*json_records(source, sieve, request, seen), sieve)
    if any(found.id is not None for found in requests):
        # Sessions name their calls; a plain request among them is named after its row, so that all have a name.
        pairs = zip(requests, lines, strict=True)
        requests = [found._replace(id=f"row {line}") if found.id is None else found for found, line in pairs]
    used = {"request_id", "input_toks", "output_toks", "arrival_time", "arrival_time_ns", "session_id", "sub_requests"}
    return Rows(requests, lines, "arrival_time", ignored=sorted(seen - used), origin=origin)


def _either_time(row: Fields) -> tuple[int, int]:
    if "arrival_time_ns" in row and "arrival_time" in row:
        raise BadRow("arrival_time_ns and arrival_time both stand for the arrival; keep one")
    if "arrival_time" in row:
        return read_moment(row, "arrival_time")
    return read_moment(row, "arrival_time_ns", NANOSECONDS)


def _session(row: Fields) -> Sequence[Request]:
    """Return the calls of an agent's session, each at the earliest time it could come."""
    name = read_label(row, "session_id")
    ticks, decimals = read_moment(row, "arrival_time_ns", NANOSECONDS)
    calls = get(row, "sub_requests")
    if type(calls) is not list or not calls:
        raise BadRow(f"sub_requests = {shown(calls)}: must be a list of calls")
    found: list[Request] = []
    for k, item in enumerate(calls):
        try:
            call = fields(item)
            prompt, output = read_count(call, "input_toks"), read_count(call, "output_toks")
            pause = read_moment(call, "tool_duration_ns", NANOSECONDS) if "tool_duration_ns" in call else (0, NANOSECONDS)
        except BadRow as verdict:
            raise BadRow(f"sub_requests[{k}]: {verdict}") from None
        found.append(Request(prompt, output, ticks, decimals, id=f"{name}/{k}", session=name))
        ticks, decimals = _plus((ticks, decimals), pause)
    return found


def _plus(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return the exact sum of two (ticks, decimals)."""
    decimals = max(one[1], other[1])
    return one[0] * 10 ** (decimals - one[1]) + other[0] * 10 ** (decimals - other[1]), decimals
