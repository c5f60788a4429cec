"""Our hook in SGLang's registry, and our prefix trees beside SGLang's. Skipped where SGLang is not installed."""

import importlib.util
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed: make test-engines"),
    pytest.mark.timeout(300),
]

HOOK = """
import os
os.environ["KVOPT_SGLANG_ORDER"] = "sof"
from types import SimpleNamespace
from opt.plugins.sglang.trees import importable
importable()
from importlib.metadata import entry_points
assert any(point.value == "opt.plugins.sglang:register" for point in entry_points(group="sglang.srt.plugins"))
from opt.plugins.sglang import register
register()
from sglang.srt.plugins.hook_registry import HookRegistry
HookRegistry.apply_hooks()
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.mem_cache.radix_cache import RadixCache
policy = SchedulePolicy("fcfs", RadixCache.create_simulated(disable=True), False, False, False)
policy.tree_cache.supports_fast_match_prefix = lambda: False
policy._touch_waiting_prefixes = lambda *_: None  # asks the settings of a whole server
policy._determine_active_policy = lambda _: policy.policy
def request(rid, limit):
    params = SimpleNamespace(max_new_tokens=limit, custom_params=None)
    return SimpleNamespace(rid=rid, origin_input_ids=[1, 2], output_ids=[], sampling_params=params)
queue = [request("a", 30), request("b", 10), request("c", 20)]
policy.calc_priority(queue)
assert [one.rid for one in queue] == ["b", "c", "a"], queue
print("hooked")
"""

TREES = """
from opt.plugins.sglang.trees import race
for page in (1, 16):
    found = race(seed=1, page=page, n=200)
    assert len(found) >= 4 and all(row["equal_hits"] for row in found.values()), found
print("equal")
"""


@pytest.mark.parametrize(("program", "said"), [(HOOK, "hooked"), (TREES, "equal")], ids=["hook", "trees"])
def test_inside_sglang(program, said):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert said in done.stdout, done.stderr[-2000:]
