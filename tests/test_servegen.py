"""Laws of the ServeGen reader, and of what it draws."""

from __future__ import annotations

import numpy as np
import pytest
from traces_read import HERE, MEMORY, read, text

from opt.core.errors import InstanceError
from opt.core.traces import read_trace
from opt.core.traces.draws import Gamma, Lengths, Uniform, Weibull, arrivals, weibull_shape


def generate(**options):
    return read_trace(HERE / "servegen_trace.csv", "servegen", memory=100_000, **options)


def test_servegen_repeats_itself_and_a_client_does_not_depend_on_the_others():
    whole = generate(duration=1200, seed=3)
    again = generate(duration=1200, seed=3, clients=HERE / "servegen_clients.csv")
    assert whole.origin == again.origin
    assert np.array_equal(whole.prompt, again.prompt)
    assert np.array_equal(whole.arrival_s, again.arrival_s)
    assert not np.array_equal(whole.prompt[:100], generate(duration=1200, seed=4).prompt[:100])
    few = generate(n=50, seed=3)
    assert np.array_equal(few.prompt, whole.prompt[:50])
    assert np.array_equal(few.arrival_s, whole.arrival_s[:50])
    one = generate(duration=1200, seed=3, tenants=1)
    (kept,) = set(one.client)
    assert one.prompt.tolist() == [p for p, client in zip(whole.prompt.tolist(), whole.client, strict=True) if client == kept]


def test_servegen_crosses_windows_and_counts_what_it_should():
    # Over the two windows: client 0 sends 2 * 600 + 4 * 600, client 1 0.5 * 600, client 7 1.0 * 600 requests on average.
    counts = np.array([[generate(duration=1200, seed=seed).client.count(client) for client in (0, 1, 7)] for seed in range(30)])
    expected = np.array([3600, 300, 600])
    error = counts.std(axis=0) / np.sqrt(30)
    assert (np.abs(counts.mean(axis=0) - expected) < 4 * error).all()
    later = generate(start=600, duration=300)
    assert set(later.client) == {0, 7}
    assert 600 <= float(later.origin["shift"]) < 610
    assert later.arrival_s[-1] < 300


def test_servegen_says_what_it_was_asked_and_what_it_borrowed():
    found = generate(start=600, seed=5, tenants=2)
    assert found.origin["generator"] == "servegen"
    assert (found.origin["start_s"], found.origin["duration_s"], found.origin["seed"], found.origin["tenants"]) == (
        600,
        600,
        5,
        2,
    )
    assert found.origin["clients"] == "servegen_clients.csv"
    assert len(found.origin["clients_sha256"]) == 64
    assert found.origin["borrowed_lengths"]["7"] in (0, 1)  # client 7 has no length statistics


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n = 0: must be an integer >= 1"),
        ({"seed": 0.5}, "seed = 0.5: must be an integer >= 0"),
        ({"start": 6000}, "no client sends anything from 6000 s to 6600 s"),
        ({"n": 10**6}, r"n = 1000000: only \d+ requests come from 0 s to 1200 s"),
        ({"tenants": 3}, "tenants = 3: only 2 clients are active then"),
        (
            {"clients": HERE / "azure.csv"},
            "the header lacks .*which format servegen .clients. needs; its fields fit --format azure",
        ),
    ],
)
def test_servegen_refuses_what_it_cannot_do(options, message):
    with pytest.raises(InstanceError, match=message):
        generate(**options)


