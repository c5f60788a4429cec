"""The headline suite and its reports: what is said follows from the records, and a page needs nothing but itself."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from opt.bench import SUITES, chunking, feather
from opt.bench.claims import CLAIMS
from opt.bench.claims.claim import listed, percent
from opt.bench.headline import HEADLINE
from opt.bench.report import as_html, as_markdown, write_report
from opt.bench.runner import Section, Suite, Table
from opt.cli import run
from opt.cli.console import shown

VOID = {"meta", "img", "br", "link"}


class Page(HTMLParser):
    """Reads a page and refuses tags that do not nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.images, self.tags, self.cells, self.addresses = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag == "img":
            self.images.append(dict(attrs))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


def _records(claim, values, seeds=2):
    """Records of the claim's quick tasks, the figures given by what the test knows of them."""
    params = [{"claim": claim, **params} for params in CLAIMS[claim].tasks(seeds, True)]
    return [{"params": each, "values": values(each)} for each in params]


def _backlog(params):
    """Sorted-F at 110; every order worse, but for one order on chats."""
    latency = {order + rule: 150 for order in ("fcfs", "sof", "total-size", "svf") for rule in ("", "-skip", "-pack")}
    latency |= {"sorted-f": 110, "staggered": 105, "fcfs-skip": 140}
    if params["family"] == "chat":
        latency |= {"total-size-pack": 99}
    return {"bound": 100, "latency": latency}


def test_what_is_said_of_sorted_f_follows_from_the_records():
    verdict = CLAIMS["sorted-f"].verdict(_records("sorted-f", _backlog))
    assert "mixture, 1,000 in 16,492: Sorted-F's mean latency is 27 % less than FCFS" in verdict.measured
    assert "it is 10.0 % above a certified lower bound, staggered 5.0 %" in verdict.measured
    assert "mixture, 1,000 in 16,492; mixture, 1,000 in 131,072; summarization, 1,000 in 16,492" in verdict.holds
    assert "chat" not in verdict.holds
    assert verdict.fails.endswith("chat, 1,000 in 16,492: total-size-pack 10 % less")
    best = CLAIMS["sorted-f"].tables(_records("sorted-f", _backlog))[1]
    assert {row[4] for row in best.rows} == {"1.4000 fcfs-skip"}


def _groups(params):
    """The bandit at three times vLLM's policy with 100 groups, a tenth slower than it with 5, level without sharing."""
    gain = {0: 1.0, 5: 0.9, 100: 3.0}[params["groups"]]
    rates = dict.fromkeys(feather.POLICIES_RUN, 100.0) | {"feather-bandit": 100 * gain, "sglang-dfs-weight": 150.0}
    run = {"max_wait_s": 1.0, "scheduler_share": 0.001, "scheduler_us": 5.0, "iterations": 250}
    runs = {name: {"tokens_per_s": rate, **run} for name, rate in rates.items()}
    return {"cells": [{"shared": 5120, "longest": 10, "arrivals": "burst", "runs": runs}]}


def test_what_is_said_of_feather_follows_from_the_records():
    records = _records("feather", _groups)
    verdict = CLAIMS["feather"].verdict(records)
    assert "price of a repeated read 1 (no locality): the bandit has 1.64 (0.90 to 3.00) times the" in verdict.measured
    assert verdict.measured.startswith(
        "5 groups of 5K shared tokens or more: 0.90 (0.90 to 0.90) times vLLM FCFS, reported about 4"
    )
    assert "1.10 (0.60 to 2.00) times that of the best usual policy" in verdict.measured
    assert verdict.measured.endswith("without sharing 1.00 (1.00 to 1.00) times vLLM FCFS")
    assert "price of a repeated read 1 (no locality), 1 of 2 cells, with 100 groups" in verdict.holds
    assert verdict.holds.endswith("twice the best usual policy in 3 of 6 cells")
    assert "less than twice in 0 of 2 cells, slower than vLLM FCFS by over 2 % in 1" in verdict.fails
    assert CLAIMS["feather"].tables(records)
    assert CLAIMS["feather"].pictures(records)


