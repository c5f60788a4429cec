"""Clusters: conservation and causality across pools, parts that add up, transfers, files, and chunks that harm nobody."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opt.core.cost import CostModel
from opt.core.errors import InstanceError
from opt.core.instance import Instance
from opt.serve.cluster import Link, Node, Pools, Route, RouterKind, disturbed, read_pools, simulate_pools, write_pools
from opt.serve.cluster.cluster import PARTS, Cluster
from opt.serve.cluster.kernels import chunked_s, largest_chunk, quickest_s, replay, step_s
from opt.serve.cluster.network import Network
from opt.serve.cluster.planning import Burst, plan
from opt.serve.cluster.policies import Harm, node_policy, peak_growth
from opt.sim.config import EngineConfig
from opt.sim.engine import Engine, StalledError
from opt.sim.workload import DONE, REJECTED, workload
from tests.engines import SECONDS, check, loads

NO_HOST = np.zeros(2)
FORMS = {
    "linear": CostModel(
        "l", "linear", {"base": 0.01, "per_token": 1e-5, "per_decode": 1e-4, "per_kv_token": 1e-7, "per_pair": 3e-9}
    ),
    "max": CostModel("m", "max", {"base": 0.01, "floor": 0.01, "per_token": 5e-5, "per_decode": 1e-4, "per_pair": 3e-9}),
    "p-norm": CostModel("p", "p-norm", {"base": 0.01, "floor": 0.01, "per_token": 5e-5, "per_pair": 3e-9}, exponent=3.0),
    "piecewise": CostModel(
        "k",
        "piecewise",
        {"per_pair": 3e-9, "mix_per_token": 1e-6},
        knots=((1, 0.01), (64, 0.011), (65, 0.02), (512, 0.02), (2000, 0.1)),
    ),
    "flat": CostModel("f", "linear", {"base": 0.01}),
}


def pools(cost=SECONDS, prefill=2, decode=2, mixed=0, config=None, **more):
    """A small cluster of equal nodes."""
    config = config or EngineConfig(block_size=2, token_budget=16, kv_tokens=100)
    roles = ["prefill"] * prefill + ["decode"] * decode + ["mixed"] * mixed
    nodes = [Node(f"{role}{k}", role, cost, config.replace(name=f"{role}{k}")) for k, role in enumerate(roles)]
    return Pools(tuple(nodes), kv_bytes_per_token=1e6, heartbeat_s=0.01, **more)


def chaos_router(requests, pools, *, seed=0):
    """Any legal routes, and holding as long as it likes; what a node reports is neither newer than now nor too old."""
    rng = np.random.default_rng(seed)

    def router(view):
        for node in view.nodes:
            assert node.report.at_s <= view.now + 1e-12
            assert view.now - node.report.at_s <= pools.heartbeat_s + 1e-9
        places = range(len(pools.nodes))
        sent = [i for i in view.held if rng.random() < 0.5]
        return [Route(i, int(rng.choice(places)), int(rng.choice(places))) for i in sent]

    return router


CHAOS = RouterKind(chaos_router, "anything legal", "slack", "slack")


def check_cluster(timeline):
    """K1, K2, K3 on what happened."""
    cluster, load = timeline.cluster, timeline.workload
    progress, arrival = load.progress, load.requests.arrival_s
    done, refused = progress.state == DONE, progress.state == REJECTED
    assert (done | refused).all()
    assert (progress.produced[done] == load.output[done]).all()
    for engine in timeline.engines:
        check(engine)
        assert not engine.busy
        assert engine.memory.used == 0
        assert engine.submitted == engine.completed + engine.rejected
    moved = done & (cluster.prefill_node != cluster.decode_node)
    assert (progress.start_s[done] >= arrival[done]).all()
    assert (cluster.prefilled_s[moved] >= progress.start_s[moved]).all()
    assert (cluster.delivered_s[moved] >= cluster.prefilled_s[moved]).all()
    assert (cluster.joined_s[moved] >= cluster.delivered_s[moved]).all()
    assert (progress.first_s[moved] == cluster.joined_s[moved]).all()
    assert (progress.finish_s[done] >= progress.first_s[done]).all()
    parts = np.array([getattr(cluster.parts, name) for name in PARTS])
    assert (parts[:, done] >= 0).all()
    np.testing.assert_allclose(parts.sum(0)[done], (progress.finish_s - arrival)[done], atol=1e-9)
    figures = timeline.metrics
    assert figures["submitted"] == figures["completed"] + figures["rejected"]


@given(loads(), st.integers(0, 99), st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_conservation_causality_and_parts_whatever_the_router(instance, seed, prefill, decode, cached):
    config = EngineConfig(block_size=2, token_budget=16, kv_tokens=50, prefix_cache=cached)
    check_cluster(simulate_pools(instance, pools(prefill=prefill, decode=decode, mixed=1, config=config), CHAOS, seed=seed))


@given(loads(), st.integers(0, 99))
def test_one_node_alone_is_its_engine(instance, seed):
    alone = pools(prefill=0, decode=0, mixed=1)
    here = simulate_pools(instance, alone, "never", seed=seed)
    load = workload(instance)
    engine = Engine(load, node_policy(load.requests, rule="ladder"), alone.nodes[0].config, SECONDS)
    engine.submit(range(instance.n))
    engine.advance()
    for name in ("start_s", "first_s", "finish_s", "max_gap_s"):
        np.testing.assert_allclose(getattr(here.workload.progress, name), getattr(load.progress, name), atol=1e-12)


def test_a_burst_on_one_prefill_node_waits_for_its_turn():
    """16 equal prompts at once: the k-th has its first token after k steps, its transfer, and the wait for a step's end."""
    cost = CostModel("toy", "linear", {"base": 0.5, "per_token": 0.01})
    config = EngineConfig(token_budget=100, kv_tokens=10_000)
    network = (Link(("prefill0", "decode1"), 1e6, 0.01),)
    cluster = Pools((Node("prefill0", "prefill", cost, config), Node("decode1", "decode", cost, config)), network, 1000.0)
    burst = Instance(10_000, [100] * 16, [2] * 16, arrival_s=np.zeros(16))
    timeline = simulate_pools(burst, cluster, "never")
    np.testing.assert_allclose(timeline.cluster.prefilled_s, 1.5 * np.arange(1, 17))
    np.testing.assert_allclose(timeline.cluster.parts.transfer_s, 0.01 + 100 * 1000 / 1e6)
    check_cluster(timeline)
    assert simulate_pools(burst, cluster, "rolling").metrics["ttft_s"]["p95"] < timeline.metrics["ttft_s"]["p95"]


