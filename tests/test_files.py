"""Files say the same after any number of readings, and a damaged one is refused with the place of the damage."""

import gzip
import io
import json

import numpy as np
import pytest
from exhaustive import four
from test_instance import FULL, full, same

from opt.core.certify import certify
from opt.core.errors import CertificateError, InstanceError
from opt.core.files import Plan, digest, plan_of, read, read_instance, read_plan, to_json, verify, write
from opt.core.instance import Instance
from opt.core.model import Proposal
from opt.core.strict_json import as_json
from opt.solvers.bounds import mean_busy_time

HEAD = '"format": "kvopt-instance/1", "memory": 9'
ROW = '{"prompt": 1, "output": 2}'


def text(body):
    return io.BytesIO(body.encode())


def many(n=60):
    """Enough requests to be written by columns; every field, seconds with long decimals."""
    third = [k / 3 if k % 4 else None for k in range(1, n + 1)]
    return Instance(
        memory=10,
        prompt=[k % 7 for k in range(n)],
        output=[1 + k % 3 for k in range(n)],
        arrival_s=[k / 7 for k in range(n)],
        ids=[f"é{k}" for k in range(n)],
        ttft_s=third,
        tpot_s=third[::-1],
        itl_s=third,
        priority=[k - 30 for k in range(n)],
        max_output=[None, 3] * (n // 2),
        predicted=[2, None] * 30,
        predicted_low=[1] * n,
        predicted_high=[None, 9] * 30,
        session=[None, 4, "x"] * 20,
        client=["c", None] * 30,
        prefix=[[2**64 - 1 - 2 * k - level for level in range(-(-(k % 7) // 3))] for k in range(n)],
        prefix_chunk=3,
        name='a "name"',
        origin={"source": "made", "deep": [1, {"x": None}]},
    )


THINGS = {
    "rows": full,
    "columns": many,
    "bare": four,
    "empty": lambda: Instance(5, [], [], name="nobody"),
    "empty with arrivals": lambda: Instance(5, [], [], arrival=[]),
    "empty with seconds": lambda: Instance(5, [], [], arrival_s=[]),
    "empty with prefixes": lambda: Instance(5, [], [], prefix=[], prefix_chunk=3),
    "all dropped": lambda: full(oversized="drop").replace(memory=1, oversized="drop"),
    "labels dropped": lambda: Instance(5, [1, 9], [1, 1], session=[None, "s"], ttft_s=[None, 1.0], oversized="drop"),
}


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_a_file_read_and_written_again_is_the_same_file(tmp_path, thing, suffix):
    instance = THINGS[thing]()
    first, second = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
    write(instance, first)
    again = read(first)
    write(again, second)
    assert first.read_bytes() == second.read_bytes()
    assert same(again, instance)
    assert digest(again) == digest(instance)


def test_rows_columns_packed_and_streamed_have_one_digest(tmp_path):
    instance = full().replace(memory=12)
    rows = to_json(instance)
    keys = dict.fromkeys(key for row in rows["requests"] for key in row)
    columns = {key: [row.get(key) for row in rows["requests"]] for key in keys}
    as_columns = {**{k: v for k, v in rows.items() if k != "requests"}, "columns": columns}
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    plain.write_text(json.dumps(as_columns, indent=3))
    write(instance, packed)
    forms = [
        read(plain),
        read(packed),
        read(str(plain)),
        read(io.BytesIO(plain.read_bytes())),
        read(io.BytesIO(packed.read_bytes())),
    ]
    assert {digest(form) for form in forms} == {digest(instance)}


def test_the_digest_sees_every_field():
    """It ignores nothing but how the file is laid out: default ids are the indices written out."""
    other = {
        "ids": ["a", "b", "d"],
        "prompt": [3, 0, 5],
        "output": [2, 2, 1],
        "arrival": [0, 2, 3],
        "prefix": [[7], [], [7, 9]],
        "ttft_s": [0.5, None, 1.5],
        "tpot_s": None,
        "itl_s": None,
        "priority": None,
        "max_output": None,
        "predicted": None,
        "predicted_low": None,
        "predicted_high": None,
        "session": None,
        "client": None,
        "name": "other",
        "memory": 11,
        "origin": {},
        "arrival_s": [0.0, 2.0, 1.0],
    }
    digests = [digest(full())]
    for key, cell in other.items():
        digests.append(digest(full().replace(**{"arrival": FULL["arrival"] if key != "arrival_s" else None, key: cell})))
    digests.append(digest(full().replace(prefix=[[7, 5], [], [7, 9]], prefix_chunk=3)))
    assert len(set(digests)) == len(digests)
    assert digest(four()) == digest(four().replace(ids=[0, 1, 2, 3])) != digest(four().replace(ids=["0", "1", "2", "3"]))


def test_the_smallest_file():
    instance = read(text("{" + HEAD + ', "requests": [' + ROW + "]}"))
    assert same(instance, Instance(9, [1], [2]))
    assert read(text("{" + HEAD + ', "columns": {"prompt": [], "output": []}}')).n == 0
    assert read(io.BytesIO(b"\xef\xbb\xbf{" + HEAD.encode() + b', "requests": []}')).n == 0


def test_a_missing_priority_is_zero():
    rows = '[{"prompt": 1, "output": 2, "priority": -1}, ' + ROW + "]"
    assert read(text("{" + HEAD + ', "requests": ' + rows + "}")).priority.tolist() == [-1, 0]


def requests(*rows, head=HEAD, more=""):
    return "{" + head + ', "requests": [' + ", ".join(rows) + "]" + more + "}"


DAMAGED = [
    ("", "the file is empty"),
    ("{", "1:2: not JSON"),
    ("[]", "not a kvopt file"),
    ("{}", "not a kvopt file"),
    ('{"format": "kvopt-instance/2", "memory": 9, "requests": []}', "Invalid enum value 'kvopt-instance/2'"),
    ('{"format": "kvopt-instance/1", "requests": []}', "missing required field `memory`"),
    ("{" + HEAD + "}", "either as `requests` .* or as `columns`"),
    ("{" + HEAD + ', "requests": [], "columns": {"prompt": [], "output": []}}', "either as `requests` .* or as `columns`"),
    ("{" + HEAD + ', "requests": [], "requests": []}', r"\$: the key 'requests' stands twice"),
    (requests('{"prompt": 1, "output": 2, "prompt": 1}'), r"\$\.requests\[0\]: the key 'prompt' stands twice"),
    (requests(more=', "origin": {"a": {"b": 1, "b": 2}}'), r"\$\.origin\.a: the key 'b' stands twice"),
    (requests(more=', "memry": 3'), "unknown field `memry`"),
    (requests('{"prompt": 1, "output": 2, "promt": 1}'), r"unknown field `promt`.*\$\.requests\[0\]"),
    (requests('{"output": 2}'), r"missing required field `prompt`.*\$\.requests\[0\]"),
    (requests(ROW, '{"prompt": NaN, "output": 2}'), r"\$\.requests\[1\]\.prompt: NaN is not a number"),
    (requests('{"prompt": 1, "output": 2, "arrival_s": Infinity}'), r"\$\.requests\[0\]\.arrival_s: Infinity is not"),
    (requests('{"prompt": 1, "output": 2, "arrival_s": 1e400}'), r"\$\.requests\[0\]\.arrival_s: 1e400 is out of range"),
    (requests(more=', "origin": {"a": 1e400}'), r"origin.*a"),
    (requests('{"prompt": true, "output": 2}'), r"Expected `int`, got `bool`.*\$\.requests\[0\]\.prompt"),
    (requests('{"prompt": 1.5, "output": 2}'), r"Expected `int`, got `float`.*\$\.requests\[0\]\.prompt"),
    (requests('{"prompt": "1", "output": 2}'), r"Expected `int`, got `str`.*\$\.requests\[0\]\.prompt"),
    (requests('{"prompt": 1e400, "output": 2}'), r"\$\.requests\[0\]\.prompt: 1e400 is out of range"),
    (requests('{"prompt": null, "output": 2}'), r"Expected `int`, got `null`.*\$\.requests\[0\]\.prompt"),
    (requests('{"prompt": -1, "output": 2}'), r"prompt\[0\] = -1: must be an integer from 0"),
    (requests(ROW, '{"prompt": 1, "output": 0}'), r"output\[1\] = 0: must be an integer from 1"),
    (requests('{"prompt": ' + "9" * 30 + ', "output": 2}'), r"prompt\[0\] = 9{30}: must be an integer"),
    (requests('{"prompt": ' + "9" * 5000 + ', "output": 2}'), "thousands of digits"),
    (requests('{"prompt": 8, "output": 2}'), r"request 0 \(index 0\): peak 10 .* exceeds the memory of 9"),
    (requests(ROW, '{"prompt": 1, "output": 2, "arrival": 4}'), r"\$\.requests\[0\]: lacks arrival, which others have"),
    (requests('{"prompt": 1, "output": 2, "id": "a"}', ROW), r"\$\.requests\[1\]: lacks id"),
    (requests('{"prompt": 1, "output": 2, "arrival": 1, "arrival_s": 1}'), r"arrival \(rounds\) or arrival_s"),
    (requests('{"prompt": 1, "output": 2, "arrival": -1}'), r"arrival\[0\] = -1"),
    (requests('{"prompt": 1, "output": 2, "arrival_s": -0.25}'), r"arrival_s\[0\] = -0.25"),
    (requests('{"prompt": 1, "output": 2, "id": 7}', '{"prompt": 1, "output": 2, "id": "7"}'), r"ids\[1\] = '7': already"),
    (requests('{"prompt": 1, "output": 2, "prefix": [1]}'), "prefix_chunk = None: prefix needs"),
    (requests('{"prompt": 1, "output": 2, "prefix": [1.0]}', more=', "prefix_chunk": 2'), r"Expected `int`, got `float`"),
    (requests('{"prompt": 1, "output": 2, "prefix": [true]}', more=', "prefix_chunk": 2'), r"Expected `int`, got `bool`"),
    (requests(head='"format": "kvopt-instance/1", "memory": 0'), "memory = 0"),
    (requests(head='"format": "kvopt-instance/1", "memory": true'), "Expected `int`, got `bool`"),
    (requests(head=f'"format": "kvopt-instance/1", "memory": {10**14}'), "in tokens, not bytes"),
    ("{" + HEAD + ', "columns": {"prompt": [1, 2], "output": [1]}}', "output has 1 values for 2 requests"),
    ("{" + HEAD + ', "columns": {"prompt": [1]}}', "missing required field `output`"),
    ("{" + HEAD + ', "columns": {"prompt": [1], "output": [1], "arrival": [null]}}', "Expected `int`, got `null`"),
    ('{"a":' * 100_000, "nested too deeply"),
]


def test_half_a_character_survives_as_it_is(tmp_path):
    """JSON may escape half a surrogate pair; such a name is kept, and can be hashed and written."""
    path = tmp_path / "half.json"
    path.write_text(requests(more=', "name": "\\ud800"'))
    instance = read(path)
    write(instance, path)
    assert digest(read(path)) == digest(instance)


@pytest.mark.parametrize(("body", "message"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_instance_is_refused_at_its_place(tmp_path, body, message):
    path = tmp_path / "damaged.json"
    path.write_text(body)
    with pytest.raises(InstanceError, match=rf"damaged\.json:.*{message}"):
        read(path)


def test_bytes_that_are_no_text_or_no_file(tmp_path):
    packed = gzip.compress(requests(ROW).encode())
    for data, message in [
        (packed[:-9], "damaged gzip data"),
        (packed[:20] + b"xxxx" + packed[24:], "damaged gzip data"),
        (b"{\n\xff}", ":2: byte 0xff is not UTF-8"),
    ]:
        with pytest.raises(InstanceError, match=message):
            read(io.BytesIO(data))
    with pytest.raises(InstanceError, match=r"nowhere\.json: cannot be read"):
        read(tmp_path / "nowhere.json")
    with pytest.raises(InstanceError, match="open the stream in binary mode"):
        read(io.StringIO("{}"))


def test_oversized_requests_of_a_file_can_be_dropped():
    body = requests(ROW, '{"prompt": 8, "output": 2}')
    assert read_instance(text(body), oversized="drop").origin["oversized_dropped"] == {"count": 1, "first_ids": [1]}


def made(**changes):
    bound = mean_busy_time(four())
    return Plan(**{"instance": four(), "start": np.array([5, 1, 1, 0]), "solver": "me", "bound": bound, **changes})


def test_a_plan_survives_the_file_and_is_verified(tmp_path):
    path, again = tmp_path / "plan.json.gz", tmp_path / "again.json.gz"
    write(made(), path)
    plan = read(path)
    write(plan, again)
    assert path.read_bytes() == again.read_bytes()
    assert (plan.start.tolist(), plan.solver, plan.kv, plan.bound) == ([5, 1, 1, 0], "me", "separate", made().bound)
    result = verify(path)
    assert (result.total_latency, result.bound.ceil, result.solver, result.status) == (24, 19, "me", "feasible")
    assert verify(result).total_latency == verify(made()).total_latency == 24


def test_a_result_is_written_as_its_plan(tmp_path):
    result = certify(four(), Proposal(np.array([5, 1, 1, 0])), solver="me")
    write(result, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json").bound is None
    with pytest.raises(ValueError, match="found no schedule"):
        plan_of(certify(four(), Proposal(None), solver="me"))


def test_a_plan_may_refer_to_its_instance(tmp_path):
    """By a path relative to the plan, whatever the working directory, and by the hash of what it says."""
    (tmp_path / "data").mkdir()
    (tmp_path / "plans").mkdir()
    home, path = tmp_path / "data" / "i.json", tmp_path / "plans" / "p.json"
    write(four(), home)
    write(made(), path, instance_path=home)
    assert json.loads(path.read_text())["instance_ref"]["path"] == "../data/i.json"
    assert verify(path).total_latency == 24
    home.write_text(home.read_text().replace('"requests"', '\n"requests"'))  # another layout, the same instance
    assert verify(path).total_latency == 24
    write(four().replace(prompt=[8, 2, 6, 2]), home)
    with pytest.raises(CertificateError, match=r"made for another version of \.\./data/i\.json"):
        verify(path)
    home.unlink()
    with pytest.raises(InstanceError, match="cannot be read"):
        verify(path)


def test_a_plan_for_nobody(tmp_path):
    """An empty selection of a trace keeps its place for arrivals, also across files."""
    nobody = Instance(5, [], [], arrival=[])
    write(nobody, tmp_path / "i.json")
    write(Plan(nobody, np.zeros(0, np.int64)), tmp_path / "p.json", instance_path=tmp_path / "i.json")
    assert verify(tmp_path / "p.json").status == "optimal"


def damaged(change):
    value = {"format": "kvopt-plan/1", "instance": to_json(four()), "start": [5, 1, 1, 0]}
    bound = made().bound
    value["bound"] = {"method": bound.method, "value": str(bound.value), "certificate": dict(bound.certificate)}
    change(value)
    return io.BytesIO(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda v: v["start"].__setitem__(0, 4), CertificateError, "round 5 holds 26 tokens, over the memory of 17"),
        (lambda v: v["start"].__setitem__(3, -1), CertificateError, "starts at round -1, before its arrival"),
        (lambda v: v["start"].pop(), CertificateError, "must hold 4 integers"),
        (lambda v: v["start"].__setitem__(3, 2**70), InstanceError, r"\$\.start: a round is out of range"),
        (lambda v: v["start"].__setitem__(3, 0.5), InstanceError, r"Expected `int`, got `float`.*\$\.start\[3\]"),
        (lambda v: v["start"].__setitem__(3, False), InstanceError, r"Expected `int`, got `bool`.*\$\.start\[3\]"),
        (lambda v: v.pop("start"), InstanceError, "missing required field `start`"),
        (lambda v: v.pop("instance"), InstanceError, "either `instance` or `instance_ref`"),
        (lambda v: v.update(instance_ref={"path": "x", "sha256": "y"}), InstanceError, "either `instance` or `instance_ref`"),
        (lambda v: v.update(kv="shred"), InstanceError, r"Invalid enum value 'shred'.*\$\.kv"),
        (lambda v: v.update(sovler="me"), InstanceError, "unknown field `sovler`"),
        (lambda v: v["instance"].update(memory=13), InstanceError, r"\$\.instance: request 0 .* exceeds the memory of 13"),
        (lambda v: v["bound"].update(value=str(made().bound.value + 1)), CertificateError, "mean-busy-time bound claims"),
        (lambda v: v["bound"].update(value="nineteen"), InstanceError, r"\$\.bound\.value = 'nineteen': must be a fraction"),
        (lambda v: v["bound"].update(value="19/0"), InstanceError, r"\$\.bound\.value = '19/0': must be a fraction"),
        (lambda v: v["bound"].update(value="nan"), InstanceError, r"\$\.bound\.value = 'nan': must be a fraction"),
        (lambda v: v["bound"].update(value="1e5000"), InstanceError, r"\$\.bound\.value = '1e5000': must be a fraction"),
        (lambda v: v["bound"].update(value=19), InstanceError, "Expected `str`, got `int`"),
        (lambda v: v["bound"].update(certificate={}), CertificateError, "no certificate that can be checked"),
        (lambda v: v["bound"]["certificate"].update(formula="volume"), CertificateError, "claims .* its certificate proves"),
        (lambda v: v["bound"]["certificate"].update(formula="magic"), CertificateError, "unknown closed form 'magic'"),
        (lambda v: v.update(kv="shared"), CertificateError, "proved for separate KV caches"),
        (lambda v: v["bound"].update(kv="shared"), CertificateError, "does not hold with shared prefixes"),
    ],
)
def test_a_damaged_plan_is_refused(change, kind, message):
    with pytest.raises(kind, match=message):
        verify(read_plan(damaged(change)))


def test_a_wrong_kind_of_file():
    with pytest.raises(InstanceError, match="kvopt-instance/1"):
        read_plan(text(requests(ROW)))
    with pytest.raises(InstanceError, match="kvopt-plan/1"):
        read_instance(damaged(lambda v: None))


def test_a_bound_keeps_every_digit(tmp_path):
    instance = Instance(7, [3, 1, 0], [2, 2, 5], arrival=[0, 1, 1])
    bound = mean_busy_time(instance)
    write(Plan(instance, np.array([0, 2, 4]), bound=bound), tmp_path / "p.json")
    assert read_plan(tmp_path / "p.json").bound.value == bound.value
    assert bound.value.denominator > 2**20


def test_a_file_is_replaced_only_by_a_complete_one(tmp_path):
    path = tmp_path / "i.json"
    write(four(), path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(four().replace(origin={"x": float("nan")}), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InstanceError, match="cannot be written"):
        write(four(), tmp_path / "no" / "folder.json")


def test_standard_streams(monkeypatch, capfdbinary):
    write(four(), "-")
    written = capfdbinary.readouterr().out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(written)))
    assert same(read("-"), four())


def test_json_documents_have_no_nan():
    assert as_json({"a": 1}) == b'{\n  "a": 1\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json({"a": float("nan")})


def test_small_files_are_for_human_eyes(tmp_path):
    write(four(), tmp_path / "i.json")
    lines = (tmp_path / "i.json").read_text().splitlines()
    assert lines[6:8] == ['  {"prompt":9,"output":5},', '  {"prompt":2,"output":5},']
