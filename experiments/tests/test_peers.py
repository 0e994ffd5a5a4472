"""The peers need PyTorch, and some a GPU: here it is seen that they are Python, and what they compute of a mask on CPU tensors."""

import importlib.util
import json
import pathlib
import sys
import types

import pytest

PEERS = sorted((pathlib.Path(__file__).parent.parent / "peers").glob("*.py"))
LENGTH, HEADS, DIM = 16, 3, 8
MASKS = {"window": {"window": 5, "cu_seqlens": []}, "documents": {"window": 0, "cu_seqlens": [0, 3, 4, 10, 16]}}


@pytest.mark.parametrize("path", PEERS, ids=lambda path: path.name)
def test_peers_compile(path):
    compile(path.read_text(), str(path), "exec")


def test_there_are_peers():
    assert len(PEERS) >= 2


@pytest.fixture(scope="module")
def peer():
    """torch_gpu_attention.py, with a FlashAttention of a few lines where PyTorch has none: on the CPU."""
    torch = pytest.importorskip("torch")
    path = next(path for path in PEERS if path.name == "torch_gpu_attention.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def shown(length, ends, causal, left, right):
        """[length, length]: window_size as flash-attention has it, below 0 or None: no limit; inside each document."""
        i, j = torch.arange(length)[:, None], torch.arange(length)
        left, right = (length if reach is None or reach < 0 else reach for reach in (left, 0 if causal else right))
        document = 0 * j if ends is None else torch.bucketize(j, ends, right=True)
        return (i - left <= j) & (j <= i + right) & (document[:, None] == document)

    def probabilities(q, k, scale, pairs):
        scores = (scale or DIM**-0.5) * torch.einsum("...ihd,...jhd->...hij", q, k)
        return scores.masked_fill(~pairs, -torch.inf).softmax(-1)

    def check(q, ends, longest):
        assert q.dim() == (4 if ends is None else 3) and q._is_view()  # varlen is packed; views alone, no copies
        if ends is not None:
            assert ends.dtype == torch.int32 and longest == ends.diff().max()

    def forward(q, k, v, ends, _, longest, _k, dropout, causal, debug, *, scale=None, window_size_left=None, window_size_right=None):
        check(q, ends, longest)
        p = probabilities(q, k, scale, shown(q.shape[-3], ends, causal, window_size_left, window_size_right))
        unused = q.new_empty(0)
        return torch.einsum("...hij,...jhd->...ihd", p, v), unused, unused.clone(), unused.clone(), unused.clone()

    def backward(d_out, q, k, v, out, _lse, ends, _ends, _q, _k, _p, causal, _r, _u, *, scale=None, window_size_left=None, window_size_right=None):
        p = probabilities(q, k, scale, shown(q.shape[-3], ends, causal, window_size_left, window_size_right))
        d_p = torch.einsum("...ihd,...jhd->...hij", d_out, v)
        d_s = (scale or DIM**-0.5) * p * (d_p - (p * d_p).sum(-1, keepdim=True))
        gradients = (("...hij,...jhd->...ihd", d_s, k), ("...hij,...ihd->...jhd", d_s, q), ("...hij,...ihd->...jhd", p, d_out))
        return tuple(torch.einsum(*each) for each in gradients)

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", forward, "CPU")
        library.impl("_flash_attention_backward", backward, "CPU")
        yield module


def problem(batch=1):
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(1)
    shape = (batch, HEADS, LENGTH, DIM)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


def scores_of(mask, q, k, scale):
    """Those of hidden keys are -inf: later ones, those of other documents, those before the window."""
    ends, scores = mask["cu_seqlens"] or [0, LENGTH], scale * q @ k.mT
    hidden = scores.new_ones(LENGTH, LENGTH, dtype=bool)
    for first, end in zip(ends, ends[1:]):
        for i in range(first, end):
            hidden[i, max(first, i + 1 - (mask["window"] or LENGTH)) : i + 1] = False
    return scores.masked_fill(hidden, -float("inf"))


@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("mask, batch", [("window", 1), ("window", 2), ("documents", 1)])
@pytest.mark.parametrize("backend", ["flash", "splash"])
def test_a_mask_shows_what_it_says_forward_and_backward(peer, backend, mask, batch, scale):
    import torch

    from splash_attention import entmax

    q, k, v = problem(batch)
    if backend == "flash":
        q, k, v = map(peer.as_flash_has_it, (q, k, v))
        assert q.is_leaf and q.requires_grad and q.transpose(1, 2).is_contiguous() and torch.equal(q, problem(batch)[0])
    job = {"backend": backend, "causal": True, "alpha": 1.5, "k_keep": 0, "scale": scale, **MASKS[mask]}
    out = (peer.dense if backend == "flash" else peer.splash)(job, q, k, v)()
    scores = scores_of(job, q, k, scale or DIM**-0.5)
    expected = (scores.softmax(-1) if backend == "flash" else entmax(scores, 1.5)) @ v
    torch.testing.assert_close(out, expected)
    d_out = torch.randn_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, (q, k, v), d_out), torch.autograd.grad(expected, (q, k, v), d_out))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("backend", ["cudnn", "efficient", "math", "math-tf32"])
