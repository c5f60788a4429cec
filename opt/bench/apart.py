"""One task in a process of its own: a fresh interpreter that measures, says what it found, and ends.

So its peak memory is its own and a crash costs one task. The process lives in a session of its own, where Ctrl-C does not
reach it, and it ends when the one that started it does, whichever way. It gets its task as a line of JSON on standard
input and gives its result on standard output; what a solver may print goes to standard error.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["end", "execute", "facts", "received", "start"]

BOOT = "import sys; sys.path[:] = {path!r}; from opt.bench.apart import execute; execute()"
VERSIONS = ("numpy", "numba", "scipy", "highspy", "ortools")


def start(suite: str, params: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a process that runs one task of the suite named so."""
    command = [sys.executable, "-c", BOOT.format(path=sys.path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps({"suite": suite, "params": params}).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it is dead already, and `received` says so
    return process


def received(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for a process and return what it said, or the fact that it died without a word."""
    assert process.stdout is not None
    with process:
        said, code = process.stdout.read(), process.wait()
    try:
        result: dict[str, Any] = json.loads(said)
    except json.JSONDecodeError:
        result = {**facts(), "error": f"the worker process ended with code {code} before it gave a result"}
    return result


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process at once, whatever it is doing; it may have ended before."""
    with process:
        process.kill()


def execute() -> None:
    """Run the task that standard input names, and give its figures, the time they took and the peak memory."""
    speak = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    task = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with speak:
        speak.write(_measured(task["suite"], task["params"]))


def _end_with_parent() -> None:
    """Wait until nobody holds the other end of standard input, which is until our parent is done with us or dead."""
    os.read(0, 1)
    os._exit(1)


def _measured(suite: str, params: dict[str, Any]) -> bytes:
    from opt.bench import SUITES

    begun = time.perf_counter()
    try:
        values = SUITES[suite].measure(params)
        figures = {"values": values, "task_seconds": time.perf_counter() - begun, "peak_mb": _peak_mb()}
        return _as_line({**facts(), **figures})
    except Exception as error:
        return _as_line({**facts(), "error": f"{type(error).__name__}: {error}"})


def _as_line(result: dict[str, Any]) -> bytes:
    return json.dumps(result, allow_nan=False, default=lambda scalar: scalar.item()).encode()


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def facts() -> dict[str, Any]:
    """Return what a record says of the machine it was measured on, and of what ran there."""
    return {"machine": _machine(), "versions": _versions()}


def _machine() -> dict[str, Any]:
    return {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in ("kvopt", *VERSIONS)}
    return {"python": platform.python_version(), **found}