def test_settings_of_decode_nodes_change_decode_nodes_only():
    rng = np.random.default_rng(0)
    instance = Instance(100, rng.integers(1, 30, 40), rng.integers(2, 9, 40), arrival_s=np.sort(rng.uniform(0, 1, 40)))
    plain = pools(prefill=1, decode=1)
    slow = Pools(
        (plain.nodes[0], Node("d", "decode", FORMS["flat"], EngineConfig(kv_tokens=64, max_running=1))), heartbeat_s=0.01
    )
    one, other = (simulate_pools(instance, cluster, "never").cluster for cluster in (plain, slow))
    np.testing.assert_array_equal(one.prefilled_s, other.prefilled_s)


def test_a_router_that_holds_for_ever_is_an_error():
    kind = RouterKind(lambda requests, pools, seed: lambda view: [], "holds")
    with pytest.raises(StalledError, match="holds 1 requests"):
        simulate_pools(Instance(10, [3], [2], arrival_s=[0.0]), pools(), kind)


def test_transfers_share_links_in_turn():
    """1 MB at 1 MB/s and 10 ms over a switch; the second one waits for the first where they share a link."""
    nodes = tuple(Node(name, "mixed", SECONDS, EngineConfig(kv_tokens=16)) for name in "abc")
    links = (Link(("a", "s"), 1e6, 0.01), Link(("b", "s"), 1e6, 0.01), Link(("c", "s"), 2e6, 0.01))
    network = Network(Pools(nodes, links))
    assert network.alone_s(0, 1, 1e6) == pytest.approx(1.02)
    assert network.send(0, 1, 1e6, 5.0) == pytest.approx(6.02)
    assert network.send(0, 2, 1e6, 5.0) == pytest.approx(7.02)  # the link from a is taken until 6
    assert network.send(1, 2, 1e6, 5.0) == pytest.approx(7.52)  # the link to c is taken from 6 to 6.5
    assert network.send(2, 1, 1e6, 9.0) == pytest.approx(10.02)  # the other direction is free


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.floats(0, 1e6), st.floats(0, 0.1)), max_size=12))
def test_no_transfer_is_faster_than_the_empty_network(asked):
    nodes = tuple(Node(name, "mixed", SECONDS, EngineConfig(kv_tokens=16)) for name in "abc")
    network = Network(Pools(nodes))
    now, carried = 0.0, 0.0
    for source, target, size, gap in asked:
        now += gap
        if source == target:
            continue
        arrival = network.send(source, target, size, now)
        assert arrival >= now + network.alone_s(source, target, size) - 1e-12
        carried += size * (source == 0)
        if source == 0:
            assert arrival >= carried / 25e9  # the link of a node carries no more than its bandwidth
    assert Network(Pools(nodes)).alone_s(0, 0, 1e9) == 0.0


