"""The clock: an engine that serves requests step by step, and the policies that tell it what to do.

Three seams: a policy says *what* a step does, a cost model *how long* it takes, the memory *where* the tokens live.

How to write a policy
---------------------
A policy is a function from a `View` (an engine at the start of a step, true outputs hidden) to a `Batch` (what the step
does), wrapped in `Policy`, and made by a function `(requests, config, *, seed, **params) -> Policy`, so that it may keep
a state of its own; one line in `opt.sim.policies.POLICIES` gives it a name. The view shows `now`, `waiting` (a queue:
`head`, iteration, length), `running` (indices in the order of admission), `ready()` (whose next step is a decode),
`partial()` (whose prompt is not finished), `needs(i)`, `base(i)` (tokens in memory, or cached), `memory`, `requests`
(columns: prompt, arrival, announced outputs, targets, ranks, prefix hashes), `progress` (columns: computed, produced,
last_s, ...), `config` and `cost`. A batch is filled by

* `batch.decode()`: one token for everybody who is ready, or for the indices you give; False if they do not all fit;
* `batch.add(i, tokens)`: a chunk of at most so many tokens of i's prompt; admits i if it waits; False if refused;
* `batch.fits(i, tokens)`: a question only;
* `batch.preempt(i)`: i loses its memory and waits again;
* `batch.load(i, tokens)`, `batch.seconds(i, tokens)`: the step as it stands, or with so many more tokens of i;
* `batch.largest(i, limit_s)`: the most tokens of i with which the step takes no longer than that.

The engine checks memory, budget and seats as the batch is filled: what is refused leaves no trace. Return the batch.
Set `batch.repeat = FOREVER` if, until something arrives, finishes or needs memory, the same decision would be made
again: such steps run in compiled code. An empty batch idles until the next arrival, or until `batch.wake_s`.

A policy that keeps every gap between tokens below a limit by choosing the chunk:

>>> from opt.sim.batch import FOREVER
>>> from opt.sim.engine import Engine, Policy
>>> from opt.sim.policies.vllm import decode_or_preempt
>>> def within(limit_s):
...     def decide(view):
...         batch = view.batch()
...         decode_or_preempt(view, batch)
...         pending = view.partial() or ([view.waiting.head] if len(view.waiting) else [])
...         for i in pending[:1]:
...             size = batch.largest(i, limit_s) if len(batch) else view.needs(i)
...             if size:
...                 batch.add(i, size)
...         batch.repeat = 1 if pending else FOREVER
...         return batch
...     return Policy(decide)

It runs in an engine, which a program may advance as it likes, or with `opt.simulate(instance, policy=...)`:

>>> from opt.core.cost import CostModel
>>> from opt.core.instance import Instance
>>> from opt.sim.workload import workload
>>> seconds = CostModel("toy", "linear", {"base": 0.01, "per_token": 1e-4})
>>> instance = Instance(10_000, [100, 3000], [200, 5], arrival_s=[0.0, 0.5])
>>> load = workload(instance)
>>> engine = Engine(load, within(0.04), cost=seconds, kv_tokens=instance.memory)
>>> engine.submit(range(instance.n))
>>> engine.advance(until_s=0.5)
>>> engine.count, len(engine.waiting), engine.busy
(1, 1, True)
>>> engine.advance()
>>> engine.completed, bool(load.progress.max_gap_s[0] <= 0.04 + 1e-9)
(2, True)

Several engines share one workload: `engine.submit(requests, at_s, computed=..., tokens=...)` takes a request that brings
keys and values along or leaves after some tokens (`engine.finished` lists who left), `engine.withdraw(i)` gives a waiting
one back, and `engine.advance(t)` or `engine.step(t)` run what starts before t.
"""
