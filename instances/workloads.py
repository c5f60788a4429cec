"""Seeded workloads with the length percentiles and arrival patterns of public traces.

Lengths are tokens. A trace is not copied: each table below holds some of its percentiles, measured from the public file
named beside it, and draws come from straight lines between them. Sources:

* Vidur arXiv-Summarization-4K: microsoft/vidur, MIT. Agrawal et al., MLSys 2024.
* LMSYS first turns: microsoft/apex_plus, MIT. Lin et al., arXiv 2411.17651; prompts from LMSYS-Chat-1M.
* Azure LLM inference traces 2023 (code, conversation): Azure/AzurePublicDataset, CC-BY-4.0. Patel et al., ISCA 2024.
* BWB translation: project-etalon/etalon, Apache-2.0. Agrawal et al., arXiv 2407.07000.
* Mooncake synthetic and tool-agent traces: kvcache-ai/Mooncake, Apache-2.0. Qin et al., FAST 2025.
* ServeGen (DeepSeek-R1, multi-tenant arrivals): alibaba/ServeGen, Apache-2.0. Xiang et al., arXiv 2505.09999.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from instances.families import Columns, Family
from instances.sampling import (
    PUBLISHED_LEVELS,
    Percentiles,
    Words,
    correlated_ranks,
    exponential,
    mixed,
    pick,
    ranks,
    scaled,
    stretched,
    uniform,
    words,
)
from opt.core.columns import FloatArray, IntArray

__all__ = ["AGENT_CHUNK", "CONTEXT", "WORKLOADS"]

CHAT_PROMPT = Percentiles((2, 2, 3, 5, 8, 10, 13, 17, 24, 36, 66, 177, 308, 586, 767, 1037))
CHAT_OUTPUT = Percentiles((1, 2, 8, 12, 28, 50, 79, 117, 165, 227, 300, 389, 436, 533, 754, 761))
ARXIV_PROMPT = Percentiles((1, 73, 749, 1242, 1802, 2150, 2453, 2730, 2996, 3249, 3490, 3702, 3813, 3933, 4012, 4054))
ARXIV_OUTPUT = Percentiles((5, 36, 60, 78, 104, 125, 145, 167, 192, 222, 268, 372, 736, 3271, 3844, 4056))
CODE_PROMPT = Percentiles((3, 17, 75, 147, 386, 770, 1075, 1469, 1909, 2433, 3192, 5188, 7303, 7436, 7437, 7437))
CODE_OUTPUT = Percentiles((6, 6, 6, 7, 8, 9, 11, 13, 16, 20, 29, 55, 90, 251, 825, 1899))
CONV_PROMPT = Percentiles((2, 29, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2734, 4083, 4142, 6179, 14050))
CONV_OUTPUT = Percentiles((7, 16, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 601, 954, 1000))
BOOK_PROMPT = Percentiles((5, 403, 682, 789, 883, 943, 992, 1037, 1084, 1141, 1231, 1453, 1584, 1800, 2177, 3504))
BOOK_OUTPUT = Percentiles((6, 539, 1017, 1209, 1369, 1465, 1539, 1601, 1662, 1726, 1828, 2149, 2342, 2533, 2686, 2858))
TOOL_OUTPUT = Percentiles((1, 2, 2, 4, 8, 16, 32, 69, 126, 211, 289, 389, 519, 769, 825, 893))

# ServeGen publishes the 50th, 90th and 99th percentile and the mean; the other points are ours, chosen to meet the mean.
REASONING_LEVELS = (0, 2500, 5000, 7500, 9000, 9500, 9800, 9900, 9990, 10_000)
REASONING_PROMPT = Percentiles((8, 110, 260, 640, 2349, 4600, 11_500, 23_612, 30_000, 32_768), REASONING_LEVELS)
REASONING_OUTPUT = Percentiles((8, 330, 730, 1560, 3465, 5050, 8500, 12_584, 18_000, 20_480), REASONING_LEVELS)

# Gaps between arrivals in microseconds, with more points in the tail: it holds nearly all of the variance.
GAP_LEVELS = (*PUBLISHED_LEVELS[:-3], 9800, 9900, 9950, 9980, 9990, 9995, 10_000)
CODE_GAPS = Percentiles((
    6, 22, 88, 209, 1184, 3292, 15_117, 63_784, 94_988, 100_130, 160_092, 273_039, 400_846,
    798_700, 2_205_100, 9_978_300, 41_406_000, 79_232_500, 132_474_400, 217_168_952,
), GAP_LEVELS)  # fmt: skip
CONV_GAPS = Percentiles((
    2, 538, 6320, 16_129, 36_504, 60_722, 87_253, 118_424, 158_670, 213_606, 288_810, 420_740, 565_234,
    749_300, 889_700, 1_034_200, 1_249_200, 1_411_200, 1_801_300, 4_314_579,
), GAP_LEVELS)  # fmt: skip

ARXIV_CONTEXT = 4096  # tokens of prompt and output together in the Vidur file


def _lengths(prompt: Percentiles, output: Percentiles, n: int, seed: int, stream: str) -> dict[str, IntArray]:
    return {
        "prompt": prompt.draw(ranks(seed, f"{stream}/prompt", n)),
        "output": output.draw(ranks(seed, f"{stream}/output", n)),
    }


def _seconds(gaps: IntArray) -> FloatArray:
    """Return arrivals in seconds from gaps in microseconds; the first is at 0."""
    return _from_first(np.cumsum(gaps))


def _from_first(moments: IntArray) -> FloatArray:
    return (moments - moments[:1]) / 1e6


def _chat(n: int, memory: int, seed: int) -> Columns:
    return _lengths(CHAT_PROMPT, CHAT_OUTPUT, n, seed, "chat")


def _summarization(n: int, memory: int, seed: int) -> Columns:
    return _long_documents(n, seed, "summarization")


def _long_documents(n: int, seed: int, stream: str) -> dict[str, IntArray]:
    """Outputs as measured; prompts as measured among those that leave room for the output in the context."""
    output = ARXIV_OUTPUT.draw(ranks(seed, f"{stream}/output", n))
    prompt = ARXIV_PROMPT.draw_at_most(ranks(seed, f"{stream}/prompt", n), ARXIV_CONTEXT - output)
    return {"prompt": prompt, "output": output}


def _mixture(n: int, memory: int, seed: int) -> Columns:
    """Each request is a chat or a document by the toss of a fair coin; chat wins where the rank is in the lower half."""
    chat = _lengths(CHAT_PROMPT, CHAT_OUTPUT, n, seed, "mixture/chat")
    documents = _long_documents(n, seed, "mixture/documents")
    short = ranks(seed, "mixture/kind", n) < 2**31
    return {key: np.where(short, chat[key], documents[key]) for key in ("prompt", "output")}


def _small(n: int, memory: int, seed: int) -> Columns:
    """The synthetic instances of Jaillet et al. (arXiv 2502.07115), where optima can still be proved."""
    prompt = uniform(ranks(seed, "small/prompt", n), 1, 5)
    return {"prompt": prompt, "output": uniform(ranks(seed, "small/output", n), 1, memory - prompt)}


def _small_short(n: int, memory: int, seed: int) -> Columns:
    prompt = uniform(ranks(seed, "small-short/prompt", n), 1, 5)
    longest = np.minimum(memory // 4, memory - prompt)
    return {"prompt": prompt, "output": uniform(ranks(seed, "small-short/output", n), 1, longest)}


def _code(n: int, memory: int, seed: int) -> Columns:
    gaps = CODE_GAPS.draw(ranks(seed, "code/gap", n))
    return {**_lengths(CODE_PROMPT, CODE_OUTPUT, n, seed, "code"), "arrival_s": _seconds(gaps)}


def _conversation(n: int, memory: int, seed: int) -> Columns:
    gaps = CONV_GAPS.draw(ranks(seed, "conversation/gap", n))
    return {**_lengths(CONV_PROMPT, CONV_OUTPUT, n, seed, "conversation"), "arrival_s": _seconds(gaps)}


def _translation(n: int, memory: int, seed: int) -> Columns:
    """A page and its translation: the output's rank stays near the prompt's, so the logarithms correlate at 0.86.

    Strata keep the shortest pages (chapter ends, some of a few tokens) together with the shortest translations.
    """
    rank = ranks(seed, "translation/prompt", n)
    noise = ranks(seed, "translation/output", n)
    beside = correlated_ranks(rank, noise, cuts=(0, 2**25, 2**28, 2**32), spread=24_000)
    return {"prompt": BOOK_PROMPT.draw(rank), "output": BOOK_OUTPUT.draw(beside)}


def _reasoning(n: int, memory: int, seed: int) -> Columns:
    return _lengths(REASONING_PROMPT, REASONING_OUTPUT, n, seed, "reasoning")


CLIENTS = 16
BUSIEST_GAP = 1_000_000  # microseconds between requests of the busiest client; the client of rank r sends at 1/r of its rate
PROFILES = (
    (CHAT_PROMPT, CHAT_OUTPUT),
    (CONV_PROMPT, CONV_OUTPUT),
    (CODE_PROMPT, CODE_OUTPUT),
    (BOOK_PROMPT, BOOK_OUTPUT),
)


def _tenants(n: int, memory: int, seed: int) -> Columns:
    """Sixteen clients with rates 1, 1/2, 1/3 ..., each with lengths and a burstiness of its own.

    A client's gaps follow a Weibull law with a coefficient of variation of 1, 2.24 or 4.36 (ServeGen finds 1.9 at the
    median client and 7 to 20 at the 90th percentile), so the arrivals come in bursts of one client at a time.
    """
    moments, client = _superposed(n, lambda who, count: _client_moments(seed, who, count))
    prompt, output = np.empty(n, np.int64), np.empty(n, np.int64)
    profile = uniform(ranks(seed, "tenants/profile", CLIENTS), 0, len(PROFILES) - 1).tolist()
    for who in range(CLIENTS):
        own = np.flatnonzero(client == who)
        cells = _lengths(*PROFILES[profile[who]], len(own), seed, f"tenants/{who}")
        prompt[own], output[own] = cells["prompt"], cells["output"]
    names = [f"client-{who:02d}" for who in range(CLIENTS)]
    labels = tuple(names[who] for who in client.tolist())
    return {"prompt": prompt, "output": output, "arrival_s": _from_first(moments), "client": labels}


def _client_moments(seed: int, who: int, count: int) -> IntArray:
    """Return the first `count` arrivals of a client in microseconds."""
    shape = int(uniform(ranks(seed, "tenants/shape", CLIENTS), 1, 3)[who])
    gaps = stretched(exponential(words(seed, f"tenants/{who}/gap", count)), shape)
    return np.cumsum(scaled(gaps, BUSIEST_GAP * (who + 1)))


def _superposed(n: int, stream: Callable[[int, int], IntArray]) -> tuple[IntArray, IntArray]:
    """Return the first n moments of all clients together, and whose each is.

    Before the earliest of the clients' last known moments nothing is missing; where that is too early for n requests,
    every stream is drawn longer, which does not change its beginning.
    """
    share = sum(1 / rank for rank in range(1, CLIENTS + 1))
    grown = 1
    while True:
        counts = [int(grown * (n / share / (who + 1) + 32)) for who in range(CLIENTS)]
        moments = [stream(who, count) for who, count in enumerate(counts)]
        horizon = min(int(own[-1]) for own in moments)
        if sum(int(np.searchsorted(own, horizon)) for own in moments) >= n:
            break
        grown *= 2
    merged = np.concatenate(moments)
    client = np.repeat(np.arange(CLIENTS), counts)
    first = np.argsort(merged, kind="stable")[:n]
    return merged[first], client[first]


AGENTS = 32
AGENT_CHUNK = 512  # tokens in one prefix hash, as in the Mooncake traces
CONTEXT = 32_768  # a session ends before its prompt and output pass this
AGENT_TURNS = Percentiles((1, 1, 2, 3, 8, 12), (0, 5000, 7000, 9000, 9900, 10_000))
TURN_TEXT = Percentiles((16, 500, 1900, 4600, 8000, 14_000), (0, 2000, 5000, 8000, 9500, 10_000))
# Mooncake synthetic: microseconds since the deepest shared block was last used, at 10, 50, 90, 99 %.
TURN_GAPS = Percentiles((0, 6_000_000, 64_000_000, 294_000_000, 608_000_000, 1_022_000_000), (0, 1000, 5000, 9000, 9900, 10_000))
SESSION_GAP = 270_000  # microseconds, for about 6.6 requests in a second


@dataclass(frozen=True)
class _Turns:
    """Turns of agent sessions: (n,) each, `moment` in microseconds and `prompt` with all that was said before."""

    session: IntArray
    agent: IntArray
    system: IntArray
    moment: IntArray
    prompt: IntArray
    output: IntArray

    def take(self, index: npt.NDArray[Any] | slice) -> _Turns:
        return _Turns(*(column[index] for column in vars(self).values()))


def _agent(n: int, memory: int, seed: int) -> Columns:
    """Tool agents with a long system prompt each; a session's turn holds all that its earlier turns said.

    Shaped after Mooncake's tool-agent trace (23,608 requests in an hour, mean prompt 8,596, mean output 182, 59 % of the
    prompts' blocks seen before), of which only these figures were at hand. Outputs have the percentiles of Mooncake's
    synthetic trace, scaled to that mean; system prompts, texts and numbers of turns are ours, chosen to meet the rest.
    """
    turns = _agent_turns(n, seed)
    return {
        "prompt": turns.prompt,
        "output": turns.output,
        "arrival_s": _from_first(turns.moment),
        "prefix": _agent_prefix(turns, words(seed, "agent/prefix", 1)[0]),
        "prefix_chunk": AGENT_CHUNK,
        "session": turns.session.tolist(),
        "client": [f"agent-{who:02d}" for who in turns.agent.tolist()],
    }


def _agent_turns(n: int, seed: int) -> _Turns:
    """Return the first n turns by time.

    The turns before the first session left out are complete; where they are fewer than n, more sessions are drawn,
    which does not change the earlier ones.
    """
    count = n * 5 // 8 + 64
    while True:
        starts = np.cumsum(scaled(exponential(words(seed, "agent/session", count + 1)), SESSION_GAP))
        turns = _turns_of(starts[:-1], seed)
        if int(np.count_nonzero(turns.moment < starts[-1])) >= n:
            return turns.take(np.lexsort((turns.session, turns.moment))[:n])
        count *= 2


def _turns_of(starts: IntArray, seed: int) -> _Turns:
    """Return all turns of the sessions that start at `starts`: all first turns, then all second ones, and so on.

    The streams of the t-th turn are read by the sessions that have one, in order, so later sessions change nothing.
    """
    count = len(starts)
    agent = pick(ranks(seed, "agent/agent", count), [5040 // rank for rank in range(1, AGENTS + 1)])
    system = uniform(ranks(seed, "agent/system", AGENTS), 1024, 6144)[agent]
    wanted = AGENT_TURNS.draw(ranks(seed, "agent/turns", count))
    none = np.zeros(count, np.int64)
    turns = _Turns(np.arange(count), agent, system, starts, system, none)
    parts = []
    for turn in range(AGENT_TURNS.greatest):
        turns = _next_turn(turns.take(wanted[turns.session] > turn), turn, seed)
        parts.append(turns)
    return _Turns(*(np.concatenate(columns) for columns in zip(*(vars(part).values() for part in parts), strict=True)))


def _next_turn(before: _Turns, turn: int, seed: int) -> _Turns:
    """Return the turns that follow `before`, without those that pass the context: their sessions end."""
    n = len(before.session)
    gap = TURN_GAPS.draw(ranks(seed, f"agent/{turn}/gap", n)) if turn else 0
    text = TURN_TEXT.draw(ranks(seed, f"agent/{turn}/text", n))
    output = np.maximum(TOOL_OUTPUT.draw(ranks(seed, f"agent/{turn}/output", n)) * 182 // 149, 1)
    prompt = before.prompt + before.output + text
    after = _Turns(before.session, before.agent, before.system, before.moment + gap, prompt, output)
    return after.take(prompt + output <= CONTEXT)


def _agent_prefix(turns: _Turns, key: np.uint64) -> tuple[Words, IntArray]:
    """Return the chunk hashes of every prompt and their offsets.

    A chunk within the system prompt is known by its agent and place. Any other is known by its session, place and size:
    a session only ever adds text, so its k-th full chunk is the same in each of its turns, and so is all before it.
    """
    counts = -(-turns.prompt // AGENT_CHUNK)
    offsets: IntArray = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    owner = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(offsets[-1]) - offsets[owner]
    size = np.minimum(AGENT_CHUNK, turns.prompt[owner] - place * AGENT_CHUNK)
    common = (place + 1) * AGENT_CHUNK <= turns.system[owner]
    speaker = np.where(common, turns.agent[owner], AGENTS + turns.session[owner])
    return mixed(key, _unsigned(speaker), _unsigned(place), _unsigned(size)), offsets


def _unsigned(values: npt.NDArray[np.int64]) -> Words:
    return values.astype(np.uint64)


A100 = 16_492  # tokens of KV cache, the budget of the published experiments with Llama-2-70B on two A100 (arXiv 2502.07115)
LARGE = 131_072

_FAMILIES = (
    Family("chat", "short chats: first turns from LMSYS", A100, 1000, 1798, _chat),
    Family("summarization", "long documents, short summaries: arXiv, 4k context", A100, 1000, ARXIV_CONTEXT, _summarization),
    Family("mixture", "half chat, half summarization, in random order", A100, 1000, ARXIV_CONTEXT, _mixture),
    Family("small", "prompts up to 5, outputs up to the memory of 30 to 50: optima within reach", range(30, 51), 40, 6, _small),
    Family("small-short", "as small, with outputs up to a quarter of the memory", range(30, 51), 40, 6, _small_short),
    Family("code", "code completion, bursty arrivals in seconds: Azure 2023", A100, 1000, 9336, _code),
    Family("conversation", "conversations, nearly Poisson arrivals in seconds: Azure 2023", A100, 1000, 15_050, _conversation),
    Family("translation", "book pages, with outputs that are longer and follow the prompt: BWB", A100, 1000, 6362, _translation),
    Family("reasoning", "heavy-tailed prompts and outputs: DeepSeek-R1 of ServeGen", LARGE, 1000, 53_248, _reasoning),
    Family("tenants", "16 clients of unequal rate, each bursty in its own way; seconds", A100, 1000, 15_050, _tenants),
    Family(
        "agent", "tool agents: shared system prompts, sessions of many turns; seconds, prefixes", LARGE, 1000, CONTEXT, _agent
    ),
)

WORKLOADS: dict[str, Family] = {family.name: family for family in _FAMILIES}