@pytest.mark.parametrize("form", FORMS)
@given(st.integers(0, 3000), st.integers(0, 100), st.integers(1, 4000), st.floats(0.005, 0.3), st.integers(0, 300))
def test_the_closed_form_is_the_largest_chunk(form, context, decodes, most, limit, before):
    c = FORMS[form].coefficients
    load = np.array([before, before**2 / 2, before > 0, 0, decodes, 500 * decodes, 0], np.float64)
    size = largest_chunk(c, NO_HOST, load, float(context), most, limit)
    assert 0 <= size <= most
    assert size == 0 or step_s(c, NO_HOST, load, float(context), float(size)) <= limit
    assert size == most or step_s(c, NO_HOST, load, float(context), float(size + 1)) > limit


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 64))
def test_a_replayed_queue_is_what_the_engine_does(sizes, budget):
    load = workload(Instance(1000, sizes, [1] * len(sizes), arrival_s=np.zeros(len(sizes))))
    config = EngineConfig(token_budget=budget, kv_tokens=1000, block_size=1)
    engine = Engine(load, node_policy(load.requests, rule="budget"), config, SECONDS)
    engine.submit(range(len(sizes)))
    engine.advance()
    done = replay(SECONDS.coefficients, NO_HOST, np.array(sizes, np.int64), np.zeros(len(sizes), np.int64), budget)
    np.testing.assert_allclose(load.progress.first_s, done)


@given(st.integers(1, 400), st.integers(0, 20), st.sampled_from(sorted(FORMS)))
def test_no_schedule_of_chunks_beats_the_dynamic_program(tokens, decodes, form):
    c = FORMS[form].coefficients
    for ladder in (False, True):
        greedy = chunked_s(c, NO_HOST, float(decodes), 0.0, 0.03, 0, tokens, 10_000, ladder)
        assert quickest_s(c, NO_HOST, float(decodes), 0.0, 0.03, tokens, 1) <= greedy + 1e-12


@st.composite
def targeted(draw):
    """A load with targets for gaps, some for the mean, some for every one, some out of reach."""
    instance = draw(loads(most=10))
    cells = st.sampled_from([np.nan, 0.004, 0.009, 0.012, 0.03])
    gaps = draw(st.lists(cells, min_size=instance.n, max_size=instance.n))
    means = draw(st.lists(cells, min_size=instance.n, max_size=instance.n))
    return instance.replace(itl_s=gaps, tpot_s=means)


