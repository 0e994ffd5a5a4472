"""Decoding in FlashInfer's manner: splash_attention.BatchDecodeWrapper, and its page tables."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import BatchDecodeWrapper, PagedCache, block_table_of  # noqa: E402

from decode_oracle import DEVICES, expected  # noqa: E402


def test_page_tables_of_flashinfer():
    table, lengths = block_table_of(
        torch.tensor([0, 3, 3, 4], dtype=torch.int32), torch.tensor([5, 2, 7, 1], dtype=torch.int32), torch.tensor([10, 0, 16], dtype=torch.int32), 16
    )
    assert table.tolist() == [[5, 2, 7], [-1, -1, -1], [1, -1, -1]]
    assert lengths.tolist() == [42, 0, 16]
    assert table.dtype == lengths.dtype == torch.int32


def flashinfer_plan(device):
    """Three sequences of 42, 0 and 16 keys in pages of 16."""
    return [torch.tensor(values, dtype=torch.int32, device=device) for values in ([0, 3, 3, 4], [5, 2, 7, 1], [10, 0, 16])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_the_calling_style_of_flashinfer(device, layout):
    torch.manual_seed(0)
    pool = torch.randn(8, 2, 16, 2, 64).bfloat16().to(device)  # pages, keys and values, tokens, heads, head_dim
    q = (2 * torch.randn(3, 6, 64)).bfloat16().to(device)
    k, v = (torch.zeros(3, 2, 48, 64, dtype=pool.dtype) for _ in range(2))
    for b, pages in enumerate(([5, 2, 7], [], [1])):
        for i, page in enumerate(pages):
            k[b, :, 16 * i : 16 * (i + 1)], v[b, :, 16 * i : 16 * (i + 1)] = pool[page].cpu().transpose(1, 2)
    want = expected(q[:, :, None], k, v, [42, 0, 16], 1.5, 0.3)[:, :, 0]
    given = pool if layout == "NHD" else pool.transpose(2, 3).contiguous()
    wrapper = BatchDecodeWrapper(layout, most_pages=4)
    wrapper.plan(*flashinfer_plan(device), 6, 2, 64, 16, sm_scale=0.3)
    out, aux = wrapper.run(q, given, return_aux=True)
    torch.testing.assert_close(out.double().cpu(), want, atol=2e-2, rtol=2e-2)
    assert aux.support.shape == (3, 6, 1) and torch.equal(wrapper.run(q, (given[:, 0], given[:, 1])), out)
    of_pool = PagedCache(given[:, 0], given[:, 1], wrapper.block_table, wrapper.lengths, bits=8, heads_first=layout == "HND")
    of_pool.fill()
    assert torch.equal(wrapper.run(q, of_pool), out)
    table = wrapper.block_table
    indptr, indices, last = flashinfer_plan(device)
    wrapper.plan(indptr, indices, last - 1, 6, 2, 64, 16, sm_scale=0.3, alpha=2.0)
    assert wrapper.block_table is table and wrapper.lengths.tolist() == [41, 0, 15]
    want = expected(q[:, :, None], k, v, [41, 0, 15], 2.0, 0.3)[:, :, 0]
    torch.testing.assert_close(wrapper.run(q, given).double().cpu(), want, atol=2e-2, rtol=2e-2)
    wrapper.plan(*flashinfer_plan(device), 6, 2, 64, 16, sm_scale=0.3, window_left=9)
    want = expected(q[:1, :, None], k[:1, :, 32:42], v[:1, :, 32:42], [10], 1.5, 0.3)[:, :, 0]
    torch.testing.assert_close(wrapper.run(q, given)[:1].double().cpu(), want, atol=2e-2, rtol=2e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_graph_runs_later_plans():
    torch.manual_seed(0)
    pool, q = torch.randn(8, 2, 16, 2, 64).bfloat16().cuda(), torch.randn(3, 4, 64).bfloat16().cuda()
    wrapper = BatchDecodeWrapper(most_pages=4)
    indptr, indices, last = flashinfer_plan("cuda")
    wrapper.plan(indptr, indices, last, 4, 2, 64, 16)
    wrapper.run(q, pool)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = wrapper.run(q, pool)
    for indices in (indices, indices.flip(0)):
        wrapper.plan(indptr, indices, last, 4, 2, 64, 16)
        graph.replay()
        assert torch.equal(out, wrapper.run(q, pool))


def test_what_a_plan_does_not_take_is_refused_in_a_sentence():
    wrapper, tables = BatchDecodeWrapper(), flashinfer_plan("cpu")
    pool, q = torch.zeros(8, 2, 16, 2, 64).bfloat16(), torch.zeros(3, 4, 64).bfloat16()
    with pytest.raises(ValueError, match="kv_layout is 'NDH'; allowed are"):
        BatchDecodeWrapper("NDH")
    with pytest.raises(RuntimeError, match=r"plan\(\) comes before run\(\)"):
        wrapper.run(q, pool)
    with pytest.raises(NotImplementedError, match="logits_soft_cap is 30.0; decode serves None alone"):
        wrapper.plan(*tables, 4, 2, 64, 16, logits_soft_cap=30.0)
    with pytest.raises(ValueError, match=r"num_qo_heads is 3; it must be a multiple of num_kv_heads \(2\)"):
        wrapper.plan(*tables, 3, 2, 64, 16)
    wrapper.plan(*tables, 4, 2, 64, 16)
    with pytest.raises(ValueError, match=r"q is \[2, 4, 64\]; the plan is of \[3, 4, 64\]"):
        wrapper.run(q[:2], pool)
    with pytest.raises(ValueError, match=r"pages are \[32, 2, 64\]; the plan is of \[16, 2, 64\]"):
        wrapper.run(q, torch.zeros(8, 2, 32, 2, 64).bfloat16())


