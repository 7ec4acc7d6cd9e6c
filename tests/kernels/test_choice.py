"""The choice of an implementation, driven by fake candidates and a fake clock."""

from __future__ import annotations

import inspect
import json
import re
from contextlib import contextmanager
from functools import partial
from importlib import import_module

import pytest
import torch
import torch._dynamo

from kernels import choice
from kernels.choice import Operations
from results_io import UserError
from tests.kernels.operands import normal


class Bench:
    """Candidates for packed attention, a clock that knows how long each takes, and a record of what ran."""

    def __init__(self, seconds: dict[str, float], **functions):
        self.seconds, self.ran, self.timed = seconds, [], []
        reference = choice.MODULES["packed_attention"].reference
        given = {name: functions.get(name, reference) for name in seconds}
        self.candidates = {"packed_attention": {name: self._recorded(name, given[name]) for name in seconds}}

    def _recorded(self, name, function):
        def call(*arguments):
            self.ran.append(name)
            return function(*arguments)

        return call

    def clock(self, call):
        call()
        self.timed.append(self.ran[-1])
        return self.seconds[self.ran[-1]]

    def operations(self, **options) -> Operations:
        return Operations("cpu", candidates=self.candidates, clock=self.clock, **options)


def operands(batch: int = 3, positions: int = 5, dtype: torch.dtype = torch.float32) -> tuple:
    q, k, v = (normal(batch, 2, positions, 8, seed=seed, dtype=dtype) for seed in range(3))
    return q, k, v, 0.5


def only(operations: Operations) -> dict:
    (entry,) = operations.chosen()["packed_attention"].values()
    return entry


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        ({"reference": 3.0, "compiled": 2.0, "triton": 1.0}, "triton"),
        ({"reference": 3.0, "compiled": 1.0, "triton": 2.0}, "compiled"),
        ({"reference": 1.0, "compiled": 3.0, "triton": 2.0}, "reference"),
        ({"reference": 1.0, "compiled": 1.0, "triton": 1.0}, "reference"),
        ({"reference": 2.0, "compiled": 1.0, "triton": 1.0}, "compiled"),
    ],
)
def test_the_fastest_runs_and_triton_only_if_it_beats_the_others(seconds, fastest):
    bench = Bench(seconds)
    operations = bench.operations()
    operations.packed_attention(*operands())
    assert bench.ran[-1] == fastest
    assert sorted(bench.timed) == sorted(seconds)
    assert only(operations)["chosen"] == fastest and only(operations)["seconds"] == seconds


def test_the_clock_runs_on_the_device_of_the_tensors(monkeypatch):
    """Events on another device's stream would time the launch and not the work: a second GPU would choose by chance."""
    entered: list[torch.Tensor] = []

    @contextmanager
    def device_of(tensor):
        entered.append(tensor)
        yield
        entered.pop()

    bench, arguments = Bench({"reference": 2.0, "triton": 1.0}), operands()

    def clock(call):
        assert [id(tensor) for tensor in entered] == [id(arguments[0])]
        return bench.clock(call)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    Operations("cpu", candidates=bench.candidates, clock=clock).packed_attention(*arguments)
    assert sorted(bench.timed) == ["reference", "triton"] and not entered


def test_a_wrong_result_is_dropped_however_fast():
    reference = choice.MODULES["packed_attention"].reference
    bench = Bench(
        {"reference": 3.0, "compiled": 2.0, "triton": 1.0}, triton=lambda *arguments: reference(*arguments) * (1 + 1e-4)
    )
    operations = bench.operations()
    out = operations.packed_attention(*operands())
    assert torch.equal(out, reference(*operands()))
    entry = only(operations)
    assert entry["chosen"] == "compiled" and "triton" not in bench.timed
    assert entry["dropped"] == {"triton": "differs by 1.0e-04, more than 1.0e-05"}
    assert entry["difference"]["triton"] == pytest.approx(1e-4, rel=1e-2)
    assert entry["difference"]["reference"] == 0 and entry["difference"]["compiled"] == 0


def test_within_tolerance_is_kept_and_its_difference_reported():
    reference = choice.MODULES["packed_attention"].reference
    bench = Bench({"reference": 3.0, "triton": 1.0}, triton=lambda *arguments: reference(*arguments) * (1 + 4e-6))
    operations = bench.operations()
    operations.packed_attention(*operands())
    assert only(operations)["chosen"] == "triton"
    assert only(operations)["difference"]["triton"] == pytest.approx(4e-6, rel=0.1)


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (ValueError("no such tile\nand more"), "ValueError: no such tile"),
        (RuntimeError(), "RuntimeError: "),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
    ],
)
def test_a_candidate_that_raises_is_dropped_alone(raised, reason):
    def broken(*_):
        raise raised

    bench = Bench({"reference": 3.0, "compiled": 2.0, "triton": 1.0}, triton=broken)
    operations = bench.operations()
    operations.packed_attention(*operands())
    entry = only(operations)
    assert entry["chosen"] == "compiled" and entry["dropped"] == {"triton": reason}
    assert entry["seconds"] == {"reference": 3.0, "compiled": 2.0}


