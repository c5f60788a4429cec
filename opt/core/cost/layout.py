"""The seconds of one iteration, as a formula over named terms, and where each term lies in the flat list of coefficients.

With P, A, S, X the prefill tokens, pairs, sequences and context of a `Load`, B its decodes, n = P + B, and K its KV tokens
with repeats at the price of `locality`:

    seconds = base + dense(n)
            + [P > 0] (prefill_base + per_prefill_token P + per_sequence S + per_context_token X + per_pair A)
            + [B > 0] (decode_base + per_decode B + per_decode_above max(0, B - decode_knee) + per_kv_token K)
            + [both]  (mix_base + mix_per_token P + mix_per_decode B + mix_per_kv_token K)

    dense(n) = (floor^q + (per_token n)^q)^(1/q), or the line through knots

`linear` is q = 1 (a sum), `max` is q = infinity. Below the first knot the time is that of the first knot; beyond the last
one the last slope goes on. No coefficient is negative and knots never fall, so more work never takes less time.
"""

from __future__ import annotations

__all__ = ["NUMBERS", "TERMS"]

BASE, PREFILL_BASE, DECODE_BASE = 0, 1, 2
PER_TOKEN, FLOOR = 3, 4
PER_PREFILL_TOKEN, PER_SEQUENCE, PER_CONTEXT_TOKEN, PER_PAIR = 5, 6, 7, 8
PER_DECODE, PER_DECODE_ABOVE, PER_KV_TOKEN = 9, 10, 11
MIX_BASE, MIX_PER_TOKEN, MIX_PER_DECODE, MIX_PER_KV_TOKEN = 12, 13, 14, 15

# Terms are seconds: for an iteration, or for each of what their name says.
TERMS: dict[str, int] = {
    "base": BASE,
    "prefill_base": PREFILL_BASE,
    "decode_base": DECODE_BASE,
    "per_token": PER_TOKEN,
    "floor": FLOOR,
    "per_prefill_token": PER_PREFILL_TOKEN,
    "per_sequence": PER_SEQUENCE,
    "per_context_token": PER_CONTEXT_TOKEN,
    "per_pair": PER_PAIR,
    "per_decode": PER_DECODE,
    "per_decode_above": PER_DECODE_ABOVE,
    "per_kv_token": PER_KV_TOKEN,
    "mix_base": MIX_BASE,
    "mix_per_token": MIX_PER_TOKEN,
    "mix_per_decode": MIX_PER_DECODE,
    "mix_per_kv_token": MIX_PER_KV_TOKEN,
}

# What follows the terms: the knee in decodes, the price of a repeated read, q (0 stands for infinity), how many knots.
DECODE_KNEE, LOCALITY, EXPONENT, KNOTS = 16, 17, 18, 19
FIRST_KNOT = 20  # the tokens of all knots, then their seconds
NUMBERS: dict[str, int] = {"decode_knee": DECODE_KNEE, "locality": LOCALITY, "exponent": EXPONENT, "knots": KNOTS}
