"""What test_language_*.py test on the CPU, on a GPU."""

from __future__ import annotations

import pytest

from tiny_llama import llama, one_thread, torch, windows  # noqa: F401

pytest.importorskip("safetensors", reason="the package safetensors is not installed")
from splash_attention import _core, hugging_face, kascade  # noqa: E402
from splash_attention.backends.torch import cuda  # noqa: E402
from splash_attention.language import Attention, Method, Plan, convert, load_converted, measure_curves, perplexity  # noqa: E402
from splash_attention.language.captured_step import CapturedStep  # noqa: E402
from splash_attention.language.conversion import prepare  # noqa: E402
from test_language_methods import METHODS as ON_THE_CPU  # noqa: E402

if not (torch.cuda.is_available() and _core.has_cuda):
    pytest.skip("PyTorch has no CUDA device here, or this build has no CUDA", allow_module_level=True)

METHODS = {**ON_THE_CPU, "softmax": Attention()}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_on_the_gpu_what_it_is_on_the_cpu(name):
    wanted = perplexity(llama(), windows(), Method(METHODS[name]))
    measured = perplexity(llama().cuda(), windows(), Method(METHODS[name]))
    assert measured.nll == pytest.approx(wanted.nll, abs=2e-3)
    assert measured.support_mean == pytest.approx(wanted.support_mean, abs=0.1)
    assert measured.layer_nmse == pytest.approx(wanted.layer_nmse, rel=0.02, abs=1e-4)


def test_in_bfloat16_the_curves_are_nearly_those_of_float32():
    tried = [Attention("entmax", alpha=alpha, factor=factor) for alpha in (1.25, 1.5) for factor in (0.3, 1.0)]
    wanted, curves = measure_curves(llama(), windows(), tried), measure_curves(llama().cuda().bfloat16(), windows(), tried)
    assert curves.support[0] == pytest.approx(wanted.support[0], rel=0.1)
    assert curves.error[0] == pytest.approx(wanted.error[0], rel=0.2, abs=1e-4)


@pytest.mark.parametrize("changes", [{}, {"rank": 0}, {"schedule": "annealed"}])
def test_a_model_is_converted_and_loaded_to_the_bit(tmp_path, changes):
    plan = Plan(**{"steps": 4, "batch": 1, "length": 64, "rank": 2, **changes})
    model = llama().cuda()
    convert(model, windows(1, 400)[0], plan, tmp_path)
    again = llama().cuda()
    load_converted(again, tmp_path / ("adapter.safetensors" if plan.rank else "model.safetensors"))
    with torch.no_grad():
        assert torch.equal(again(windows().cuda()).logits, model(windows().cuda()).logits)
        assert not torch.equal(llama().cuda()(windows().cuda()).logits, model(windows().cuda()).logits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kascade_is_planned_and_measured_alike(tmp_path, dtype):
    shape = {"num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
    on_cpu, on_gpu = llama(**shape), llama(**shape).cuda().to(getattr(torch, dtype))
    how = {"anchors": 2, "budget": 0.2, "tile": 4, "least_keys": 5}
    wanted = kascade.plan(on_cpu, windows(2), **how, path=tmp_path / "plan.toml")
    planned = kascade.plan(on_gpu, windows(2), **how)
    near = {"abs": 1e-3 if dtype == "float32" else 0.1}
    assert planned.similarity == pytest.approx(wanted.similarity, **near) and planned.importance == pytest.approx(wanted.importance, **near)
    for text in (f"kascade:plan={tmp_path / 'plan.toml'}", "tile-top-k:budget=0.2,tile=4,least_keys=5", "pages:budget=0.2,page=4,least_keys=5"):
        of_cpu, of_gpu = (perplexity(model, windows(), Method.parse(text)) for model in (on_cpu, on_gpu))
        assert of_gpu.nll == pytest.approx(of_cpu.nll, abs=0.01 if dtype == "float32" else 0.3)
        assert of_gpu.support_mean == pytest.approx(of_cpu.support_mean, abs=0.2)


def converted_twice(monkeypatch, tmp_path, changes, spoil=lambda monkeypatch: None):
    """(with graphs, without, what each replay gave): the converted states and losses. Why a step was not captured stands in a warning."""
    plan = Plan(**{"steps": 6, "batch": 2, "length": 64, "rank": 2, **changes})
    replays, replay = [], CapturedStep.__call__

    def noted(self, ids):
        replays.append(replay(self, ids))
        return replays[-1]

    found = []
    with monkeypatch.context() as patched:
        patched.setattr(CapturedStep, "__call__", noted)
        spoil(patched)
        for name in ("graphs", "eager"):
            if name == "eager":
                patched.setattr(CapturedStep, "__init__", refuse)
            done = convert(llama().cuda(), windows(1, 400)[0], plan, tmp_path / name)
            found.append((done.state(), [row.split(",")[:2] for row in (tmp_path / name / "log.csv").read_text().splitlines()]))
    return *found, replays


def refuse(*_):
    raise RuntimeError("not captured")


def assert_same(graphs, eager):
    assert graphs[1] == eager[1]
    assert all(torch.equal(graphs[0][name], eager[0][name]) for name in eager[0])


@pytest.mark.parametrize(
    "changes", [{}, {"rank": 0}, {"schedule": "annealed"}, {"kind": "softmax", "schedule": "fixed"}, {"k_keep": 8}, {"median_keys": 4.0}]
)
def test_captured_steps_are_those_without_a_graph(monkeypatch, tmp_path, changes):
    graphs, eager, replays = converted_twice(monkeypatch, tmp_path, changes)
    assert len(replays) == 5 and None not in replays
    assert_same(graphs, eager)


def test_a_support_that_outgrows_a_captured_step_is_computed_without_it(monkeypatch, tmp_path):
    def spoil(patched):
        room = cuda.capacity_for
        patched.setattr(cuda, "capacity_for", lambda q, k: 8 if torch.cuda.is_current_stream_capturing() else room(q, k))

    graphs, eager, replays = converted_twice(monkeypatch, tmp_path, {"alpha": 1.25}, spoil)
    assert replays == [None] * 5
    assert_same(graphs, eager)


@pytest.mark.parametrize("method", ["language", "hugging_face"])
def test_heads_are_put_in_order_by_the_kernel_alone(monkeypatch, method):
    """By PyTorch's own copies a layer's heads take three times as long."""
    reorder, shapes = _core.reorder_heads, []

    def noted(dtype, device, shape, *others):
        shapes.append(tuple(shape))
        reorder(dtype, device, shape, *others)

    monkeypatch.setattr(_core, "reorder_heads", noted)
    model = llama().cuda().bfloat16()
    if method == "language":
        prepare(model, Plan(rank=2))
    else:
        hugging_face.learn_alpha(model).set_attn_implementation("splash")
    ids = windows(2, 64).cuda()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()  # a cache would copy keys and values
    of_queries, of_keys = (2, 4, 64, 16), (2, 2, 64, 16)
    assert sorted(shapes) == sorted([*[of_queries] * 4, *[of_keys] * 4] * len(model.model.layers))  # q, out; k, v; the gradient of each
