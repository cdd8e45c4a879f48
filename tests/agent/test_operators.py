"""The operators, as the training calls them: what a record says is what float64 arithmetic on the same tensor says.

Goal: values agree over shapes, strides and element types; nothing raises, whatever the tensor; compiled graphs emit the
same records as eager ones. Method: the operator writes into a real segment, neuraldbg-segment-dump reads it back, torch
in float64 is the reference. Sums of 32-bit and narrower elements are added in blocks of float32 lanes, so they agree
within 2^-16 of the sum of magnitudes (docs/statistics.md); everything else must be equal.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from neuraldbg import native, ops
from neuraldbg.release import OLD

from tests.agent.segment_probe import Probe

SUM_TOLERANCE = 2.0**-16
TINY = 2.0**-24
INTEGER_VIEW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    made = Probe(tmp_path)
    yield made
    made.segment.close()


@pytest.fixture(scope="module")
def shared_probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    made = Probe(tmp_path_factory.mktemp("shared"))
    yield made
    made.segment.close()


def bit_sum(tensor: torch.Tensor) -> int:
    raw = tensor.contiguous().reshape(-1)
    if raw.numel() == 0:
        return 0
    # One element is contiguous whatever its stride says, but only a copy of stride 1 can be viewed as bytes.
    plain = torch.empty(raw.shape, dtype=raw.dtype).copy_(raw)
    patterns = plain.view(torch.uint8).numpy().view(INTEGER_VIEW[tensor.element_size()])
    return int(patterns.astype(np.uint64).sum(dtype=np.uint64))


def check(record: dict, tensor: torch.Tensor) -> None:
    """Compare a record with float64 arithmetic on the same elements."""
    x = tensor.detach().to(torch.float64).reshape(-1).numpy()
    finite = x[np.isfinite(x)]
    magnitudes = np.abs(finite)
    with np.errstate(over="ignore"):
        squares = float((finite * finite).sum())
    assert record["numel"] == x.size
    assert record["bits"] == bit_sum(tensor)
    assert record["zero_count"] == int((finite == 0).sum())
    largest = float(magnitudes.max()) if finite.size else 0.0
    assert record["max_abs"] == float(np.float32(min(largest, np.finfo(np.float32).max)))
    total = float(magnitudes.sum())
    assert record["sum"] == pytest.approx(float(finite.sum()), rel=0, abs=SUM_TOLERANCE * total)
    assert record["sum_abs"] == pytest.approx(total, rel=SUM_TOLERANCE, abs=0)
    if math.isfinite(squares):
        assert record["sum_squares"] == pytest.approx(squares, rel=SUM_TOLERANCE, abs=5e-324)
    if tensor.is_floating_point():
        assert record["nan_count"] == int(np.isnan(x).sum())
        assert record["inf_count"] == int(np.isinf(x).sum())
        assert record["tiny_count"] == int(((magnitudes > 0) & (magnitudes < TINY)).sum())
    else:
        assert "nan_count" not in record


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any element type, scale, shape and layout that a model may produce, salted with the numbers that hurt."""
    dtype = draw(st.sampled_from(FLOATS + INTEGERS))
    shape = draw(st.lists(st.integers(0, 9), min_size=0, max_size=4))
    if draw(st.booleans()):
        shape = [draw(st.sampled_from([17, 64, 300])), *shape[:2]]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if dtype.is_floating_point:
        x = x * 10.0 ** draw(st.sampled_from([-42, -30, -21, -8, -3, 0, 2, 4, 12, 19, 37]))
        salt = draw(
            st.lists(st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 2.0**-24, 1e-40, 6e-8]), max_size=6)
        )
        for value in salt:
            if x.numel():
                x.view(-1)[draw(st.integers(0, x.numel() - 1))] = value
    else:
        x = (x * 100).clamp(-128, 127)
        if dtype in (torch.uint8, torch.bool):
            x = x.abs()
    tensor = x.to(dtype)
    if tensor.dim() >= 2 and draw(st.booleans()):
        tensor = tensor.transpose(0, draw(st.integers(1, tensor.dim() - 1)))
    if tensor.dim() >= 1 and draw(st.booleans()):
        dimension = draw(st.integers(0, tensor.dim() - 1))
        step = draw(st.integers(1, 3))
        tensor = tensor[(slice(None),) * dimension + (slice(draw(st.integers(0, 2)), None, step),)]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(draw(st.integers(1, 3)), *tensor.shape)
    return tensor


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensor=tensors())
def test_any_tensor_agrees_with_float64(shared_probe: Probe, tensor: torch.Tensor) -> None:
    check(shared_probe.observe(tensor), tensor)