@settings(max_examples=120)
@given(targeted(), st.integers(0, 99), st.booleans(), st.booleans())
def test_chunks_by_slack_make_no_token_late(instance, seed, share, headroom):
    """D1, whatever is deflected wherever."""
    kind = RouterKind(chaos_router, "anything", "slack", "slack", params={"share": share, "headroom": headroom})
    config = EngineConfig(block_size=2, token_budget=64, kv_tokens=80, host_s=0.001)
    timeline = simulate_pools(instance, pools(prefill=1, decode=2, config=config), kind, seed=seed)
    assert timeline.metrics["late_by_chunks"] == 0


def deflections(cost):
    """An instance in which a decode of 40 tokens runs beside a prompt of 3,000, with a limit of 30 ms for every gap."""
    nodes = (Node("p", "prefill", cost, EngineConfig(kv_tokens=9000)), Node("d", "decode", cost, EngineConfig(kv_tokens=9000)))
    instance = Instance(9000, [100, 3000], [40, 2], arrival_s=[0.0, 0.1], itl_s=[0.03, np.nan])
    kind = RouterKind(lambda requests, pools, seed: lambda view: [Route(i, 1, 1) for i in view.held], "all local")
    return instance, Pools(nodes), kind


def test_a_wrong_model_is_counted_and_an_exact_one_harms_nobody():
    cost = FORMS["linear"]
    instance, cluster, kind = deflections(cost)
    exact = simulate_pools(instance, cluster, kind)
    assert exact.metrics["late_by_chunks"] == 0
    assert exact.metrics["mixed_steps"] >= 2
    assert 0.0299 < exact.workload.progress.max_gap_s[0] <= 0.03 + 1e-12  # the slack is used to the last token
    hopeful = CostModel("hopeful", "linear", {name: 0.9 * seconds for name, seconds in cost.terms.items()})
    wrong = simulate_pools(instance, cluster, kind, beliefs=[hopeful, hopeful])
    assert wrong.metrics["late_by_chunks"] >= 1
    assert wrong.cluster.harm.worst_s == pytest.approx(wrong.workload.progress.max_gap_s[0] - 0.03, abs=1e-9)


def test_disturbed_costs_stay_within_the_error():
    cost = disturbed(FORMS["piecewise"], -0.1, 0.1, 3)
    for name, seconds in FORMS["piecewise"].terms.items():
        assert abs(cost.terms[name] / seconds - 1) <= 0.1
    assert disturbed(FORMS["piecewise"], -0.1, 0.1, 3) == cost


def test_a_banked_mean_is_spent_and_kept():
    """Short steps save time against a mean target; a chunk may spend it, and the mean is kept at the end."""
    instance, cluster, kind = deflections(FORMS["linear"])
    instance = instance.replace(itl_s=None, tpot_s=[0.015, np.nan])
    timeline = simulate_pools(instance, cluster, kind)
    assert timeline.metrics["late_by_chunks"] == 0
    assert timeline.workload.progress.max_gap_s[0] > 0.03
    assert timeline.tpot_s[0] <= 0.015 + 1e-12


FILE = {
    "format": "kvopt-pools/1",
    "nodes": [
        {"name": "p", "role": "prefill", "count": 2, "cost": "a100-llama-3-8b", "engine": {"token_budget": 4096}},
        {"name": "d", "role": "decode", "cost": "h100-llama-3-8b"},
    ],
}


