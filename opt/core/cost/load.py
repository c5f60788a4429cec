"""What one iteration does, in the quantities its time depends on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Load", "batch"]


class Load(NamedTuple):
    """The work of one iteration. All quantities are sums over the batch; the default is an idle iteration.

    Args:
        prefill_tokens: prompt tokens computed, over all chunks. Tokens found in a prefix cache are not computed.
        prefill_pairs: attention pairs of the chunks: a chunk of `c` tokens after `x` cached ones has `c*x + c*(c+1)/2`.
        prefill_sequences: chunks with at least one token.
        prefill_context: cached tokens that chunks attend to, the sum of their `x`.
        decodes: requests that make one token each without a chunk of their prompt.
        kv_tokens: tokens of KV cache read by decodes, each request's own new token included: in the model of rounds a
            request in its k-th active round reads `prompt + k - 1`. Shared tokens count for everyone who reads them.
        repeated_kv: how many of `kv_tokens` another decode of the batch reads too, beyond the first: a prefix of `p`
            tokens common to `g` decodes gives `(g-1)*p`. A model prices them by its `locality`.
    """

    prefill_tokens: float = 0
    prefill_pairs: float = 0
    prefill_sequences: float = 0
    prefill_context: float = 0
    decodes: float = 0
    kv_tokens: float = 0
    repeated_kv: float = 0


def batch(chunks: Iterable[tuple[int, int]] = (), lengths: Iterable[int] = (), repeated_kv: int = 0) -> Load:
    """Return the load of prompt `chunks` (tokens, cached context before them) and of decodes that read `lengths` tokens.

    >>> load = batch(chunks=[(512, 0), (4, 10)], lengths=[100, 200])
    >>> load.prefill_tokens, load.prefill_pairs, load.decodes, load.kv_tokens
    (516, 131378, 2, 300)
    """
    real = [(tokens, context) for tokens, context in chunks if tokens > 0]
    lengths = list(lengths)
    return Load(
        prefill_tokens=sum(tokens for tokens, _ in real),
        prefill_pairs=sum(tokens * context + tokens * (tokens + 1) // 2 for tokens, context in real),
        prefill_sequences=len(real),
        prefill_context=sum(context for _, context in real),
        decodes=len(lengths),
        kv_tokens=sum(lengths),
        repeated_kv=repeated_kv,
    )
