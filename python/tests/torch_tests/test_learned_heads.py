"""alpha and factor of each head as parameters of transformers' models: kept by all that keeps weights, and logged."""

from __future__ import annotations

import copy
import os
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
transformers = pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from architectures import ALL, build, inputs  # noqa: E402

from splash_attention import hugging_face  # noqa: E402
from splash_attention.learned_heads import LearnedHeads, together  # noqa: E402

ALPHAS = [1.2, 1.4, 1.6, 1.8]


def learned(name="Llama"):
    return hugging_face.learn_alpha(build(name, "splash"), ALPHAS, [0.5, 1.0, 1.5, 2.0])


def heads_of(model):
    return [module.splash_heads for module in model.modules() if hasattr(module, "splash_heads")]


def trained(model, steps=3):
    given = inputs("Llama")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(steps):
        optimizer.zero_grad()
        model(**given, labels=given["input_ids"]).loss.backward()
        optimizer.step()
    return model


def test_together_they_have_the_values_and_gradients_that_each_has_alone():
    modules = [LearnedHeads(3, [1.2, 1.5, 1.9], 0.5), torch.nn.Linear(2, 2), LearnedHeads(2, 1.4, [0.3, 2.0])]
    heads = [modules[0], modules[2]]

    def results():
        values = [value for one in heads for value in (one.alpha, one.factor)]
        total = sum((value * torch.arange(1, len(value) + 1)).square().sum() for value in values)
        return values, torch.autograd.grad(total, [parameter for one in heads for parameter in one.parameters()])

    alone, gradients = results()
    with torch.profiler.profile() as profiled, together(modules):
        at_once, gradients_at_once = results()
    assert all(map(torch.equal, alone + list(gradients), at_once + list(gradients_at_once)))
    assert sum(event.count for event in profiled.key_averages() if event.key == "aten::sigmoid") == 1
    heads[0].place.data += 1
    assert not torch.equal(heads[0].alpha, alone[0])  # behind it they are computed again
    with together([LearnedHeads(2), LearnedHeads(2, low=1.25)]), together([]):
        pass  # of two intervals, and none


@pytest.mark.filterwarnings("ignore:splash attention has no kernel")
@pytest.mark.parametrize("name", ALL)
def test_every_architecture_takes_them(name):
    """The same output as the settings give, and gradients."""
    model, fixed = learned(name), build(name, "splash")
    layers = [module for module in fixed.modules() if "Attention" in type(module).__name__ and hasattr(module, "config")]
    for module in layers:
        module.splash_alpha, module.splash_factor = ALPHAS, [0.5, 1.0, 1.5, 2.0]
    given = inputs(name)
    logits = model(**given).logits
    torch.testing.assert_close(logits, fixed(**given).logits, atol=2e-4, rtol=1e-3)
    logits.square().sum().backward()
    heads = heads_of(model)
    assert len(heads) >= 2
    for one in heads:
        torch.testing.assert_close(one.alpha, torch.tensor(ALPHAS))
        assert (one.place.grad != 0).any() and (one.size.grad != 0).any()


def test_they_stay_within_bounds():
    model = learned()
    with torch.no_grad():
        for one in heads_of(model):
            one.place.copy_(torch.tensor([-1e3, -5.0, 5.0, 1e3]))
            assert one.alpha.min() >= 1.05 and one.alpha.max() <= 2.0
    assert model(**inputs("Llama")).logits.isfinite().all()


def test_saved_and_loaded(tmp_path):
    model = trained(learned().train()).eval()
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="splash")
    for a, b in zip(heads_of(model), heads_of(again), strict=True):
        assert torch.equal(a.place, b.place) and torch.equal(a.size, b.size)
        assert not torch.allclose(a.alpha, torch.tensor(ALPHAS), atol=1e-6)
    given = inputs("Llama")
    torch.testing.assert_close(again(**given).logits, model(**given).logits)
    copied = copy.deepcopy(model)
    trained(copied.train())
    assert torch.equal(heads_of(model)[0].place, heads_of(again)[0].place)
    assert not torch.equal(heads_of(copied)[0].place, heads_of(model)[0].place)


def _process(rank, folder, how):
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = learned().train()
    if how == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        wrapped = fully_shard(model, mesh=mesh)
    trained(wrapped)
    place = heads_of(model)[0].place.detach()
    place = place.full_tensor() if how == "fsdp2" else place
    torch.save(place, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_two_processes_train_as_one(how, tmp_path):
    """Both see the same words, so the mean of their gradients is that of one."""
    torch.multiprocessing.spawn(_process, (str(tmp_path), how), nprocs=2)
    alone = heads_of(trained(learned().train()))[0].place
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), alone.detach(), atol=1e-4, rtol=1e-3)
    assert os.path.getsize(tmp_path / "0.pt")


def test_peft_trains_them_beside_its_adapter():
    peft = pytest.importorskip("peft", reason="peft is not installed")
    settings = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["splash_heads"])
    model = peft.get_peft_model(learned(), settings).train()
    before = {key: value.detach().clone() for key, value in model.named_parameters() if "splash_heads" in key and value.requires_grad}
    trained(model)
    assert before and all(not torch.equal(value, dict(model.named_parameters())[key]) for key, value in before.items())


@pytest.mark.parametrize("name", ["Llama", "Mistral with a window"])
@pytest.mark.filterwarnings("ignore:splash attention has no kernel")
def test_the_callback_logs_each_head(name):
    model, callback = learned(name).train(), hugging_face.SplashCallback()
    assert isinstance(callback, transformers.TrainerCallback)
    given, logs = inputs(name), {}
    arguments, state = SimpleNamespace(logging_steps=2), SimpleNamespace(global_step=0, logging_steps=2)
    for state.global_step in range(2):
        callback.on_step_begin(arguments, state, None)
        model(**given)
        callback.on_step_end(arguments, state, None)
    model(**given)  # nobody looks
    callback.on_log(arguments, state, None, logs=logs, model=model)
    assert len(logs) == 3 * 2 * 4
    p = model(**given, output_attentions=True).attentions[1][:, 2]
    name_of = "model.layers.1.self_attn/2"
    assert logs[f"splash/alpha/{name_of}"] == pytest.approx(ALPHAS[2])
    support = (p > 0).sum(-1).float().mean().item()
    visible = torch.ones(17, 17).tril().triu(-5 if "window" in name else -17).sum().item()
    assert logs[f"splash/support/{name_of}"] == pytest.approx(support, rel=0.02)
    assert logs[f"splash/zeros/{name_of}"] == pytest.approx(1 - support * 17 / visible, rel=0.02)


def test_bad_input_in_one_sentence():
    for wrong, sentence in (
        (lambda: hugging_face.learn_alpha(build("Llama", "splash"), alpha=3.0), r"must start from 1.05 to 2.0"),
        (lambda: hugging_face.learn_alpha(build("Llama", "splash"), factor=0.0), "must be above 0"),
        (lambda: hugging_face.learn_alpha(learned()), "has learned heads already"),
        (lambda: hugging_face.learn_alpha(torch.nn.Linear(2, 2)), "Linear has no attention layers"),
    ):
        with pytest.raises(ValueError, match=sentence):
            wrong()
