"""Shared prefixes: chunk hashes, the Chunked Hash Tree, a radix baseline, sharing as a forest."""
