"""The two ways an input can be wrong: it is not what the format promises, or its proof is false."""

from __future__ import annotations

__all__ = ["CertificateError", "InstanceError"]


class InstanceError(ValueError):
    """The data cannot be an instance, a plan or a trace; the message names the thing, its place and the way out."""


class CertificateError(ValueError):
    """A schedule or a bound claims something that exact arithmetic refutes."""