def test_scaled_dot_product_attention_refuses_windows_and_documents(peer, backend, mask):
    with pytest.raises(peer.Unavailable, match="has neither a window nor packed documents"):
        peer.dense({"backend": backend, "causal": True, "scale": None, **MASKS[mask]}, *problem())


def test_flash_refuses_documents_of_several_batch_entries(peer):
    with pytest.raises(peer.Unavailable, match="packed documents of a batch of one, not of 2"):
        peer.dense({"backend": "flash", "causal": True, "scale": None, **MASKS["documents"]}, *problem(batch=2))


def test_heads_have_alphas_of_their_own_forward_and_backward(peer):
    import torch

    from splash_attention import entmax

    q, k, v = problem(batch=2)
    alphas = [1.25, 1.5, 2.0]  # exact in float32
    job = {"backend": "splash", "causal": True, "alpha": alphas, "k_keep": 0, "scale": 0.7, "window": 0, "cu_seqlens": []}
    out = peer.splash(job, q, k, v)()
    scores = scores_of(job, q, k, 0.7)
    expected = torch.stack([entmax(scores[:, head], alpha) @ v[:, head] for head, alpha in enumerate(alphas)], 1)
    torch.testing.assert_close(out, expected)
    assert not torch.allclose(out, peer.splash(job | {"alpha": 1.5}, q, k, v)())
    d_out = torch.randn_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, (q, k, v), d_out), torch.autograd.grad(expected, (q, k, v), d_out))


def test_a_row_keeps_its_largest_scores_forward_and_backward(peer):
    import torch

    from splash_attention import entmax

    q, k, v = problem(batch=2)
    job = {"backend": "splash", "causal": True, "alpha": [1.25, 1.5, 2.0], "k_keep": 3, "scale": 0.2, "window": 0, "cu_seqlens": []}
    out = peer.splash(job, q, k, v)()
    scores = scores_of(job, q, k, 0.2)
    kept = scores.masked_fill(scores < scores.topk(3).values[..., -1:], -torch.inf)
    expected = torch.stack([entmax(kept[:, head], alpha) @ v[:, head] for head, alpha in enumerate(job["alpha"])], 1)
    torch.testing.assert_close(out, expected)
    assert not torch.allclose(out, peer.splash(job | {"k_keep": 0}, q, k, v)())
    d_out = torch.randn_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, (q, k, v), d_out), torch.autograd.grad(expected, (q, k, v), d_out))


def test_alphas_of_heads_reach_the_package_as_one_tensor(peer, monkeypatch):
    """A list would be copied to the GPU by each call that is timed."""
    import torch

    import splash_attention

    seen = []
    monkeypatch.setattr(splash_attention, "splash_attention", lambda *tensors, **options: seen.append(options["alpha"]))
    job = {"backend": "splash", "causal": True, "alpha": [1.25, 1.5, 2.0], "k_keep": 0, "scale": None, "window": 0, "cu_seqlens": []}
    call = peer.splash(job, *problem())
    call(), call()
    assert seen[0] is seen[1] and seen[0].dtype == torch.float32 and seen[0].tolist() == job["alpha"]
    peer.splash(job | {"alpha": 1.5}, *problem())()
    assert type(seen[2]) is float


@pytest.mark.parametrize("backend", ["adasplash", "adasplash2"])
def test_adasplash_refuses_alphas_of_heads(peer, backend, monkeypatch):
    monkeypatch.setitem(sys.modules, "adasplash", types.SimpleNamespace(adasplash_v1=None, adasplash_v2=None))
    job = {"backend": backend, "causal": True, "alpha": [1.25, 1.5, 2.0], "scale": None, "window": 0, "cu_seqlens": []}
    with pytest.raises(peer.Unavailable, match=f"{backend} has one alpha for all heads"):
        peer.adasplash(job, *problem())


