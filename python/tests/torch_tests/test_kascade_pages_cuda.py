"""Kascade's kernels over a paged cache, against each sequence alone; a model that generates by them."""

from __future__ import annotations

import copy

import pytest

from gpu_inputs import GPU, chosen_of, torch
from tiny_llama import llama, windows

from splash_attention import kascade
from splash_attention.decoding import PagedCache
from splash_attention.hugging_face import SplashCache
from splash_attention.hugging_face.cache import as_argument
from splash_attention.kascade import pages
from splash_attention.kascade.attention import Budget, attend_to, attend_to_all, tile_keys


def some_pages(lengths, room, kv_heads, dim, dtype, page_size, heads_first, device, seed=0):
    """(PagedCache of shuffled pages, NaN in all that is no key; k, v [batch, kv_heads, room, dim])."""
    random = torch.Generator(device).manual_seed(seed)
    k, v = (torch.randn(len(lengths), kv_heads, room, dim, device=device, dtype=torch.float32, generator=random).to(dtype) for _ in range(2))
    width = room // page_size
    table = torch.randperm(len(lengths) * width + 5, device=device, generator=random)[: len(lengths) * width].view(-1, width)
    there = torch.arange(room, device=device) < torch.tensor(lengths, device=device)[:, None]
    pools = []
    for given in (k, v):
        paged = given.masked_fill(~there[:, None, :, None], torch.nan).unflatten(2, (width, page_size)).transpose(1, 2)
        pool = torch.full((len(lengths) * width + 5, kv_heads, page_size, dim), torch.nan, device=device, dtype=dtype)
        pool[table.flatten()] = paged.flatten(0, 1)
        pools.append(pool if heads_first else pool.transpose(1, 2).contiguous())
    on_device = (table.int().contiguous(), torch.tensor(lengths, dtype=torch.int32, device=device))
    return PagedCache(*pools, *on_device, bits=0, heads_first=heads_first), k, v


@pytest.fixture
def hopper():
    if GPU.type == "cpu" or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernels take GPUs of compute capability 9.0")


STEPS = [  # heads, kv_heads, dim, q_len, room, lengths
    (32, 8, 128, 1, 32768, (32768, 5, 20_001)), (9, 3, 64, 1, 8192, (8000, 8192, 129)), (8, 2, 64, 6, 3072, (3000, 6)), (24, 1, 256, 1, 2048, (2000,)),
    (4, 1, 128, 1, 70_144, (70_001, 1)), (32, 8, 128, 4, 131_072, (100_003, 131_072))
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("page_size, heads_first", [(16, False), (64, True), (256, False)])
@pytest.mark.parametrize("heads, kv_heads, dim, q_len, room, lengths", STEPS)
def test_kernels_over_pages_are_each_sequences_own(hopper, dtype, page_size, heads_first, heads, kv_heads, dim, q_len, room, lengths):
    budget, scaling, anchors = Budget(0.1, 32, 128), dim**-0.5, [(head + 1) % kv_heads for head in range(kv_heads)]
    cache, k, v = some_pages(lengths, room, kv_heads, dim, dtype, page_size, heads_first, GPU)
    q = 2 * torch.randn(len(lengths), heads, q_len, dim, device=GPU, dtype=dtype)
    assert pages.are_for(q, cache, scaling, 32, None)
    lists = pages.find(q, cache, scaling, budget)
    dense, same = pages.attend_to_all_and_find(q, cache, scaling, budget)
    reused = pages.attend(lists, anchors, q, cache, scaling)
    for at, length in enumerate(lengths):
        of_q, of_k, of_v = q[at : at + 1], *(one[at : at + 1, :, :length].contiguous() for one in (k, v))
        keys = tile_keys(of_q, of_k, scaling, budget)
        count = lists.counts[at, 0, 0].item()
        found = lists.keys[at : at + 1, ..., :count]
        assert count == keys.shape[3] and (found.diff(dim=-1) > 0).all() and torch.equal(same.keys[at : at + 1, ..., :count], found)
        # A row's sum is rounded once a block, and blocks have more keys where there are more sequences: a list may exchange its last key.
        differing = (chosen_of(found, length) != chosen_of(keys, length)).sum()
        assert differing <= 2 * kv_heads, "more keys differ than rounding explains"
        wanted = attend_to(found, of_q, of_k, of_v, budget, scaling, heads=anchors)[0]
        for ours, theirs in ((reused[at], wanted[0]), (dense[at], attend_to_all(of_q, of_k, of_v, scaling, None, None, False)[0][0])):
            error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
            assert error < (0.01 if dtype == torch.bfloat16 else 0.002)


def test_a_captured_step_reads_later_lengths_and_pages(hopper):
    budget, heads = Budget(0.1, 32, 128), list(range(8))
    cache, k, v = some_pages((4000, 900), 4096, 8, 128, torch.bfloat16, 64, False, GPU)
    q = torch.randn(2, 32, 1, 128, device=GPU, dtype=torch.bfloat16)

    def step():
        out, lists = pages.attend_to_all_and_find(q, cache, 0.1, budget)
        return out, pages.attend(lists, heads, q, cache, 0.1), pages.attend(pages.find(q, cache, 0.1, budget), heads, q, cache, 0.1)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    cache.lengths.copy_(torch.tensor([300, 777], device=GPU))
    cache.block_table.copy_(cache.block_table.flip(0))
    cache.keys.nan_to_num_()
    cache.values.nan_to_num_()
    graph.replay()
    for ours, wanted in zip(captured, step()):
        assert ours.isfinite().all() and torch.equal(ours, wanted)


def test_a_model_on_a_gpu_generates_over_pages_as_with_transformers_own_cache(hopper):
    sizes = {"num_hidden_layers": 6, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576, "head_dim": 64}
    model = llama(**sizes).to(GPU, torch.bfloat16)
    plan = kascade.plan(copy.deepcopy(model).cpu().float(), list(windows(1, 256)), anchors=2, budget=0.1).plan
    kascade.apply(model, plan)
    ids = torch.randint(1, 90, (2, 1500), generator=torch.Generator().manual_seed(3)).to(GPU)
    mask = torch.ones_like(ids)
    mask[1, :700] = 0
    asked = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, "return_dict_in_generate": True, "output_logits": True}
    with torch.inference_mode():
        ours = model.generate(ids, attention_mask=mask, **asked, **as_argument(model, SplashCache(model.config)))
        theirs = model.generate(ids, attention_mask=mask, **asked)
    logits, wanted = (torch.stack(one.logits).float() for one in (ours, theirs))
    same = (ours.sequences == theirs.sequences).all(0)[1500:].cumprod(0).sum()  # until the first token that rounding chose
    assert same >= 3 and (logits[:same] - wanted[:same]).norm() < 0.1 * wanted[:same].norm()  # bfloat16; other keys would be further off