@pytest.mark.parametrize(("reference", "tried"), [(4.9e-4, False), (5e-4, True)])
def test_nothing_is_compiled_where_the_reference_is_quick(reference, tried):
    bench = Bench({"reference": reference, "compiled": 1e-6, "triton": 3e-4})
    operations = bench.operations()
    operations.packed_attention(*operands())
    entry = only(operations)
    assert ("compiled" in bench.ran) is tried
    assert entry["chosen"] == ("compiled" if tried else "triton")
    assert entry["dropped"] == ({} if tried else {"compiled": "not tried where the reference takes less than 0.5 ms"})


def test_running_out_of_memory_while_being_timed_drops_too():
    bench = Bench({"reference": 3.0, "triton": 1.0})
    clock = bench.clock

    def failing(call):
        seconds = clock(call)
        if bench.timed[-1] == "triton":
            raise torch.OutOfMemoryError
        return seconds

    operations = Operations("cpu", candidates=bench.candidates, clock=failing)
    operations.packed_attention(*operands())
    assert only(operations)["chosen"] == "reference"
    assert only(operations)["why"] == "no other candidate agrees"
    assert only(operations)["dropped"] == {"triton": "out of memory"}


def test_the_references_out_of_memory_is_the_callers():
    def full(*_):
        raise torch.OutOfMemoryError

    operations = Bench({"reference": 1.0, "triton": 2.0}, reference=full).operations()
    with pytest.raises(torch.OutOfMemoryError):
        operations.packed_attention(*operands())
    assert operations.chosen() == {}


def test_a_choice_is_remembered_for_its_signature_alone():
    bench = Bench({"reference": 3.0, "triton": 1.0})
    operations = bench.operations()
    operations.packed_attention(*operands(batch=3))
    timed = len(bench.timed)
    operations.packed_attention(*operands(batch=4))  # 3 and 4 sequences share a power of two
    assert len(bench.timed) == timed and bench.ran[-1] == "triton"
    bench.seconds = {"reference": 1.0, "triton": 3.0}
    for other in ({"batch": 5}, {"positions": 9}, {"dtype": torch.float64}):
        operations.packed_attention(*operands(**other))
        assert bench.ran[-1] == "reference"
    operations.packed_attention(*operands(batch=4))
    assert bench.ran[-1] == "triton"
    assert [entry["chosen"] for entry in operations.chosen()["packed_attention"].values()] == ["triton"] + 3 * [
        "reference"
    ]
    assert list(operations.chosen()["packed_attention"])[:2] == [
        "float32 B=4 H=2 S=8 D=8 G=2",
        "float32 B=8 H=2 S=8 D=8 G=2",
    ]


def test_nothing_is_timed_without_a_gpu():
    operations = Operations("cpu")
    out = operations.packed_attention(*operands())
    assert torch.equal(out, choice.MODULES["packed_attention"].reference(*operands()))
    assert only(operations) == {
        "chosen": "reference", "why": "nothing is timed on cpu", "seconds": {}, "difference": {}, "dropped": {}
    }  # fmt: skip


