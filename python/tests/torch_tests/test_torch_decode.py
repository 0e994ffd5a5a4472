"""Decoding over a paged cache: splash_attention.decode against entmax attention over the same keys."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
_core = pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import BatchDecodeWrapper, PagedCache, decode, decoding  # noqa: E402
from splash_attention.decoding import stored_width  # noqa: E402

from decode_oracle import DEVICES, expected  # noqa: E402


def filled(device, *, batch=2, n=700, kv_heads=2, dim=64, page_size=64, bits=4, dtype=torch.bfloat16):
    torch.manual_seed(0)
    k, v = (torch.randn(batch, kv_heads, n, dim).to(dtype).to(device) for _ in range(2))
    cache = PagedCache.empty(batch, n + 40, kv_heads, dim, page_size=page_size, bits=bits, dtype=dtype, device=device)
    return cache, k, v


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bits", [0, 4, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_decode_of_a_prompt_and_of_tokens_behind_it(device, bits, dtype):
    cache, k, v = filled(device, bits=bits, dtype=dtype)
    cache.append(k[:, :, :600], v[:, :, :600])
    for first, q_len in ((600, 1), (601, 4), (605, 90)):  # the last one fills pages
        cache.append(k[:, :, first : first + q_len], v[:, :, first : first + q_len])
        queries = min(q_len, 3)
        q = (2.4 * torch.randn(2, 8, queries, 64)).to(dtype).to(device)
        out, aux = decode(q, cache, return_aux=True)
        n = first + q_len
        want = expected(q, k[:, :, :n], v[:, :, :n], cache.lengths, 1.5)
        torch.testing.assert_close(out.double().cpu(), want, atol=2e-2, rtol=2e-2)
        assert out.dtype == dtype and aux.support.min() > 0 and (aux.tau < aux.maximum).all()
        if device == "cuda":
            assert not aux.fell_back.any() and (aux.rescored <= aux.candidates).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bits", [0, 4, 8])
@pytest.mark.parametrize("dim", [8, 40, 72, 80, 96, 120, 192, 250])
def test_keys_are_stored_as_wide_as_the_kernels_need(device, bits, dim, monkeypatch):
    """In host memory nothing needs it; here it is made as on a GPU."""
    monkeypatch.setattr(decoding, "stored_width", lambda head_dim, device: stored_width(head_dim, "cuda"))
    cache, k, v = filled(device, n=300, dim=dim, bits=bits)
    assert cache.head_dim == dim and cache.keys.shape[3] == min(width for width in (64, 128, 256) if width >= dim)
    cache.append(k, v)
    q = (2.4 * torch.randn(2, 8, 3, dim)).to(torch.bfloat16).to(device)
    out, aux = decode(q, cache, return_aux=True)
    assert out.shape == q.shape and aux.support.min() > 0
    torch.testing.assert_close(out.double().cpu(), expected(q, k, v, cache.lengths, 1.5), atol=2e-2, rtol=2e-2)
    wrapper = BatchDecodeWrapper()
    pages = -(-300 // cache.page_size)
    indices = cache.block_table[:, :pages].flatten()
    wrapper.plan(torch.tensor([0, pages, 2 * pages]), indices, torch.full((2,), 300 - (pages - 1) * cache.page_size), 8, 2, dim, cache.page_size)
    assert torch.equal(wrapper.run(q[:, :, 2], cache), out[:, :, 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("dim", "page_size"), [(64, 16), (128, 64), (256, 32)])
@pytest.mark.parametrize("bits", [4, 8])
def test_host_memory_has_copies_and_the_same_result(dtype, dim, page_size, bits):
    """Of keys that come at once, one by one, and behind rejected ones."""
    (cache, k, v), (plain, _, _) = (filled("cpu", n=320, dim=dim, page_size=page_size, bits=b, dtype=dtype) for b in (bits, 0))
    assert plain.low_bit.numel() == 0
    copies = cache.low_bit.view(cache.keys.shape[0], 2, -1)

    def same(queries=1):
        assert [(copies[page] != 0xFF).any() for page in range(len(copies))] == [page in filled_once for page in range(len(copies))]
        q = (2.4 * torch.randn(2, 4, queries, dim)).to(dtype)
        (out, aux), (want, other) = (decode(q, one, return_aux=True, alpha=[1.5, 1.2, 2.0, 1.7]) for one in (cache, plain))
        torch.testing.assert_close(out, want, atol=1e-6, rtol=1e-6 if dtype == torch.float32 else 1e-2)
        assert torch.equal(aux.support, other.support) and torch.equal(aux.maximum, other.maximum)
        torch.testing.assert_close(aux.tau, other.tau, atol=1e-6, rtol=1e-6)

    pages_each = cache.block_table.shape[1]
    filled_once = {page + first for page in range(200 // page_size) for first in (0, pages_each)}
    for one in (cache, plain):
        one.append(k[:, :, :200], v[:, :, :200])
    same(3)
    for i in range(200, 200 + page_size + 8):
        for one in (cache, plain):
            one.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        filled_once |= {page + first for page in range((i + 1) // page_size) for first in (0, pages_each)}
        if i % 8 == 7:
            same()
    lengths = torch.tensor([90, 170], dtype=torch.int32)
    for one in (cache, plain):
        one.truncate(lengths)
    same(2)
    for one in (cache, plain):
        one.append(v[:, :, :20], k[:, :, :20])  # other keys, over the old ones
    same()
    taken = PagedCache(cache.keys, cache.values, cache.block_table, cache.lengths, bits=bits)
    assert (taken.low_bit == 0xFF).all()  # of a pool that exists, nothing is known
    again = 2.4 * torch.randn(2, 4, 1, dim).to(dtype)
    before = decode(again, taken)
    taken.fill()
    torch.testing.assert_close(decode(again, taken), before)
    for b, length in enumerate(cache.lengths.tolist()):
        pages = cache.block_table[b, : length // page_size].long()
        assert torch.equal(taken.low_bit.view_as(copies)[pages], copies[pages])


def test_a_step_in_host_memory_reads_copies():
    """It believes them: of copies whose margins are gone, whose keys are zero, no key can matter."""
    cache, k, v = filled("cpu", n=640, bits=8, dtype=torch.float32)
    cache.append(k, v)
    q = torch.randn(2, 4, 1, 64)
    _, aux = decode(q, cache, scale=2.0, return_aux=True)
    cache.low_bit.zero_()
    _, blind = decode(q, cache, scale=2.0, return_aux=True)
    assert not torch.equal(blind.maximum, aux.maximum)


@pytest.mark.parametrize("device", DEVICES)
def test_alpha_and_scale_per_head_and_heads_first(device):
    cache, k, v = filled(device)
    cache.append(k, v)
    q = torch.randn(2, 4, 1, 64).bfloat16().to(device)
    alpha = torch.tensor([1.5, 2.0, 1.25, 1.7])
    want = expected(q, k, v, cache.lengths, alpha.tolist(), 0.3)
    torch.testing.assert_close(decode(q, cache, alpha=alpha, scale=0.3).double().cpu(), want, atol=2e-2, rtol=2e-2)
    other = PagedCache(
        cache.keys.transpose(1, 2).contiguous(), cache.values.transpose(1, 2).contiguous(), cache.block_table, cache.lengths, heads_first=True
    )
    other.fill()
    assert torch.equal(decode(q, other, alpha=alpha, scale=0.3), decode(q, cache, alpha=alpha, scale=0.3))
    other.append(k[:, :, :3], v[:, :, :3])
    assert torch.equal(other.keys.transpose(1, 2)[10, 60:63, 1], k[0, 1, :3]) and other.lengths.tolist() == [703, 703]


@pytest.mark.parametrize("device", DEVICES)
def test_a_truncated_cache_is_the_shorter_cache(device):
    cache, k, v = filled(device)
    cache.append(k, v)
    cache.truncate(torch.tensor([300, 520], dtype=torch.int32))
    assert cache.lengths.tolist() == [300, 520]
    cache.append(v[:, :, :200], k[:, :, :200])  # other keys, over the old ones
    q = torch.randn(2, 4, 1, 64).bfloat16().to(device)
    out = decode(q, cache).double().cpu()
    for b, n in enumerate((300, 520)):
        keys, values = torch.cat([k[:, :, :n], v[:, :, :200]], 2), torch.cat([v[:, :, :n], k[:, :, :200]], 2)
        torch.testing.assert_close(out[b], expected(q, keys, values, cache.lengths, 1.5)[b], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_empty_sequences_holes_and_shared_pages(device):
    cache, k, v = filled(device)
    cache.append(k, v)
    cache.lengths[1] = 0
    q = torch.randn(2, 4, 1, 64).bfloat16().to(device)
    out, aux = decode(q, cache, return_aux=True)
    assert (out[1] == 0).all() and (aux.tau[1] == torch.inf).all() and (aux.support[1] == 0).all()
    cache.block_table[1] = cache.block_table[0]
    cache.lengths[1] = 700
    q[1] = q[0]
    out = decode(q, cache)
    assert torch.equal(out[0], out[1])
    cache.block_table[0, 2] = -1
    kept = [*range(128), *range(192, 700)]
    want = expected(q, k[:, :, kept], v[:, :, kept], torch.tensor([636, 636]), 1.5)
    torch.testing.assert_close(decode(q, cache)[0].double().cpu(), want[0], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bits", [0, 4])
def test_a_window_and_sinks_limit_what_a_query_sees(device, bits):
    torch.manual_seed(2)
    k, v = (torch.randn(1, 2, 900, 64).bfloat16() for _ in range(2))
    q = (2 * torch.randn(1, 4, 1, 64)).bfloat16()
    cache = PagedCache.empty(1, 1024, 2, 64, page_size=32, bits=bits, device=device)
    cache.append(k.to(device), v.to(device))
    for window, sinks in ((1, 0), (300, 0), (555, 4), (2000, 3)):
        seen = sorted({*range(sinks), *range(max(900 - window, 0), 900)})
        want = expected(q, k[:, :, seen], v[:, :, seen], [len(seen)], 1.5, 0.125)
        got = decode(q.to(device), cache, window=window, sinks=sinks)
        torch.testing.assert_close(got.double().cpu(), want, atol=2e-2, rtol=2e-2)
    for window, sinks in ((0, 0), (None, 2), (5, 17), (5, -1)):
        with refused(ValueError, f"window is {window} and sinks {sinks}; allowed are"):
            decode(q.to(device), cache, window=window, sinks=sinks)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_a_cache_remembers_which_rows_were_broad(bits, dim):
    cache, k, v = filled("cuda", n=5000, dim=dim, bits=bits)
    cache.append(k, v)
    flat, sharp = (factor * torch.randn(2, 4, 1, dim).bfloat16().cuda() for factor in (0.02, 6.0))  # supports of thousands, of few
    screened, aux = decode(flat, cache, return_aux=True)
    assert aux.fell_back.all() and aux.screened.min() > 0 and cache.broad.all()
    for _ in range(20):
        at_once, aux = decode(flat, cache, return_aux=True)
        assert torch.equal(at_once, screened) and aux.fell_back.all() and not aux.screened.any()
    torch.testing.assert_close(at_once.double().cpu(), expected(flat, k, v, cache.lengths, 1.5), atol=2e-2, rtol=2e-2)
    once_more, aux = decode(sharp, cache, return_aux=True)  # all keys again, of which few are kept
    assert aux.fell_back.all() and not cache.broad.any()
    fresh, aux = decode(sharp, cache, return_aux=True)
    assert torch.equal(once_more, fresh) and not aux.fell_back.any()
    cache.broad = None
    assert torch.equal(decode(sharp, cache), fresh) and torch.equal(decode(flat, cache), screened)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_a_cache_remembers_the_keys_of_the_last_step(bits, dim):
    cache, k, v = filled("cuda", n=5000, dim=dim, bits=bits)
    cache.append(k, v)
    q = (6 * torch.randn(2, 4, 1, dim)).bfloat16().cuda()
    nearby = q + 0.1 * torch.randn_like(q)  # the next token's
    recent, cache.recent = cache.recent, None
    want, without = decode(nearby, cache, return_aux=True)
    cache.recent = recent
    decode(q, cache)
    assert (cache.recent[..., 0] & 1).all() and (cache.recent[..., 4:] > 0).any()
    got, aux = decode(nearby, cache, return_aux=True)
    assert torch.equal(got, want) and torch.equal(aux.tau, without.tau) and torch.equal(aux.support, without.support)
    assert torch.equal(aux.screened, without.screened) and (aux.rescored == aux.candidates).all() and not aux.fell_back.any()
    cache.recent[..., 4:] = torch.randint(-(2**31), 2**31, cache.recent[..., 4:].shape, device="cuda")  # whatever it holds
    assert torch.equal(decode(nearby, cache), want)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_a_cache_with_little_room_has_the_bits_of_one_with_much(bits, dim):
    """Where there is little, a block decodes a sequence and key head alone (decision 0085)."""
    batch, n = 160, 900
    k, v = (torch.randn(batch, 2, n, dim).bfloat16().cuda() for _ in range(2))
    q = (2 * torch.randn(batch, 4, 1, dim)).bfloat16().cuda()
    results = []
    for room in (1000, 2000, 5000):
        cache = PagedCache.empty(batch, room, 2, dim, page_size=64, bits=bits, device="cuda")
        cache.append(k[:, :, :-1], v[:, :, :-1])
        cache.append(k[:, :, -1:], v[:, :, -1:])
        out, aux = decode(q, cache, return_aux=True)
        results.append((out, aux.tau, aux.maximum, aux.support))
        assert not aux.fell_back.any()
    torch.testing.assert_close(results[0][0][:3].double().cpu(), expected(q[:3], k[:3], v[:3], torch.full((3,), n), 1.5), atol=2e-2, rtol=2e-2)
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_graph_of_steps_remembers():
    cache, k, v = filled("cuda", n=3000, dim=64, bits=4)
    cache.append(k, v)
    q = (6 * torch.randn(2, 4, 1, 64)).bfloat16().cuda()
    decode(q, cache)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode(q, cache)
    for seed in range(20):
        torch.manual_seed(seed)
        q.copy_((6 * torch.randn(2, 4, 1, 64)).bfloat16())
        graph.replay()
        recent, cache.recent = cache.recent, None
        assert torch.equal(out, decode(q, cache))
        cache.recent = recent
    assert cache.recent.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_graph_decodes_later_lengths():
    cache, k, v = filled("cuda", n=800)
    cache.append(k[:, :, :600], v[:, :, :600])
    q = torch.randn(2, 4, 1, 64).bfloat16().cuda()
    token, value = k[:, :, 600:601].clone(), v[:, :, 600:601].clone()

    def step():
        cache.append(token, value)
        return decode(q, cache)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    cache.truncate(torch.full((2,), 600, dtype=torch.int32, device="cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    cache.truncate(torch.full((2,), 600, dtype=torch.int32, device="cuda"))
    for i in range(600, 800):
        token.copy_(k[:, :, i : i + 1])
        value.copy_(v[:, :, i : i + 1])
        q.normal_()
        graph.replay()
        if i % 20 == 0:
            want = expected(q, k[:, :, : i + 1], v[:, :, : i + 1], cache.lengths, 1.5)
            torch.testing.assert_close(out.double().cpu(), want, atol=2e-2, rtol=2e-2)


def refused(kind, match):
    return pytest.raises(kind, match=match)


def test_what_does_not_fit_is_refused_in_a_sentence():
    cache, k, v = filled("cpu", n=80)
    cache.append(k, v)
    q = torch.randn(2, 4, 1, 64).bfloat16()
    with refused(ValueError, r"q must be \[2, a multiple of 2, q_len, 64\] for this cache, not \[2, 3, 1, 64\]"):
        decode(q[:, :3], cache)
    with refused(ValueError, "q has 17 queries; allowed are 1 to 16"):
        decode(q.expand(2, 4, 17, 64), cache)
    with refused(TypeError, "they must be of one dtype"):
        decode(q.float(), cache)
    with refused(ValueError, r"alpha is 1.0; it must lie in \[1.01, 2\]"):
        decode(q, cache, alpha=1.0)
    with refused(ValueError, "alpha has 3 elements; allowed are 1 and q_heads"):
        decode(q, cache, alpha=torch.ones(3))
    with refused(ValueError, "k and v must be"):
        cache.append(k[:, :1], v[:, :1])
    with refused(ValueError, "block_table has room for 128 keys per sequence, not for 160"):
        cache.append(k, v)
    parts = (cache.keys, cache.values, cache.block_table, cache.lengths)
    with refused(ValueError, "bits is 3; allowed are 0, 4, 8"):
        PagedCache(*parts, bits=3)
    with refused(ValueError, "head_dim is 65; it must be from 1 to 64, the pools' last dimension"):
        PagedCache(*parts, head_dim=65)
    with refused(TypeError, "lengths is of torch.int64"):
        PagedCache(*parts[:3], parts[3].long())
    with refused(ValueError, "pages have 20 keys"):
        PagedCache(cache.keys[:, :20], cache.values[:, :20], *parts[2:])
    with refused(ValueError, "one shape of 4 dimensions"):
        PagedCache(cache.keys[0], cache.values[0], *parts[2:])
    cache.block_table[0, 0] = 1000
    with refused(ValueError, "page 1000 lies outside the pool"):
        decode(q, cache)


@pytest.mark.skipif(not _core.has_cuda, reason="built without CUDA")
def test_what_the_kernels_do_not_take_is_refused_without_a_gpu():
    def cache(dtype="bfloat16", page_size=64, head_dim=64, bits=4, strides=(8192, 128, 64), keys=0):
        return _core.DeviceCache(0, dtype, [3, page_size, 2, head_dim, bits], keys, strides, 0, strides, 0)

    assert cache().low_bit_bytes() == 3 * 2 * (4 * 64 + 2 * 64 + 64 * 64 // 2)
    assert cache(bits=0).low_bit_bytes() == 0
    with refused(NotImplementedError, "decode takes head_dim 64, 128 and 256, not 80"):
        cache(head_dim=80)
    with refused(NotImplementedError, "decode takes caches in bfloat16 and float16, not float32"):
        cache(dtype="float32")
    with refused(NotImplementedError, "decode takes pages of 16, 32, 64, 128 or 256 keys, not 48"):
        cache(page_size=48)
    with refused(ValueError, "strides of keys must be multiples of 8 elements"):
        cache(strides=(8192, 128, 60))
    with refused(ValueError, "keys must be 16-byte aligned"):
        cache(keys=8)