def _routers(params):
    """Kairos halves the wait at every load above 1, and does nothing below; another router attains more on `code`."""
    better = params["load"] > 1
    plain = {"ttft_p95_s": 4.0, "attainment": 0.5, "prefill_share": 0.2, "deflected": 0.0, "gap_broken": 0.0}
    changed = plain | {"ttft_p95_s": 2.0, "attainment": 0.75} if better else plain
    others = dict.fromkeys(("never", "co-locate", "slo-externality", "taichi"), plain)
    joint = changed | {"attainment": 0.9 if params["workload"] == "code" else 0.5}
    return {"routers": {**others, "kairos": changed, "joint-least-ttft": joint, "rolling": changed}}


def test_what_is_said_of_kairos_follows_from_the_records():
    records = _records("kairos", _routers)
    verdict = CLAIMS["kairos"].verdict(records)
    assert "Kairos P95 TTFT -50 to +0 %, attainment +0 to +25 points (+0 to +50 %)" in verdict.measured
    assert "execution of the prompt is 20 to 20 % of" in verdict.measured
    assert "in 8 of 12 cells: 2P2D, code, load 1.3" in verdict.holds
    assert "in 4: 2P2D, code, load 0.7" in verdict.fails
    assert "over a point more than Kairos in 3: 2P2D, code, load 0.7; 2P2D, code, load 1.3; 2P2D, code, load 2" in verdict.fails
    assert CLAIMS["kairos"].tables(records)[0].rows[0][:4] == ["2P2D", "code", 0.7, 1]
    assert CLAIMS["kairos"].pictures(records)


def _chunks(params):
    """SLOWeave at 30 against 10 for whole prompts where the target is 10 ms, level with the best fixed chunk elsewhere."""
    goodput = dict.fromkeys(chunking.POLICIES_COMPARED, 20.0)
    goodput |= {"full-prefill": 10.0, "sloweave": 30.0} if params["tpot_ms"] == 10 else {}
    figures = {name: {"goodput_req_s": value, "ttft_p99_s": 1.0} for name, value in goodput.items()}
    return dict.fromkeys(chunking.LOADS, figures)


def test_what_is_said_of_sloweave_follows_from_the_records():
    records = _records("sloweave", _chunks)
    verdict = CLAIMS["sloweave"].verdict(records)
    assert "synthetic step, 10 ms: 3.00 at light load, 3.00 at knee load, 3.00 at heavy load times" in verdict.measured
    assert "reported 3.35" in verdict.measured
    assert "in 3 of 15 cells: sloweave-synthetic, 10 ms, mixed, light: 1.50" in verdict.holds
    assert verdict.fails == "level (to 5 %) with the best of them in 12, below it by over 2 % in 0: nowhere in these cells"
    assert len(CLAIMS["sloweave"].tables(records)[0].rows) == 15
    assert CLAIMS["sloweave"].pictures(records)


MADE = {"sorted-f": _backlog, "feather": _groups, "kairos": _routers, "sloweave": _chunks}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("at", [0, -1])
def test_one_task_is_enough_to_say_something(claim, at):
    """As after an interrupt: every part of the report on what is there, whichever task that is."""
    section = HEADLINE.sections([_records(claim, MADE[claim])[at]])[1]
    assert section.tables[0].rows
    assert section.pictures[0].figure.axes


def test_the_command_writes_the_reports(monkeypatch, tmp_path, capsys):
    """One small cell of one claim, measured in a process of its own: a table, a page and Markdown."""
    monkeypatch.setattr("opt.bench.claims.backlog.QUICK", (("mixture", 50, 16_492),))
    monkeypatch.setattr("opt.bench.headline.CLAIMS", {"sorted-f": CLAIMS["sorted-f"]})
    page, text = tmp_path / "h.html", tmp_path / "h.md"
    assert run(["bench", "headline", "--quick", "--seeds", "1", "--report", str(page), "--report", str(text)]) == 0
    shown_there = capsys.readouterr()
    assert "arXiv 2508.06133" in shown_there.out
    assert "[1/1, " in shown_there.err  # a line, not a bar: this is no terminal
    assert "mixture, 50 in 16,492" in " ".join(" ".join(Page(page.read_text()).cells).split())
    assert "| mixture | 50 | 16,492 | 1 |" in text.read_text()