def every_call(operations: Operations) -> list[torch.Tensor]:
    z, weight, residual = normal(2, 3, 2, 8, seed=0), normal(2, 8, 16, seed=1), normal(2, 3, 16, seed=2)
    pick, parent = torch.tensor([[0, -1], [-1, -1]], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
    q, prefix = normal(2, 1, 2, 3, 8, seed=3), normal(1, 2, 4, 8, seed=4)
    return [
        operations.select_project(z, z[:1], pick, parent, weight, None, residual),
        operations.suffix_attention(q, q, q, prefix, prefix, 0.3),
        operations.packed_attention(*operands()),
        operations.logit_difference(residual, residual[0], torch.zeros(3), parent, 1e-5, True),
    ]


def test_an_implementation_fixed_by_name_runs_untimed():
    by_reference, by_triton = Operations("cpu", "reference"), Operations("cpu", "triton")
    for one, other in zip(every_call(by_reference), every_call(by_triton), strict=True):
        assert 0 <= (one - other).abs().max() < 1e-5
    chosen = by_triton.chosen()
    assert list(chosen) == ["select_project", "suffix_attention", "packed_attention", "logit_difference"]
    assert {entry["chosen"] for entries in chosen.values() for entry in entries.values()} == {"triton"}
    assert list(chosen["select_project"]) == ["float32 U=2 R=4 H=2 D=8 K=1 C=2 M=16"]
    assert list(chosen["logit_difference"]) == ["float32 U=2 n=4 M=16 V=2 centred"]
    assert json.loads(json.dumps(chosen)) == chosen


def test_every_default_operation_is_measured_by_the_real_reference_and_kernel():
    candidates = {
        operation: {name: function for name, function in functions.items() if name != "compiled"}
        for operation, functions in choice.default_candidates().items()
    }

    def clock(call):
        call()
        return 1.0

    operations = Operations("cpu", candidates=candidates, clock=clock)
    every_call(operations)
    for entries in operations.chosen().values():
        for entry in entries.values():
            assert entry["dropped"] == {} and set(entry["seconds"]) == {"reference", "triton"}
            assert entry["difference"]["triton"] < 1e-6


def test_the_compiled_candidate_compiles_once_and_with_dynamic_sizes(monkeypatch):
    made = []

    def compile(function, dynamic):
        made.append((function, dynamic))
        return function

    monkeypatch.setattr(torch, "compile", compile)
    call = choice.default_candidates()["packed_attention"]["compiled"]
    assert made == []
    call(*operands())
    call(*operands(batch=9))
    assert made == [(choice.MODULES["packed_attention"].reference, True)]


def test_an_unknown_implementation_is_refused():
    with pytest.raises(UserError, match="'cutlass' is unknown; use one of compiled, reference, triton"):
        Operations("cpu", "cutlass")


def test_tensors_elsewhere_are_refused():
    with pytest.raises(ValueError, match="tensors on cpu and Operations for cuda"):
        Operations("cuda", "reference").packed_attention(*operands())


def test_shapes_that_do_not_fit_are_refused_before_anything_runs():
    bench = Bench({"reference": 1.0, "triton": 2.0})
    q, k, v, scale = operands()
    with pytest.raises(ValueError, match=r"k .* has B = 2, but q has B = 3"):
        bench.operations().packed_attention(q, k[:2], v, scale)
    assert bench.ran == []


@pytest.mark.parametrize(
    ("result", "difference", "reason"),
    [
        (torch.tensor([2.0, -4.0]), 0.0, None),
        (torch.tensor([2.0, -3.0]), 0.25, "differs by 2.5e-01, more than 1.0e-05"),
        (torch.tensor([float("nan"), -4.0]), None, "differs from the reference by a number that is not finite"),
        (torch.tensor([2.0]), None, r"gave torch.float32 \[1\], the reference torch.float32 \[2\]"),
        (torch.tensor([2.0, -4.0]).half(), None, "gave torch.float16"),
    ],
)
def test_difference_is_relative_to_the_largest_entry(result, difference, reason):
    found, why = choice.compare(result, torch.tensor([2.0, -4.0]))
    assert found == difference
    assert why is None if reason is None else re.match(reason, why)


def test_an_empty_result_agrees():
    assert choice.compare(torch.zeros(0, 3), torch.zeros(0, 3)) == (0.0, None)


def test_tolerances_are_the_stated_ones():
    steps = {torch.float16: 10, torch.bfloat16: 7}
    for dtype, bits in steps.items():
        assert choice.TOLERANCES[dtype] == 8 * 2.0**-bits / 2
    assert choice.TOLERANCES[torch.float32] == 1e-5
    one = torch.ones(4)
    assert choice.compare(one * (1 + 0.9e-5), one)[1] is None
    assert choice.compare(one * (1 + 1.2e-5), one)[1] is not None


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_large_axes_go_to_the_next_power_of_two(length, expected):
    assert choice.bucket(length) == expected


def test_every_argument_of_every_operation_is_named_in_order():
    for operation, module in choice.MODULES.items():
        for function in (module.reference, getattr(module, operation), getattr(Operations, operation)):
            assert [name for name in inspect.signature(function).parameters if name != "self"] == module.ARGUMENTS
        axes = {axis for layout in module.LAYOUTS.values() for axis in layout.split()}
        assert set(choice.LARGE_AXES[operation]) <= axes


SHAPES = {  # twelve of each operation, some with sizes of 1; the first has no two alike, which torch would take for one size
    "select_project": [
        (3, 5, 7, 3, 24, 40, 2, True), (4, 6, 9, 3, 24, 40, 3, True), (2, 4, 33, 2, 80, 192, 3, True),
        (9, 8, 2, 7, 5, 6, 4, True), (1, 5, 7, 3, 24, 40, 2, True), (1, 9, 4, 2, 16, 32, 5, True),
        (3, 2, 11, 12, 8, 96, 6, True), (5, 5, 5, 5, 5, 5, 5, True), (2, 3, 4, 5, 6, 7, 8, True),
        (6, 17, 3, 4, 64, 70, 2, True), (7, 7, 13, 2, 9, 18, 2, True), (1, 2, 65, 2, 16, 65, 3, True),
    ],
    "suffix_attention": [
        (3, 5, 8, 2, 6, 7, 24), (2, 3, 6, 3, 4, 9, 8), (5, 4, 2, 2, 3, 6, 16), (4, 2, 8, 2, 6, 3, 32), (7, 5, 3, 3, 2, 2, 12),
        (1, 5, 8, 2, 6, 7, 24), (1, 6, 4, 4, 3, 8, 16), (2, 2, 2, 2, 2, 2, 2), (9, 3, 12, 4, 11, 5, 8), (6, 7, 4, 2, 13, 4, 20),
        (3, 8, 6, 2, 7, 10, 40), (1, 3, 6, 2, 9, 4, 8),
    ],
    "packed_attention": [
        (5, 12, 3, 7, 24), (9, 2, 2, 7, 8), (3, 2, 2, 20, 80), (2, 6, 2, 30, 16), (4, 8, 4, 64, 16), (7, 7, 7, 7, 7),
        (1, 6, 2, 5, 24), (1, 12, 4, 9, 8), (11, 3, 3, 2, 40), (6, 10, 5, 13, 4), (8, 4, 4, 33, 12), (1, 6, 3, 17, 16),
    ],
    "logit_difference": [
        (3, 4, 40, 5), (5, 3, 24, 9), (2, 7, 65, 4), (8, 2, 16, 8), (4, 4, 4, 4), (6, 9, 33, 2), (1, 4, 40, 5), (1, 3, 70, 8),
        (9, 5, 12, 3), (7, 6, 48, 10), (2, 2, 2, 2), (1, 8, 21, 6),
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("operation", list(SHAPES))
def test_a_reference_compiles_to_few_graphs_over_many_shapes(operation):
    graphs, limit = [], torch._dynamo.config.recompile_limit

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    own = import_module(f"tests.kernels.test_{operation}")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    reference = choice.MODULES[operation].reference
    program = torch.compile(reference, dynamic=True, backend=backend)
    assert len(SHAPES[operation]) == 12
    for shape in SHAPES[operation]:
        arguments = own.operands(shape, True) if operation == "logit_difference" else own.operands(shape)
        assert torch.allclose(program(*arguments), reference(*arguments), rtol=1e-5, atol=1e-5)
    assert len(graphs) <= 4 < limit
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.slow
def test_what_torch_would_no_longer_compile_is_left_to_the_reference(monkeypatch):
    monkeypatch.setattr(choice, "RECOMPILATIONS", 2)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    reference = choice.MODULES["logit_difference"].reference
    candidates = {"logit_difference": {"reference": reference, "compiled": choice.compiled(reference)}}
    operations = Operations("cpu", "compiled", candidates)
    for states, prompts, variants in [(2, 3, 4), (1, 3, 4), (2, 1, 4), (2, 3, 1), (1, 1, 4)]:
        x, rest = normal(states, prompts, 8, seed=0), (normal(prompts, 8, seed=1), torch.zeros(prompts))
        arguments = (x, *rest, torch.zeros(variants, dtype=torch.int32), 1e-5, True)
        assert torch.allclose(operations.logit_difference(*arguments), reference(*arguments))
    chosen = [entry["chosen"] for entry in operations.chosen()["logit_difference"].values()]
    assert chosen == ["compiled"] * 2 + ["reference"] * 3
    assert "compiled 2 times" in [*operations.chosen()["logit_difference"].values()][-1]["why"]


def test_shared_keys_and_values_are_written_out(monkeypatch):
    """With enable_gqa PyTorch takes its slowest backend for float32 on CUDA."""
    asked = []
    real = torch.nn.functional.scaled_dot_product_attention

    def attention(q, k, v, **options):
        asked.append((q.shape, k.shape, v.shape, options))
        return real(q, k, v, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    choice.MODULES["packed_attention"].reference(normal(2, 6, 5, 8, seed=0), *[normal(2, 3, 5, 8, seed=1)] * 2, 0.5)
    ((q, k, v, options),) = asked
    assert q == k == v and not options.get("enable_gqa")


@pytest.mark.slow
def test_every_reference_is_one_graph_of_dynamic_sizes():
    """What torch.compile sees, by a backend that runs the graph as it is."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    candidates = {
        operation: {"reference": torch.compile(module.reference, dynamic=True, fullgraph=True, backend=backend)}
        for operation, module in choice.MODULES.items()
    }
    for one, other in zip(
        every_call(Operations("cpu", candidates=candidates)), every_call(Operations("cpu")), strict=True
    ):
        assert torch.equal(one, other)
    assert len(graphs) == 4
