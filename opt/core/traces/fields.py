"""Which fields make a format: so that a reader given the wrong file can name the reader that fits."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping

__all__ = ["SERVEGEN_CLIENTS", "SIGNATURES", "fitting", "suggestion"]

SIGNATURES: Mapping[str, tuple[frozenset[str], ...]] = {
    "azure": (frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),),
    "mooncake": (frozenset({"timestamp", "input_length", "output_length", "hash_ids"}),),
    "burstgpt": (frozenset({"Timestamp", "Request tokens", "Response tokens"}),),
    "sharegpt": (frozenset({"id", "conversations"}),),
    "vidur": (frozenset({"num_prefill_tokens", "num_decode_tokens"}),),
    "splitwise": (frozenset({"request_id", "arrival_timestamp", "prompt_size", "token_size"}),),
    "vllm-bench": (
        frozenset({"input_lens", "output_lens"}),
        frozenset({"timestamp", "prompt_len", "output_len"}),
        frozenset({"timestamp", "input_length", "output_length"}),
        frozenset({"arrival_time", "prompt_len", "output_len"}),
    ),
    "apex": (frozenset({"arrival_ns", "prompt_tokens", "output_tokens"}),),
    "llmservingsim": (frozenset({"input_toks", "output_toks"}), frozenset({"session_id", "sub_requests"})),
    "servegen": (frozenset({"client", "t_s", "rate_req_s", "cv", "pattern"}),),
}

SERVEGEN_CLIENTS = frozenset(
    {"client", "requests_total"} | {f"{kind}_{what}" for kind in ("input", "output") for what in ("mean", "p50", "p90", "p99")}
)


def fitting(names: Iterable[str]) -> list[str]:
    """Return the formats whose fields are all among `names`."""
    have = set(names)
    return [name for name, shapes in SIGNATURES.items() if any(shape <= have for shape in shapes)]


def suggestion(text: str, wanted: str) -> str:
    """Return "; its fields fit --format ..." where the file is of another format than `wanted`, else ""."""
    found = fitting(_first_fields(text))
    if not found or wanted in found:
        return ""
    return f"; its fields fit --format {' or '.join(found)}"


def _first_fields(text: str) -> Iterable[str]:
    """Return the field names that the file begins with: a CSV header or the keys of a first JSON object."""
    start = text.lstrip()
    if not start.startswith(("{", "[")):
        try:
            return [cell.strip() for cell in next(csv.reader([start.split("\n", 1)[0]]), [])]
        except csv.Error:
            return []
    try:
        value, _ = json.JSONDecoder().raw_decode(start.removeprefix("[").lstrip())
    except (ValueError, RecursionError):
        return []
    return list(value) if isinstance(value, dict) else []
