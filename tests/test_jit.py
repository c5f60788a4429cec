"""Compiled loops: a cached copy never outlives what it was compiled from."""

import os
import subprocess
import sys

CALLED = "from opt.core.jit import compiled\n\n@compiled\ndef step(x):\n    return x + {}\n"
CALLER = "from called import step\nfrom opt.core.jit import compiled\n\n@compiled\ndef twice(x):\n    return step(step(x))\n"


def _run(folder, expression, before=""):
    done = subprocess.run(
        [sys.executable, "-c", f"import caller\n{before}\nprint({expression})"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "NUMBA_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_loop_is_compiled_anew_when_another_module_changes(tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "called.py").write_text(CALLED.format(1))
    said = 'f"{caller.twice(5)} {sum(caller.twice.stats.cache_hits.values())}"'
    assert _run(tmp_path, said) == "7 0"
    assert _run(tmp_path, said) == "7 1"
    (tmp_path / "called.py").write_text(CALLED.format(2))
    assert _run(tmp_path, said) == "9 0"


def test_the_clock_of_limits_stands_still_while_loops_are_compiled(tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "called.py").write_text(CALLED.format(3))
    told = "import time; from opt.core.clock import now; begun, ours = time.monotonic(), now(); caller.twice(1)"
    stood = _run(tmp_path, "(time.monotonic() - begun) - (now() - ours) > 0.01", told)
    assert stood == "True"
    assert _run(tmp_path, "(time.monotonic() - begun) - (now() - ours) > 0.01", told) == "False"