SERVEGEN = "client,t_s,rate_req_s,cv,pattern"
CLIENTS = (HERE / "servegen_clients.csv").read_text().splitlines()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,0,1_0,1,Gamma", "rate_req_s = '1_0'"),
        ("0,1,1,1,Gamma", "t_s = 1: must be a multiple of 600"),
        ("0,0,1,1,Gamma", "client 0 has a row for t_s = 0 already"),
        ("1,0,0,1,Gamma", "rate_req_s = '0': must be a number from 1e-09 to 1e\\+06"),
        ("1,0,1,nan,Gamma", "cv = 'nan': must be a number from 0.001 to 10000"),
        ("1,0,1,1,Poisson", "pattern = 'Poisson': must be Gamma or Weibull"),
        ("-1,0,1,1,Gamma", "client = '-1': must be an integer >= 0"),
    ],
)
def test_servegen_rates_are_read_as_strictly(row, message):
    lines = [SERVEGEN, "0,0,1,1,Gamma", row]
    with pytest.raises(InstanceError, match=f":3: {message}"):
        read(lines, "servegen", clients=HERE / "servegen_clients.csv")
    found = read(lines, "servegen", clients=HERE / "servegen_clients.csv", on_bad_row="skip")
    assert found.origin["bad_rows"] == {"count": 1, "first_lines": [3]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([CLIENTS[0], CLIENTS[1], CLIENTS[1]], ":3: client 0 stands in the file twice; fix the row$"),
        ([CLIENTS[0], "0,9,1,1,5,9,8,9,5,5,5,5"], ":2: quantiles 9, 8, 9: must not fall"),
        ([CLIENTS[0], "0,9,1,1,5,,8,9,5,5,5,5"], ":2: input_p50 = '': must be a number from 1 to"),
        ([CLIENTS[0], CLIENTS[2]], "client 0 of the rates is not in the file of clients"),
        ([CLIENTS[0], CLIENTS[3].replace("7", "0", 1)], "no client with requests has length statistics"),
    ],
)
def test_servegen_clients_are_always_strict(rows, message):
    with pytest.raises(InstanceError, match=message):
        read([SERVEGEN, "0,0,1,1,Gamma"], "servegen", clients=text(*rows), on_bad_row="skip")


def test_servegen_needs_its_second_file(tmp_path):
    lonely = tmp_path / "x_trace.csv"
    lonely.write_text(f"{SERVEGEN}\n0,0,1,1,Gamma\n")
    with pytest.raises(InstanceError, match=r"there is no x_clients\.csv beside it"):
        read_trace(lonely, "servegen", memory=MEMORY)
    with pytest.raises(InstanceError, match="give the file of clients"):
        read([SERVEGEN, "0,0,1,1,Gamma"], "servegen")


@pytest.mark.parametrize(
    ("mean", "p50", "p90", "p99"),
    [
        (320.7, 269, 431, 544),
        (130.3, 206, 214, 222),
        (3.0, 1, 1, 15),
        (46, 46, 46, 46),
        (3195.3, 67, 28263, 28263),
        (278, 279, 279, 279),
    ],
)
def test_lengths_meet_their_quantiles_and_their_mean(mean, p50, p90, p99):
    # (130.3, 206, ...) needs a heavy lower half; (3, 1, 1, 15) a tail: its last percent averages 15 + (3 - 2.4) / 0.01.
    drawn = Lengths(mean, p50, p90, p99).draw((np.arange(100_000) + 0.5) / 100_000)
    assert (np.diff(drawn) >= 0).all()
    assert drawn[0] >= 1
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert [drawn[49_999], drawn[89_999], drawn[98_999]] == pytest.approx([p50, p90, p99], rel=0.005, abs=1)
    if mean <= p99:
        assert drawn[-1] <= max(p99, 75)


@pytest.mark.parametrize("cv", [0.2, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("law", [Gamma, Weibull])
def test_gaps_have_the_stated_mean_and_variation_and_counts_the_stated_rate(law, cv):
    gaps = law(2.0, cv).gaps(Uniform(1).draw(400_000))
    assert gaps.mean() == pytest.approx(0.5, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    counts = [len(arrivals(law(2.0, cv), Uniform(seed, 9), 60)) for seed in range(400)]
    # A renewal process begun at a fixed event instead of in its steady state would send (cv**2 - 1) / 2 more.
    assert abs(np.mean(counts) - 120) < 4 * np.std(counts) / 20 + 1e-9


def test_weibull_of_variation_one_is_exponential():
    assert weibull_shape(1.0) == pytest.approx(1.0, abs=1e-9)


def test_the_random_streams_are_pinned():
    # PCG64 and SeedSequence promise these bits for every numpy; a change here would change every generated workload.
    assert Uniform(0, 1, 2).draw(2).tolist() == [0.8817035384837327, 0.28917661385918403]
