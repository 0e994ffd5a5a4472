"""The command that times a training step, in its quick form on a small random Llama."""

from __future__ import annotations

import hashlib
import json

import pytest

from tiny_llama import llama, model_and_texts, one_thread, torch, windows  # noqa: F401

pytest.importorskip("gguf", reason="the package gguf is not installed; ./splash test installs it")
from splash_attention import _core  # noqa: E402
from splash_attention.language import Attention, Method, training_step  # noqa: E402
from splash_attention.language.command_line import main  # noqa: E402
from splash_attention.language.conversion import prepare  # noqa: E402
from splash_attention.language.plan import Plan  # noqa: E402
from splash_attention.language.training import loss_of  # noqa: E402
from splash_attention.language.training_step import Arm, shared_out  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() and _core.has_cuda else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_the_quick_form(tmp_path, monkeypatch, capsys, device):
    prepare(llama(head_dim=64), Plan.parse("rank=4,k_keep=8,alpha=1.8")).save(tmp_path / "made.safetensors")
    out, made = tmp_path / "step.json", str(tmp_path / "made.safetensors")
    words = ["training-step", *model_and_texts(tmp_path, monkeypatch, device), "--out", str(out), "--quick"]
    assert main([*words, "--windows", "2x40", "1x160", "--arms", "kind=softmax,schedule=fixed", "schedule=fixed", f"{made},k_keep=0"]) == 0
    assert "| 1 × 160 | made.safetensors,k_keep=0 |" in capsys.readouterr().out
    held = json.loads(out.read_text())
    assert held["arms"]["schedule=fixed"]["plan"]["kind"] == "entmax" and held["arms"]["schedule=fixed"]["adapter_sha256"] is None
    of_file = held["arms"]["made.safetensors,k_keep=0"]
    assert of_file["plan"]["k_keep"] == 0 and of_file["adapter_sha256"] == hashlib.sha256((tmp_path / "made.safetensors").read_bytes()).hexdigest()
    assert [(one["batch"], one["length"], one["times_the_context"]) for one in held["measured"]] == [(2, 40, 1.0)] * 3 + [(1, 160, 1.25)] * 3
    for one in held["measured"]:
        assert 0 < one["step"]["p10"] <= one["step"]["median"] <= one["step"]["p90"] and 0 < one["loss"] < 10
        if device == "cuda":
            assert one["work"]["attention"] > 0 and one["work"]["attention's gradients"] > 0 and one["memory"] > 0
            assert sum(one["work"].values()) <= 1.5 * one["step"]["p90"]
    softmax, fixed, adapter = (one["loss"] for one in held["measured"][:3])
    assert len({softmax, fixed, adapter}) == 3
    for wrong, said in ((["--windows", "8192"], "windows '8192' are not NxTOKENS"), (["--arms", "kind=hardmax"], 'kind is "hardmax"'), (["--arms", f"{made},rank=2"], "rank")):
        assert main([*words, *wrong]) == 2
        assert said.replace('"hardmax"', "'hardmax'") in capsys.readouterr().err


def test_an_arm_is_measured_in_a_copy_of_the_model():
    model, ids = llama(), windows(2, 40)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    one = training_step.measure(model, Arm.parse("schedule=fixed,rank=4"), ids, steps=1, said=lambda line: None)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    prepare(model, Plan.parse("schedule=fixed,rank=4"))
    assert one["loss"] == loss_of(model.train(), ids).item()


def test_an_arm_starts_where_its_plan_does_and_all_weights_are_float32(tmp_path):
    ids, loss = windows(2, 40), {}
    Method(Attention("entmax", alpha=1.9, factor=3.0)).write(tmp_path / "tuned.json")
    for plan in ("schedule=fixed,rank=4", f"schedule=fixed,rank=4,start={tmp_path / 'tuned.json'}"):
        loss[plan] = training_step.measure(llama(), Arm.parse(plan), ids, steps=1, said=lambda line: None)["loss"]
    assert len(set(loss.values())) == 2
    with pytest.raises(ValueError, match="all weights are trained in float32; the model is of bfloat16"):
        training_step.measure(llama().bfloat16(), Arm.parse("schedule=fixed,rank=0"), ids)


def test_a_moment_counts_once_for_the_kernel_that_began_first():
    ours, theirs = "void splash::gpu::entmax::hopper::forward_kernel<>", "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma"
    work = shared_out([(3000, 5000, "nvjet_sm90"), (0, 2000, ours), (1000, 4000, theirs), (7000, 8000, "vectorized_elementwise_kernel")])
    assert work == {"attention": 2.0, "attention's gradients": 2.0, "matrix products": 1.0, "other kernels": 1.0}
    names = ("splash::gpu::entmax::backward::dense_keys", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma")
    assert [next(kind for kind, ms in shared_out([(0, 1000, name)]).items() if ms) for name in names] == ["attention's gradients", "attention"]
