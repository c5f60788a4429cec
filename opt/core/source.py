"""The bytes of an input file: read once from a path, a stream or standard input, unpacked, and named for messages."""

from __future__ import annotations

import gzip
import hashlib
import sys
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, TypeAlias

from opt.core.errors import InstanceError

__all__ = ["Source", "TraceSource", "open_source"]

TraceSource: TypeAlias = str | Path | BinaryIO

GZIP_MAGIC = b"\x1f\x8b"
STDIN = "-"


@dataclass(frozen=True)
class Source:
    """An input file in memory.

    Args:
        place: how messages name it: the path as it was given.
        name: the file's own name, without folders; this is what an instance's origin keeps.
        data: the uncompressed bytes.
        path: where it came from, None for a stream.
    """

    place: str
    name: str
    data: bytes
    path: Path | None = None

    @cached_property
    def text(self) -> str:
        """The bytes as text, without a byte-order mark.

        Raises:
            InstanceError: they are not UTF-8; the message names the line.
        """
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            byte = self.data[error.start]
            raise InstanceError(f"{self.place}:{line}: byte 0x{byte:02x} is not UTF-8; save it as UTF-8 text") from None

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the uncompressed bytes, so that a packed and a plain copy are the same source."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def stem(self) -> str:
        """The name without `.gz` and without the next suffix."""
        return Path(self.name.removesuffix(".gz")).stem


def open_source(source: TraceSource) -> Source:
    """Return the whole file in memory, unpacked when its first bytes say gzip.

    Args:
        source: a path, "-" for standard input, or an object whose `read` gives bytes.

    Raises:
        InstanceError: the file cannot be read, a stream gives text, or the gzip data is damaged.
    """
    if source == STDIN:
        return Source("<stdin>", "stdin", _unpacked("<stdin>", sys.stdin.buffer.read()))
    if isinstance(source, str | Path):
        path = Path(source)
        try:
            return Source(str(source), path.name, _unpacked(str(source), path.read_bytes()), path)
        except OSError as error:
            raise InstanceError(f"{source or '(empty name)'}: cannot be read ({error.strerror or error})") from None
    name = getattr(source, "name", None)
    place = name if isinstance(name, str) else "<stream>"
    data = source.read()
    if not isinstance(data, bytes):
        raise InstanceError(f"{place}: it is read as bytes; open the stream in binary mode")
    return Source(place, Path(place).name.strip("<>"), _unpacked(place, data))


def _unpacked(place: str, data: bytes) -> bytes:
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InstanceError(f"{place}: damaged gzip data ({error}); fetch the file again") from None