DECODE = {"shape": [2, 6, 3, 2, 70, 64], "seed": 3, "dtype": "float32", "query_variance": 6.0, "scale": 0.3, "alpha": 1.5}


@pytest.fixture
def decoder(monkeypatch):
    """torch_gpu_decode.py: on the CPU, what it draws, computes and holds against float64; only the timing needs a GPU."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(PEERS[0].parent))
    import torch_gpu_decode as decoder

    # A round of steps takes three seconds: two steps over each cache.
    monkeypatch.setattr(decoder, "measured", lambda call, job: call() is not None and {"seconds": [3.0], "peak_memory_bytes": 5})
    return decoder


def test_a_step_of_dense_decoding(decoder):
    import torch

    job = DECODE | {"backend": "math"}
    q, caches = decoder.load(job, device="cpu", l2_bytes=2 * 3 * 70 * 64 * 4)
    assert q.shape == (2, 6, 2, 64) and len(caches) == 2  # k and v are twice the bytes
    assert all(each.shape == (2, 3, 70, 64) for pair in caches for each in pair) and not torch.equal(caches[0][0], caches[1][0])
    k, v = caches[0]
    out = decoder.step(job, q, caches[0])
    for head in range(6):
        p = torch.softmax(0.3 * q[:, head] @ k[:, head // 2].mT, -1)
        torch.testing.assert_close(out[:, head], p @ v[:, head // 2])
    assert decoder.errors(job, out, q, caches[0])["nmse"] < 1e-12
    out[-1, -1] += 1
    assert decoder.errors(job, out, q, caches[0])["max_error"] == pytest.approx(1, abs=1e-5)
    answer = decoder.run(job, q, caches)
    assert answer["seconds"] == [3 / 4] and answer["caches"] == 2 and answer["nmse"] < 1e-12 and answer["version"].startswith("torch")


@pytest.mark.parametrize(("bits", "page"), [(0, 16 * 64 * 4), (4, 4 * 64 + 2 * 16 + 16 * 64 // 2)])  # bytes that a step reads of K: keys, or a copy
def test_a_step_of_our_own_decoding(decoder, bits, page):
    job = DECODE | {"backend": "splash", "page_size": 16, "bits": bits}
    q, caches = decoder.load(job, device="cpu", l2_bytes=2 * 3 * 5 * page)
    assert len(caches) == 3 and caches[0].lengths.tolist() == [70, 70]
    out = decoder.step(job, q, caches[0])
    assert decoder.errors(job, out, q, caches[0])["nmse"] < 1e-12
    out[-1, -1] += 1
    assert decoder.errors(job, out, q, caches[0])["max_error"] == pytest.approx(1, abs=1e-5)
    answer = decoder.run(job, q, caches)
    assert answer["seconds"] == [3 / 6] and answer["caches"] == 3 and answer["version"].startswith("splash_attention")


def test_dense_attention_after_ours_has_caches_of_its_own(decoder, monkeypatch, capsys):
    ours = DECODE | {"key": "one", "backend": "splash", "page_size": 16, "bits": 4}
    jobs = [ours, DECODE | {"key": "one", "backend": "cudnn"}, DECODE | {"key": "one", "backend": "flash"}, ours, ours | {"bits": 8}]
    monkeypatch.setattr("sys.stdin", [json.dumps(job) for job in jobs])
    drawn = iter(range(99))
    decoder.answer_jobs(lambda job: (job["backend"], next(drawn)), lambda job, *tensors: {"held": tensors}, decoder.key_of)
    held = [json.loads(line)["held"] for line in capsys.readouterr().out.splitlines()]
    assert held == [["splash", 0], ["cudnn", 1], ["cudnn", 1], ["splash", 2], ["splash", 3]]


def test_the_peer_rotates_as_many_caches_as_the_step(decoder):
    header = (pathlib.Path(__file__).parents[2] / "gpu" / "decode" / "benchmark" / "steps.h").read_text()
    assert f"kTimesL2 = {decoder.TIMES_L2};" in header and f"kMostCaches = {decoder.MOST_CACHES};" in header
    assert [decoder.caches_of(n, 50) for n in (1000, 50, 49, 1)] == [1, 3, 4, 64]