@pytest.mark.parametrize("dtype", FLOATS)
def test_large_tensors_of_each_type(probe: Probe, dtype: torch.dtype) -> None:
    x = torch.randn(64, 16, 32, 32).to(dtype)
    check(probe.observe(x), x)
    channels_last = x.to(memory_format=torch.channels_last)
    check(probe.observe(channels_last), channels_last)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("unit_mode", [1, 2])
@pytest.mark.parametrize("channels_last", [False, True])
def test_dead_units(probe: Probe, dtype: torch.dtype, unit_mode: int, channels_last: bool) -> None:
    x = torch.randn(6, 20, 5, 20).relu().to(dtype)
    silent = [3, 8, 19]
    x[(..., silent) if unit_mode == 1 else (slice(None), silent)] = 0
    x[(..., 7) if unit_mode == 1 else (slice(None), 7)] = -1
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    record = probe.observe(x, unit_mode=unit_mode, dead=0)
    assert (record["units"], record["dead_units"]) == (20, 3)
    record = probe.observe(x, unit_mode=unit_mode, dead=1)
    assert (record["units"], record["dead_units"]) == (20, 4)
    check(record, x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_saturation(probe: Probe, dtype: torch.dtype) -> None:
    x = (torch.randn(40, 33) * 3).to(dtype)
    single = torch.float64 if dtype == torch.float64 else torch.float32
    squashed = {1: x.tanh(), 2: x.sigmoid(), 3: x.softmax(-1)}
    for mode, y in squashed.items():
        upper, lower = torch.tensor(0.99, dtype=single), torch.tensor({1: -0.99, 2: 0.01, 3: -1.0}[mode], dtype=single)
        expected = ((y.to(single) > upper) | (y.to(single) < lower)).sum().item()
        assert probe.observe(y, saturation=mode)["saturated_count"] == expected
    assert "saturated_count" not in probe.observe(x)


def test_flushing_subnormals_changes_nothing(probe: Probe) -> None:
    x = torch.full((5000,), 1e-42)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        record = probe.observe(x)
        assert torch.tensor(1e-42).mul(1.0).item() == 0.0, "the mode of the training was changed"
    finally:
        torch.set_flush_denormal(False)
    check(record, x)


def test_odd_tensors_are_skipped_and_never_raise(probe: Probe) -> None:
    slot = probe.slot()
    x = torch.randn(4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        odd = [
            x.to_sparse(),
            x.to_sparse_csr(),
            torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
            torch.nested.nested_tensor([x, x[:2]]),
            torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged),
            x.to(torch.complex64),
            x.to(torch.complex64).conj(),
            x.to(torch.float8_e4m3fn),
            torch.empty(3, device="meta"),
            torch.zeros([1] * 30),
        ]
    none = native.NO_SITE
    for tensor in odd:
        ops.observe(tensor, slot)
        ops.batch(tensor, slot)
        ops.loss(tensor, tensor, tensor, -100, 1, 1, slot)
        ops.parameter_init(tensor, slot)
        ops.parameter_before(tensor, tensor, slot)
        ops.parameter_after(tensor, slot)
        assert ops.gradient_norm(tensor) == -1.0
    assert probe.records() == []
    for bad_slot in (torch.tensor([-1]), torch.tensor([none]), torch.tensor([1.0]), torch.empty(0, dtype=torch.int64)):
        ops.observe(x, bad_slot)
    assert probe.records() == []
    skipped = ctypes.CDLL(str(native.LIBRARY_PATH)).ndbg_session_skipped
    skipped.restype = ctypes.c_uint64
    assert skipped(int(slot) >> 32) >= 2 * (len(odd) - 1)  # all but the meta tensor, which only tracing makes


def test_views_with_lazy_conjugation_and_negation(probe: Probe) -> None:
    z = torch.randn(8, dtype=torch.complex64)
    negated = z.conj().imag  # a view with the negative bit: its memory holds the opposite sign
    assert negated.is_neg()
    assert probe.observe(negated)["sum"] == pytest.approx(negated.double().sum().item(), abs=1e-5)


def test_inputs_that_require_grad_and_inference_tensors(probe: Probe) -> None:
    x = torch.randn(10, requires_grad=True)
    check(probe.observe(x * 2), x * 2)
    with torch.inference_mode():
        y = torch.randn(10)
        check(probe.observe(y), y)


def test_batch_of_token_ids(probe: Probe) -> None:
    tokens = torch.randint(0, 50000, (8, 128))
    ops.batch(tokens, probe.slot(role=9, phase=0))
    (record,) = probe.records()
    assert record["record"] == "BATCH" and record["phase"] == 0
    check(record, tokens)


@pytest.mark.parametrize("layout", ["flat", "sequence", "planes"])
def test_loss_of_classes(probe: Probe, layout: str) -> None:
    torch.manual_seed(0)
    shape, targets_shape, dimension = {
        "flat": ((32, 10), (32,), 1),
        "sequence": ((4, 8, 10), (4, 8), 2),
        "planes": ((4, 10, 8), (4, 8), 1),
    }[layout]
    logits, targets = torch.randn(shape), torch.randint(0, 10, targets_shape)
    targets.view(-1)[::5] = -100
    loss = torch.tensor(1.5)
    ops.loss(loss, logits, targets, -100, 1, 1, probe.slot(role=8, phase=2))
    (record,) = probe.records()
    kept = targets[targets != -100].double()
    assert record["record"] == "LOSS" and record["value"] == 1.5 and record["nonfinite"] == 0
    assert record["label_count"] == kept.numel() and record["label_ignored"] == targets.numel() - kept.numel()
    assert record["label_sum"] == kept.sum().item() and record["label_sum_squares"] == (kept**2).sum().item()
    assert record["class_count"] == 10
    assert record["logsumexp_mean"] == pytest.approx(logits.double().logsumexp(dimension).mean().item(), rel=1e-6)


def test_loss_without_anything_else(probe: Probe) -> None:
    ops.loss(torch.tensor(math.nan), None, None, -100, 0, 0, probe.slot(role=8, phase=2))
    (record,) = probe.records()
    assert record["value"] == "NaN" and record["nonfinite"] == 1
    assert "label_count" not in record and "class_count" not in record


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_parameter_around_a_real_step(probe: Probe, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(40, 30).to(dtype).t())
    slot = probe.slot(role=6, phase=6)
    ops.parameter_init(weight, slot)
    initial = weight.detach().double().clone()
    optimizer = torch.optim.Adam([weight], lr=0.01)
    (weight.double() ** 2).sum().backward()
    gradient = weight.grad.double().clone()
    ops.parameter_before(weight, weight.grad, slot)
    optimizer.step()
    ops.parameter_after(weight, slot)
    ops.parameter_after(weight, slot)  # without another parameter_before: nothing
    lines = probe.lines()
    (record,) = [line for line in lines if "record" in line]
    (init,) = [line for line in lines if line.get("entry") == "parameter_init"]
    assert init["sum_squares"] == pytest.approx((initial**2).sum().item(), rel=SUM_TOLERANCE)
    value = weight.detach().double()
    update = value - initial
    assert record["bits"] == bit_sum(weight.detach())
    assert record["changed"] == 1
    assert record["value_sum_squares"] == pytest.approx((value**2).sum().item(), rel=SUM_TOLERANCE)
    assert record["gradient_sum_squares"] == pytest.approx((gradient**2).sum().item(), rel=SUM_TOLERANCE)
    assert record["update_sum_squares"] == pytest.approx((update**2).sum().item(), rel=1e-9)
    assert record["gradient_dot_update"] == pytest.approx((gradient * update).sum().item(), rel=1e-9)


def test_sparse_gradient_is_present_but_not_measured(probe: Probe) -> None:
    table = torch.nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    slot = probe.slot(role=6, phase=6)
    ops.parameter_before(table.weight, table.weight.grad, slot)
    ops.parameter_after(table.weight, slot)
    (record,) = probe.records()
    assert record["flags"] & (1 << 7)
    assert "gradient_sum_squares" not in record and record["changed"] == 0


def test_gradient_norm() -> None:
    x = torch.randn(33, 7)
    assert ops.gradient_norm(x.t()) == pytest.approx(x.double().norm().item(), rel=1e-5)
    assert ops.gradient_norm(torch.full((3,), 1e-30)) == pytest.approx(math.sqrt(3) * 1e-30, rel=1e-6)
    assert math.isinf(ops.gradient_norm(torch.tensor([math.inf, 1.0])))
    assert math.isnan(ops.gradient_norm(torch.tensor([math.nan, math.inf])))


def test_steps_account_for_every_push(probe: Probe) -> None:
    slot = probe.slot()
    step = native.StepRecord(site=0, applied=1, cadence=1)
    for number in range(3):
        for _ in range(number + 2):
            ops.observe(torch.ones(3), slot)
        assert probe.segment.end_step(step) == number
    records = probe.records()
    steps = [record for record in records if record["record"] == "STEP"]
    assert [record["attempts_total"] for record in steps] == [3, 7, 12]
    assert [record["step"] for record in steps] == [0, 1, 2]
    assert all(record["agent_ns"] > 0 for record in steps)
    assert len(records) == 12
    assert probe.segment.status().agent_ns == sum(record["agent_ns"] for record in steps)


def test_disarmed_sites_are_silent(probe: Probe) -> None:
    slot = probe.slot()
    probe.segment.arm(0)
    ops.observe(torch.ones(3), slot)
    assert probe.records() == []
    probe.segment.arm(1)
    ops.observe(torch.ones(3), slot)
    assert len(probe.records()) == 1


def test_graph_outlives_its_session(tmp_path: Path) -> None:
    first = Probe(tmp_path)
    slot = first.slot()
    ops.observe(torch.ones(3), slot)
    first.segment.close()
    second = Probe(tmp_path)
    second.slot()
    ops.observe(torch.ones(3), slot)
    assert second.records() == []
    second.segment.close()


def test_unwritable_directory_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(native.SegmentError, match=r"missing.*No such file"):
        Probe(tmp_path / "missing")


@pytest.mark.skipif(OLD, reason="takes no hook on a tensor inside of a graph")
def test_compiled_graph_emits_what_eager_emits(probe: Probe) -> None:
    slots = [probe.slot(), probe.slot(phase=3)]

    def step(x: torch.Tensor, weight: torch.Tensor, slots: list[torch.Tensor]) -> torch.Tensor:
        y = (x @ weight).relu()
        ops.observe(y.detach(), slots[0])
        y.register_hook(lambda gradient: ops.observe(gradient, slots[1]))
        return (y * y).sum()

    torch.manual_seed(0)
    x, weight = torch.randn(16, 8), torch.randn(8, 4, requires_grad=True)
    emitted = []
    torch._dynamo.reset()
    for function in (step, torch.compile(step, fullgraph=True)):
        weight.grad = None
        function(x, weight, slots).backward()
        emitted.append((probe.records(), weight.grad.clone()))
    (eager, eager_gradient), (compiled, compiled_gradient) = emitted
    assert [record["site"] for record in eager] == [record["site"] for record in compiled] == [0, 1]
    assert [record["bits"] for record in eager] == [record["bits"] for record in compiled]
    assert torch.equal(eager_gradient, compiled_gradient)


def test_library_names_only_the_stable_interface() -> None:
    """One binary must serve every torch from 2.10 on, next to any C++ library that a training has loaded."""
    undefined = subprocess.run(
        ["nm", "-DC", "--undefined-only", str(native.LIBRARY_PATH)], capture_output=True, text=True, check=True
    ).stdout
    symbols = [line.split(maxsplit=1)[1] for line in undefined.splitlines() if line.strip()]
    foreign = [name for name in symbols if any(word in name for word in ("at::", "c10::", "torch::", "google::"))]
    assert foreign == []
    defined = subprocess.run(
        ["nm", "-DC", "--defined-only", str(native.LIBRARY_PATH)], capture_output=True, text=True, check=True
    ).stdout
    exported = [line.split(maxsplit=2)[2] for line in defined.splitlines() if line.split()[1] in "TDB"]
    linker_made = ("__bss_start", "_edata", "_end")
    assert [name for name in exported if not name.startswith("ndbg_") and name not in linker_made] == []