def test_files_come_back_as_they_were(tmp_path):
    path = tmp_path / "pools.json"
    path.write_text(json.dumps({**FILE, "links": [{"between": [a, "s"], "bytes_per_s": 1e9} for a in ("p0", "p1", "d")]}))
    made = read_pools(path)
    assert [node.name for node in made.nodes] == ["p0", "p1", "d"]
    assert made.nodes[0].config.token_budget == 4096
    assert made.nodes[2].kv_tokens == made.nodes[2].cost.memory
    write_pools(made, tmp_path / "again.json")
    again = read_pools(tmp_path / "again.json")
    assert (again.nodes, again.links, again.heartbeat_s) == (made.nodes, made.links, made.heartbeat_s)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "kvopt-pools/2"}, "not a pools file"),
        ({"node": []}, r"unknown field `node`"),
        ({"nodes": FILE["nodes"][:1]}, "needs a node for prompts"),
        ({"nodes": [*FILE["nodes"], FILE["nodes"][1]]}, "node name 'd' stands twice"),
        ({"nodes": [{**FILE["nodes"][0], "cost": "a100"}, FILE["nodes"][1]]}, "neither a name nor a file"),
        ({"nodes": [{**FILE["nodes"][0], "count": 0}, FILE["nodes"][1]]}, "count = 0: must be from 1"),
        ({"nodes": [{**FILE["nodes"][0], "engine": {"token_budgt": 1}}, FILE["nodes"][1]]}, "no setting 'token_budgt'"),
        ({"nodes": [{**FILE["nodes"][0], "engine": {"token_budget": 0}}, FILE["nodes"][1]]}, "token_budget = 0"),
        ({"links": [{"between": ["p0", "d"], "bytes_per_s": 1e9}]}, "node p1 has no path"),
        ({"links": [{"between": ["p0", "d"], "bytes_per_s": 0}]}, "bytes_per_s = 0"),
        ({"heartbeat_s": 0}, "heartbeat_s = 0"),
    ],
)
def test_bad_files_are_refused(tmp_path, change, message):
    path = tmp_path / "pools.json"
    path.write_text(json.dumps({**FILE, **change}))
    with pytest.raises(InstanceError, match=message):
        read_pools(path)


def test_unit_costs_need_a_capacity():
    with pytest.raises(InstanceError, match="no KV capacity"):
        Node("a", "mixed", SECONDS)


def test_policies_refuse_unknown_rules():
    requests = workload(Instance(10, [1], [1], arrival_s=[0.0])).requests
    with pytest.raises(ValueError, match="rule = 'none'"):
        node_policy(requests, rule="none")
    assert Harm().late == 0
    assert Cluster.__doc__


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(1, 9), st.integers(0, 2)), min_size=1, max_size=4),
    st.booleans(),
)
@settings(max_examples=12)
def test_plans_are_optimal_by_exhaustion(jobs, targets):
    """Every assignment and every order on each node, without idling but for releases, against the plan."""
    release = [float(at) for at, *_ in jobs]
    busy = [[float(a), float(b)] for _, a, b, _ in jobs]
    first = [[a + c, float(b)] for _, a, b, c in jobs]
    due = [at + 7.0 for at in release] if targets else []
    best_total, most = np.inf, 0
    for order in itertools.permutations(range(len(jobs))):
        for places in itertools.product((0, 1), repeat=len(jobs)):
            free, ends = [0.0, 0.0], {}
            for i in order:
                begin = max(free[places[i]], release[i])
                free[places[i]] = begin + busy[i][places[i]]
                ends[i] = begin + first[i][places[i]]
            best_total = min(best_total, sum(ends[i] - release[i] for i in ends))
            most = max(most, sum(ends[i] <= due[i] for i in ends) if targets else 0)
    found = plan(Burst(release, busy, first, due))
    assert found.proved
    if targets:
        assert found.in_time == most
    else:
        assert found.total_s == pytest.approx(best_total)


def test_plans_refuse_what_they_cannot_do():
    with pytest.raises(ValueError, match="at most 40"):
        plan(Burst([0.0] * 41, [[1.0]] * 41, [[1.0]] * 41))
    with pytest.raises(ValueError, match="request 0 of the burst can go to no node"):
        plan(Burst([0.0], [[np.inf]], [[np.inf]]))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6), st.integers(1, 4))
def test_the_peak_is_that_of_the_steps_to_come(members, block):
    """Every member makes a token a step until it ends; memory in whole blocks never passes held + growth, nearly reached."""
    held, left = (np.array([cell[k] for cell in members], np.int64) for k in (0, 1))
    growth = peak_growth(held, left, block)
    used = [int((held + t)[left >= t].sum()) for t in range(32)]
    blocks = [int((-(-(held + t)[left >= t] // block) * block).sum()) for t in range(32)]
    assert max(blocks) <= held.sum() + growth
    assert held.sum() + growth == max(used) + len(members) * (block - 1)
