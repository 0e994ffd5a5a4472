"""Decoding over paged caches in float8_e4m3fn, against entmax attention over the numbers that they hold."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
_core = pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import BatchDecodeWrapper, PagedCache, decode, entmax  # noqa: E402
from splash_attention.decoding import stored_width  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
FP8 = torch.float8_e4m3fn
NAN_BYTES = (0x7F, 0xFF)
K_SCALE, V_SCALE = 0.011, 0.25


def quantized(x, scale):
    """By torch's own conversion, which does not saturate."""
    return (x.float() / torch.tensor(scale)).clamp(-448, 448).to(FP8)


def numbers(stored, scale):
    return stored.double() * torch.tensor(scale).double()


def expected(q, keys, values, lengths, alpha=1.5, window=None, sinks=0):
    """keys, values: [batch, kv_heads, n, head_dim], float64. Dense."""
    q, keys, values = (x.double().cpu() for x in (q, keys, values))
    group, q_len = q.shape[1] // keys.shape[1], q.shape[2]
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q_len):
                end = int(lengths[b]) - (q_len - 1 - i)
                seen = [j for j in range(end) if window is None or j >= end - window or j < sinks]
                if seen:
                    scores = q.shape[3] ** -0.5 * keys[b, h // group, seen] @ q[b, h, i]
                    out[b, h, i] = entmax(scores, alpha=alpha) @ values[b, h // group, seen]
    return out


def pools(batch, n, kv_heads, dim, page_size, heads_first, device):
    """Keys and values in pages out of order, with NaN wherever no sequence is: PagedCache's arguments, and the stored numbers."""
    torch.manual_seed(1)
    k, v = (torch.randn(batch, kv_heads, n, dim) for _ in range(2))
    stored = quantized(k, K_SCALE), quantized(v, V_SCALE)
    pages = -(-n // page_size)
    table = (torch.randperm(batch * pages) + 1).view(batch, pages)
    made = []
    for rows in stored:
        pool = torch.empty(batch * pages + 1, page_size, kv_heads, dim, dtype=torch.uint8)
        pool[..., 0::2], pool[..., 1::2] = NAN_BYTES
        for b in range(batch):
            for j in range(n):
                pool[table[b, j // page_size], j % page_size] = rows[b, :, j].view(torch.uint8)
        pool = pool.view(FP8)
        made.append((pool.transpose(1, 2).contiguous() if heads_first else pool).to(device))
    lengths = torch.full((batch,), n, dtype=torch.int32)
    return (*made, table.int().to(device), lengths.to(device)), (numbers(stored[0], K_SCALE), numbers(stored[1], V_SCALE))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize(("dim", "page_size"), [(64, 16), (64, 32), (128, 64), (128, 128), (256, 256)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pools_of_torchs_conversion(device, heads_first, dim, page_size, dtype):
    parts, (k, v) = pools(2, 333, 2, dim, page_size, heads_first, device)
    cache = PagedCache(*parts, heads_first=heads_first, k_scale=K_SCALE, v_scale=torch.tensor(V_SCALE))
    assert cache.bits == 0 and cache.low_bit.numel() == 0
    cache.fill()  # there is nothing to fill
    q = (2.4 * torch.randn(2, 6, 3, dim)).to(dtype).to(device)
    for window, sinks in ((None, 0), (100, 3)):
        out, aux = decode(q, cache, window=window, sinks=sinks, return_aux=True)
        want = expected(q, k, v, cache.lengths, window=window, sinks=sinks)
        torch.testing.assert_close(out.double().cpu(), want, atol=2e-2, rtol=2e-2)
        assert out.dtype == dtype and aux.support.min() > 0 and (aux.tau < aux.maximum).all()
    cache.lengths[1] = 50
    torch.testing.assert_close(decode(q, cache).double().cpu(), expected(q, k, v, [333, 50]), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dim", [64, 80, 128])
def test_a_prompt_and_tokens_behind_it(device, dim, monkeypatch):
    from splash_attention import decoding

    monkeypatch.setattr(decoding, "stored_width", lambda head_dim, device: stored_width(head_dim, "cuda"))
    torch.manual_seed(0)
    k, v = (torch.randn(2, 2, 400, dim).bfloat16().to(device) for _ in range(2))
    cache = PagedCache.empty(2, 500, 2, dim, dtype=FP8, device=device, k_scale=K_SCALE, v_scale=V_SCALE)
    cache.append(k[:, :, :300], v[:, :, :300])
    stored_k, stored_v = (numbers(quantized(x.cpu(), scale), scale) for x, scale in ((k, K_SCALE), (v, V_SCALE)))
    for first, q_len in ((300, 1), (301, 4), (305, 95)):
        cache.append(k[:, :, first : first + q_len], v[:, :, first : first + q_len])
        q = (2.4 * torch.randn(2, 8, min(q_len, 3), dim)).bfloat16().to(device)
        n = first + q_len
        want = expected(q, stored_k[:, :, :n], stored_v[:, :, :n], cache.lengths)
        torch.testing.assert_close(decode(q, cache).double().cpu(), want, atol=2e-2, rtol=2e-2)
    cache.truncate(torch.tensor([200, 400], dtype=torch.int32))
    want = expected(q, stored_k, stored_v, [200, 400])
    torch.testing.assert_close(decode(q, cache).double().cpu(), want, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_new_keys_are_rounded_to_the_nearest_and_saturate(device, heads_first, dtype):
    torch.manual_seed(3)
    x = (torch.randn(1, 2, 32, 64) * torch.exp2(torch.rand(1, 2, 32, 64) * 24 - 14)).to(dtype)
    x[0, 0, 0, :4] = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0])
    shape = (3, 2, 16, 64) if heads_first else (3, 16, 2, 64)
    keys, values = (torch.zeros(shape, dtype=torch.uint8, device=device).view(FP8) for _ in range(2))
    table, lengths = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([[2, 1]], [0]))
    cache = PagedCache(keys, values, table, lengths, heads_first=heads_first, k_scale=0.3, v_scale=None)
    cache.append(x.to(device), x.to(device))
    for pool, scale in ((keys, 0.3), (values, 1.0)):
        by_head = (pool if heads_first else pool.view(torch.uint8).transpose(1, 2).view(FP8)).cpu()
        got = torch.cat([by_head[page].view(torch.uint8) for page in (2, 1)], 1).view(FP8).float()  # [kv_heads, 32, 64]
        want = quantized(x, scale)[0].float()
        assert torch.equal(got.nan_to_num(1e3), want.nan_to_num(1e3)) and got.isnan().sum() == 1
        assert got[0, 0, 0] == 448 and got[0, 0, 1] == -448
    cache.truncate(torch.zeros(1, dtype=torch.int32))
    stored = quantized(x, 1.0)
    cache.append(stored.to(device), stored.to(device))  # as it is, whatever the scales
    first = (keys[2] if heads_first else keys[2].view(torch.uint8).transpose(0, 1).view(FP8)).cpu()
    assert torch.equal(first.float().nan_to_num(1e3), stored[0, :, :16].float().nan_to_num(1e3))


@pytest.mark.parametrize("device", DEVICES)
def test_a_nan_that_a_sequence_holds_gives_nan_rows_of_its_own(device):
    parts, _ = pools(2, 100, 2, 64, 16, False, device)
    cache = PagedCache(*parts, k_scale=K_SCALE, v_scale=V_SCALE)
    q = torch.randn(2, 4, 1, 64).bfloat16().to(device)
    before = decode(q, cache)
    cache.keys.view(torch.uint8)[parts[2][0, 3], 5, 1, 9] = NAN_BYTES[1]
    out, aux = decode(q, cache, return_aux=True)
    assert out[0, 2:].isnan().all() and aux.tau[0, 2:].isnan().all()
    assert torch.equal(out[0, :2], before[0, :2]) and torch.equal(out[1], before[1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_the_calling_style_of_flashinfer(device, layout):
    (keys, values, table, lengths), (k, v) = pools(2, 96, 2, 64, 16, layout == "HND", device)
    indptr, last = torch.tensor([0, 6, 12], dtype=torch.int32, device=device), torch.full((2,), 16, dtype=torch.int32, device=device)
    wrapper = BatchDecodeWrapper(layout)
    wrapper.plan(indptr, table.reshape(-1), last, 6, 2, 64, 16)
    q = (2 * torch.randn(2, 6, 64)).bfloat16().to(device)
    k_scale = torch.tensor(K_SCALE, device=device)
    out = wrapper.run(q, (keys, values), k_scale=k_scale, v_scale=V_SCALE)
    torch.testing.assert_close(out.double().cpu(), expected(q[:, :, None], k, v, lengths)[:, :, 0], atol=2e-2, rtol=2e-2)
    cache = PagedCache(keys, values, table, lengths, heads_first=layout == "HND", k_scale=k_scale, v_scale=V_SCALE)
    assert torch.equal(wrapper.run(q, cache), out)
    with refused(ValueError, "a PagedCache has its own k_scale and v_scale"):
        wrapper.run(q, cache, k_scale=1.0)


def refused(kind, match):
    return pytest.raises(kind, match=match)


def test_what_does_not_fit_is_refused_in_a_sentence():
    parts, _ = pools(1, 20, 1, 64, 16, False, "cpu")
    cache = PagedCache(*parts)
    assert cache.k_scale is None and cache.v_scale is None
    rows = torch.zeros(1, 1, 2, 64)
    with refused(NotImplementedError, "decode keeps no copies of float8 caches, which are as small: bits must be 0, not 4"):
        PagedCache(*parts, bits=4)
    with refused(TypeError, "keys and values are of torch.float8_e5m2; of the types of 8 bits decode takes torch.float8_e4m3fn"):
        PagedCache(*(pool.view(torch.uint8).view(torch.float8_e5m2) for pool in parts[:2]), *parts[2:])
    with refused(ValueError, "k_scale is 0; it must be above 0 and finite"):
        PagedCache(*parts, k_scale=0)
    with refused(ValueError, "v_scale has 2 elements; it must have one"):
        PagedCache(*parts, v_scale=torch.ones(2))
    with refused(ValueError, "k_scale and v_scale belong to keys and values of torch.float8_e4m3fn, not of torch.bfloat16"):
        PagedCache(*(torch.zeros(pool.shape, dtype=torch.bfloat16) for pool in parts[:2]), *parts[2:], k_scale=1.0)
    with refused(TypeError, "q is of torch.float8_e4m3fn; beside a cache of torch.float8_e4m3fn it must be of one of"):
        decode(rows[:, :, :1].to(FP8), cache)
    with refused(TypeError, "k and v must be of one of torch.float8_e4m3fn, torch.bfloat16"):
        cache.append(rows.bfloat16(), rows.half())


@pytest.mark.skipif(not _core.has_cuda, reason="built without CUDA")
def test_what_the_kernels_do_not_take_is_refused_without_a_gpu():
    def cache(rows="bfloat16", page_size=64, head_dim=64, bits=0, strides=(8192, 128, 64), keys=0):
        return _core.DeviceCache(0, [3, page_size, 2, head_dim, bits], keys, strides, 0, strides, rows, [0, 0])

    assert cache().low_bit_bytes() == 0
    with refused(NotImplementedError, "decode takes head_dim 64, 128 and 256, not 80"):
        cache(head_dim=80)
    with refused(NotImplementedError, "decode takes queries beside float8 in bfloat16 and float16, not float32"):
        cache(rows="float32")
    with refused(NotImplementedError, "decode keeps no copies of float8 caches, which are as small: bits must be 0, not 8"):
        cache(bits=8)
    with refused(ValueError, "strides of keys must be multiples of 16 elements"):
        cache(strides=(8192, 128, 72))
    with refused(ValueError, "keys must be 16-byte aligned"):
        cache(keys=8)


def long_cache(dim, n=5000):
    torch.manual_seed(0)
    k, v = (torch.randn(2, 2, n, dim).bfloat16().cuda() for _ in range(2))
    cache = PagedCache.empty(2, n, 2, dim, dtype=FP8, device="cuda", k_scale=K_SCALE, v_scale=V_SCALE)
    cache.append(k, v)
    return cache, *(numbers(quantized(x.cpu(), scale), scale) for x, scale in ((k, K_SCALE), (v, V_SCALE)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_the_same_bits_screened_and_at_once(dim):
    cache, k, v = long_cache(dim)
    assert cache.recent is None  # it has no copies
    for factor in (0.02, 6.0):  # supports of thousands, of few
        q = factor * torch.randn(2, 4, 1, dim).bfloat16().cuda()
        broad, cache.broad = cache.broad, None
        screened, aux = decode(q, cache, return_aux=True)
        assert aux.screened.min() > 0 and aux.fell_back.all() == (factor < 1)
        torch.testing.assert_close(screened.double().cpu(), expected(q, k, v, cache.lengths), atol=2e-2, rtol=2e-2)
        cache.broad = broad
        cache.broad.fill_(-1)
        at_once, aux = decode(q, cache, return_aux=True)
        assert torch.equal(at_once, screened) and not aux.screened.any()
        for _ in range(20):
            assert torch.equal(decode(q, cache), screened)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_graph_takes_later_scales_keys_and_lengths():
    torch.manual_seed(0)
    scales = torch.tensor([K_SCALE], device="cuda"), torch.tensor([V_SCALE], device="cuda")
    k, v = (torch.randn(2, 2, 700, 64).bfloat16().cuda() for _ in range(2))
    cache = PagedCache.empty(2, 800, 2, 64, dtype=FP8, device="cuda", k_scale=scales[0], v_scale=scales[1])
    cache.append(k[:, :, :600], v[:, :, :600])
    q, token, value = torch.randn(2, 4, 1, 64).bfloat16().cuda(), k[:, :, 600:601].clone(), v[:, :, 600:601].clone()

    def step():
        cache.append(token, value)
        return decode(q, cache)

    start = torch.full((2,), 600, dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    cache.truncate(start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    cache.truncate(start)
    for i in range(600, 700):
        token.copy_(k[:, :, i : i + 1])
        value.copy_(v[:, :, i : i + 1])
        scales[0].mul_(1.01)
        q.normal_()
        graph.replay()
        if i % 20 == 0:
            got = out.clone()
            assert torch.equal(got, decode(q, cache))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_queries_that_both_types_have_give_the_same_step():
    cache, *_ = long_cache(128)
    q = (6 * torch.randn(2, 4, 1, 128)).bfloat16().cuda()
    (out, aux), (other, other_aux) = (decode(q.to(dtype), cache, return_aux=True) for dtype in (torch.bfloat16, torch.float16))
    assert torch.equal(aux.tau, other_aux.tau) and torch.equal(aux.support, other_aux.support)
    torch.testing.assert_close(out.float(), other.float(), atol=1e-2, rtol=1e-2)
