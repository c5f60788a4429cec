"""The headline suite and its reports: what is said follows from the records, and a page needs nothing but itself."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from opt.bench import SUITES
from opt.bench.claims import CLAIMS
from opt.bench.claims.claim import listed, percent
from opt.bench.headline import HEADLINE
from opt.bench.report import as_html, as_markdown, write_report
from opt.bench.runner import Section, Suite, Table
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