def test_ratios_and_lists_read_well():
    assert (percent(0.62), percent(1.015), percent(2.5)) == ("38 % less", "1.5 % more", "150 % more")
    assert listed([]) == "nowhere in these cells"
    assert listed(list("abcdefgh")) == "a; b; c; d; e; f; and 2 more"


def test_a_claim_is_measured_as_its_task_says():
    """A small backlog: certified latencies above the bound for every solver the tables name."""
    params = {"claim": "sorted-f", "family": "mixture", "n": 60, "memory": 16_492, "seed": 0}
    values = HEADLINE.measure(params)
    assert min(values["latency"].values()) >= values["bound"] > 0
    assert HEADLINE.tables([{"params": params, "values": values}])[1].rows[0][:4] == ["mixture", 60, 16_492, 1]


def test_quick_is_a_part_of_the_whole():
    keys = [{repr(sorted(params.items())) for params in HEADLINE.tasks(2, quick=quick)} for quick in (True, False)]
    assert keys[0] < keys[1]
    assert SUITES["headline"] is HEADLINE
    assert HEADLINE.tables([]) == []


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "headline.html"
    write_report(HEADLINE, _records("sorted-f", _backlog), path, shown=shown)
    return path.read_text()


def test_the_page_holds_all_it_shows(page):
    """Balanced tags, no script, nothing to load, pictures that are well-formed SVG and have words for those who cannot see."""
    read = Page(page)
    assert "script" not in read.tags
    assert all(address.startswith("data:image/svg+xml;base64,") for address in read.addresses)
    assert not re.search(r"https?://|url\(|@import", page)
    assert len(read.images) == 1
    for image in read.images:
        picture = ElementTree.fromstring(base64.b64decode(image["src"].partition(",")[2]))
        assert picture.tag.endswith("svg")
        assert image["alt"]
    assert "1.4000 fcfs-skip" in read.cells


def test_the_same_records_give_the_same_page(page, tmp_path):
    write_report(HEADLINE, _records("sorted-f", _backlog), tmp_path / "again.html", shown=shown)
    assert (tmp_path / "again.html").read_text() == page


def test_markup_in_a_table_is_text():
    section = Section("a < b", ["1 & 2"], [Table('"x"', ["p|q", "n"], [["<script>\n&", 1_000]])])
    read = Page(as_html("t", [section], ["<i>"], shown=shown))
    assert read.cells == ["p|q", "n", "<script>\n&", "1,000"]
    assert "| p\\|q | n |\n| --- | ---: |\n| <script> & | 1,000 |" in as_markdown("t", [section], [], shown=shown)


def test_any_suite_has_a_report(tmp_path):
    """One without sections shows its tables, one that was interrupted at once shows that nothing is there."""
    suite = Suite("s", "what it is", lambda seeds: [], lambda params: {}, lambda records: [Table("t", ["a"], [[0.5]])])
    machine = {"machine": {"system": "L", "processor": "P", "cores": 2}, "versions": {"python": "3"}}
    for name, mark in (("a.md", "| 0.5000 |"), ("a.html", '<td class="number">0.5000</td>')):
        write_report(suite, [{"params": {}, "values": {}, **machine}], tmp_path / name, shown=shown)
        text = (tmp_path / name).read_text()
        assert mark in text
        assert "Measured on L, P, 2 cores, with python 3." in text
        write_report(suite, [], tmp_path / name, shown=shown)
        assert mark not in (tmp_path / name).read_text()
