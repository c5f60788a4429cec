"""How the tests of the trace readers write rows down and have them read."""

from __future__ import annotations

import io
import json
from pathlib import Path

from opt.core.traces import read_trace

HERE = Path(__file__).parent / "traces"
MEMORY = 10_000

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
APEX = "arrival_ns,prompt_tokens,output_tokens"
VIDUR = "num_prefill_tokens,num_decode_tokens,num_total_tokens"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
SPLIT = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"
GOOD_AZURE = "2023-11-16 18:17:03.9799600,4808,10"


def text(*lines, end="\n"):
    return io.BytesIO((end.join(lines) + end).encode())


def jsonl(*rows):
    return text(*(row if isinstance(row, str) else json.dumps(row) for row in rows))


def read(lines, form, **keywords):
    source = lines if isinstance(lines, io.BytesIO) else text(*lines)
    return read_trace(source, form, memory=keywords.pop("memory", MEMORY), **keywords)


def mooncake_row(**changes):
    return {"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [1]} | changes


def as_source(lines):
    return text(*lines) if isinstance(lines[0], str) else jsonl(*lines)
