"""One conformance suite over `ROUTERS`, and what single routers promise."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from opt.cli import cli
from opt.core.cost import CostModel
from opt.core.instance import Instance
from opt.serve.cluster import ROUTERS, Node, Pools, simulate_pools
from opt.serve.cluster.rivals import average_queue_s
from opt.sim.config import EngineConfig
from tests.engines import loads
from tests.test_cluster import SECONDS, check_cluster, pools


@pytest.mark.parametrize("name", ROUTERS)
@given(loads(), st.integers(1, 2), st.integers(1, 2))
def test_every_router_serves_every_request(name, instance, prefill, decode):
    """R1: conservation, causality, parts; R2: same seed, same timeline."""
    instance = instance.replace(ttft_s=np.full(instance.n, 0.1), itl_s=np.full(instance.n, 0.012))
    config = EngineConfig(block_size=2, token_budget=16, kv_tokens=80)
    first, again = (simulate_pools(instance, pools(prefill=prefill, decode=decode, config=config), name) for _ in range(2))
    check_cluster(first)
    assert first.metrics == again.metrics
    assert first.rows() == again.rows()


def test_a_request_that_fits_nowhere_is_rejected_and_counted():
    config = EngineConfig(block_size=2, token_budget=16, kv_tokens=20)
    instance = Instance(100, [10, 50, 10, 15], [3, 3, 3, 30], arrival_s=[0.0, 0.1, 0.2, 0.3])
    for name in ROUTERS:
        timeline = simulate_pools(instance, pools(config=config), name)
        check_cluster(timeline)
        assert timeline.metrics["rejected"] == 2, name


@pytest.mark.parametrize("name", ROUTERS)
def test_routes_do_not_depend_on_outputs_that_nobody_announced(name):
    """R3: before any step has ended, two loads that differ in true outputs only are sent alike."""
    rng = np.random.default_rng(5)
    prompt, seen = rng.integers(1, 60, 30), []
    for output in (np.full(30, 2), rng.integers(2, 30, 30)):
        calls = []

        def spy(router, calls=calls):
            def asked(view):
                routes = list(router(view))
                if view.now == 0.0:
                    calls.extend(routes)
                return routes

            return asked

        instance = Instance(200, prompt, output, arrival_s=np.zeros(30), itl_s=np.full(30, 0.02), ttft_s=np.full(30, 0.5))
        config = EngineConfig(block_size=2, token_budget=64, kv_tokens=200)
        simulate_pools(instance, pools(config=config), name, lengths="none", wrap=spy)
        seen.append(calls)
    assert seen[0] == seen[1]
    assert seen[0]


def burst(n=60, prompt=400, itl=0.05, ttft=1.0):
    """Equal prompts that all come at once, with targets."""
    return Instance(20_000, [prompt] * n, [20] * n, arrival_s=np.zeros(n), itl_s=np.full(n, itl), ttft_s=np.full(n, ttft))


def machines(prefill=1, decode=1):
    """Nodes that compute 10 tokens a millisecond."""
    cost = CostModel("toy", "linear", {"base": 0.005, "per_token": 1e-4, "per_kv_token": 1e-7})
    return pools(cost, prefill, decode, config=EngineConfig(token_budget=1000, kv_tokens=40_000))


def test_deflection_helps_in_a_burst_and_breaks_no_gap():
    never, kairos, ours = (simulate_pools(burst(), machines(), name) for name in ("never", "kairos", "rolling"))
    first = [timeline.metrics["ttft_s"]["p95"] for timeline in (never, kairos, ours)]
    assert first[2] < first[0]
    assert first[1] < first[0]
    assert never.metrics["deflected"] == 0 < kairos.metrics["deflected"] < ours.metrics["deflected"]
    for timeline in (never, kairos, ours):
        assert timeline.metrics["late_by_chunks"] == 0
        assert timeline.workload.progress.max_gap_s.max() <= 0.05 + 1e-9


def test_requests_in_time_come_before_those_that_cannot_be():
    """Ten prompts of 0.5 s each, one node, one second: two can be in time, whatever the order of the others."""
    cost = CostModel("toy", "linear", {"per_token": 1e-3})
    nodes = (Node("m", "mixed", cost, EngineConfig(token_budget=500, kv_tokens=10_000)),)
    instance = Instance(10_000, [500] * 10, [1] * 10, arrival_s=np.arange(10) / 100, ttft_s=[0.2] * 8 + [2.0, 3.0])
    plain, ours = (simulate_pools(instance, Pools(nodes), name) for name in ("never", "rolling"))
    assert plain.metrics["slo_attainment"] == 0.0
    assert ours.metrics["slo_attainment"] == 0.2
    assert ours.metrics["completed"] == 10


@pytest.mark.parametrize("off", ["deflect", "choose", "late_binding", "stay"])
def test_every_idea_can_be_switched_off(off):
    timeline = simulate_pools(burst(20), machines(), "rolling", **{off: False})
    check_cluster(timeline)
    assert (timeline.metrics["deflected"] == 0) == (off == "deflect")


def test_kairos_deflects_one_prompt_a_node():
    """All at once: the first prompts fill both kinds of nodes, and no decode node has two prompts at a time."""
    timeline = simulate_pools(burst(30), machines(2, 2), "kairos")
    cluster, progress = timeline.cluster, timeline.workload.progress
    for node in (2, 3):
        mine = cluster.deflected[cluster.prefill_node[cluster.deflected] == node]
        order = mine[np.argsort(progress.start_s[mine])]
        assert (progress.start_s[order[1:]] >= progress.first_s[order[:-1]] - 1e-12).all()


def test_the_published_queue_estimate():
    """4,000 tokens ahead in chunks of 1,000, each as long as one after 2,000 tokens; own time: one chunk."""
    asked = []

    def spy(router):
        def wrapped(view):
            asked.append((len(asked), average_queue_s(view, 0, view.held[0])))
            return router(view)

        return wrapped

    cost = CostModel("toy", "linear", {"base": 0.005, "per_token": 1e-4, "per_pair": 1e-8})
    nodes = machines().nodes
    cluster = Pools((Node("p", "prefill", cost, nodes[0].config), Node("d", "decode", cost, nodes[1].config)), heartbeat_s=10.0)
    instance = Instance(20_000, [1000] * 5, [2] * 5, arrival_s=np.zeros(5))
    simulate_pools(instance, cluster, "never", wrap=spy)
    step = 0.105 + 1e-8 * (1000 * 2000 + 1000 * 1001 / 2)
    own = 0.105 + 1e-8 * (1000 * 1001 / 2)
    assert asked[4][1] == pytest.approx(4 * step + own)


def test_prefixes_that_are_cached_where_they_decode_stay_there():
    """The second request of a session finds all but its last chunk on the decode node, once it has been there."""
    rows = [[1, 2, 3, 4], [1, 2, 3, 4, 5]]
    instance = Instance(200, [64, 80], [4, 4], arrival_s=[0.0, 5.0], prefix=rows, prefix_chunk=16)
    timeline = simulate_pools(instance, pools(config=EngineConfig(kv_tokens=200)), "prefix-threshold")
    assert timeline.cluster.prefill_node.tolist()[1] == timeline.cluster.decode_node.tolist()[0]
    assert timeline.workload.progress.cached.tolist() == [0, 64]


def test_unknown_names_and_parameters_are_refused():
    with pytest.raises(ValueError, match=r"unknown router 'kairo'; did you mean kairos"):
        simulate_pools(burst(1), machines(), "kairo")
    with pytest.raises(ValueError, match="router kairos has no parameter gamma; it takes alpha, beta"):
        simulate_pools(burst(1), machines(), "kairos", gamma=1)


@pytest.fixture
def files(tmp_path):
    node = {"cost": "a100-llama-3-8b", "count": 2}
    cluster = {
        "format": "kvopt-pools/1",
        "nodes": [{**node, "name": "p", "role": "prefill"}, {**node, "name": "d", "role": "decode"}],
    }
    (tmp_path / "pools.json").write_text(json.dumps(cluster))
    rows = [{"id": k, "arrival_s": k / 10, "prompt": 500, "output": 5, "ttft_s": 1.0} for k in range(10)]
    (tmp_path / "a.json").write_text(json.dumps({"format": "kvopt-instance/1", "memory": 10_000, "requests": rows}))
    return [str(tmp_path / "a.json"), "--pools", str(tmp_path / "pools.json")]


def run(*arguments):
    return CliRunner().invoke(cli, ["simulate", *arguments])


def test_the_command_line_runs_a_cluster(files, tmp_path):
    answer = json.loads(run(*files, "--router", "kairos", "--json").stdout)
    assert (answer["router"], answer["completed"], answer["submitted"]) == ("kairos", 10, 10)
    assert set(answer["parts"]) == {"queue_s", "prefill_s", "transfer_s", "decode_queue_s", "decode_s"}
    out = tmp_path / "rows.csv"
    shown = run(*files, "--requests", str(out), "--perfetto", str(tmp_path / "t.json"))
    assert shown.exit_code == 0
    assert "rolling" in shown.stdout
    assert "decode queue" in shown.stdout
    assert out.read_text().splitlines()[0].endswith("queue_s,prefill_s,transfer_s,decode_queue_s,decode_s")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "sarathi"], "--policy"),
        (["--cost", "unit"], "--cost"),
        (["--until", "3"], "--until"),
        (["--router", "nobody"], "nobody"),
    ],
)
def test_options_that_contradict_a_cluster_are_refused(files, arguments, message):
    result = run(*files, *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_router_needs_pools(files):
    result = run(files[0], "--router", "kairos")
    assert result.exit_code == 2
    assert "--pools" in result.output


def test_routers_are_listed():
    shown = CliRunner().invoke(cli, ["list", "routers", "--json"])
    assert set(ROUTERS) <= set(json.loads(shown.stdout)["routers"])
    assert SECONDS.name == "toy"
