"""What backends/torch/cuda.py does around the kernels, on tensors in host memory: in the kernels' place stand functions that note
what they were told and fill their outputs. The kernels themselves: test_torch_cuda.py, on a GPU."""

from __future__ import annotations

import ctypes
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
core = pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import splash_attention  # noqa: E402
from splash_attention.backends.host_arrays import make_spec  # noqa: E402
from splash_attention.backends.torch import calls, cuda, functional, operators, store_ends  # noqa: E402

HEADS, KV_HEADS, ROWS, KEYS, DIM = 4, 2, 5, 7, 8


def array(address: int, count: int, dtype: type = np.float32) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * (np.dtype(dtype).itemsize * count)).from_address(address), dtype)


@pytest.fixture
def made(monkeypatch):
    """The problems that were made, each with what its kernels were told."""
    made = []

    class DeviceProblem:
        used_entries = [0]  # of each forward, the last one for those that follow
        portable_because = ""
        key = 7

        def __init__(self, spec, device, dtype, alpha_checked, given_thresholds, mask):
            self.spec, self.dtype, self.alpha_checked, self.mask, self.alphas, self.capacities = spec, dtype, alpha_checked, mask, [], []
            self.given_thresholds, self.tables, self.unseen = given_thresholds, [], []
            made.append(self)

        def forward(self, all_rows, q, k, v, alpha, out, store, store_bytes, workspace, stream, tables, notice):
            self.tables.append(tables)
            self.capacities.append(self.store_places(store_bytes)[-1] if store else -1)
            self.alphas.append(array(alpha, 1).tolist())
            array(out, 2 * HEADS * ROWS * DIM)[:] = len(self.capacities)

        def backward(
            self, unseen, for_good, q, k, v, alpha, store, store_bytes, d_out, d_q, d_k, d_v, d_alpha, d_sinks, d_bias, workspace, stream, tables,
            d_q_done,
        ):
            if d_q_done is not None:
                d_q_done.record(stream)
            self.unseen.append((unseen, for_good))
            self.tables.append(tables)
            self.alphas.append(array(alpha, 1).tolist())
            array(d_q, 2 * HEADS * ROWS * DIM)[:] = 1
            for gradient in (d_k, d_v):
                array(gradient, 2 * KV_HEADS * KEYS * DIM)[:] = 1
            if d_alpha:
                array(d_alpha, HEADS)[:] = 1
            if d_sinks:
                array(d_sinks, HEADS)[:] = 2
            if d_bias:
                array(d_bias, HEADS * 3)[:] = 3

        def entries(self, store, store_bytes, stream):
            return self.used_entries[min(len(self.capacities), len(self.used_entries)) - 1]

        def workspace_bytes(self):
            return 8

        def store_places(self, store_bytes):
            capacity = (store_bytes - operators.store_bytes((2, HEADS, ROWS, DIM), 0)) // core.store_size[-1]
            return 256, 256 + 8 * HEADS * ROWS, 0, 0, 0, capacity

        def backward_bytes(self, store_bytes):
            return 8

        def holds(self, store_bytes, entries):
            return 0 <= entries <= self.store_places(store_bytes)[-1]

    class Notice:
        """Of the last forward: its support's entries."""

        known = True

        def __init__(self, problem):
            self.problem = problem

        def entries(self, behind):
            return made[-1].entries(0, 0, "told") if self.known else None

    monkeypatch.setattr(cuda, "_core", types.SimpleNamespace(DeviceProblem=DeviceProblem, Notice=Notice))
    monkeypatch.setattr(cuda, "current_stream", lambda tensor: 0)
    monkeypatch.setattr(cuda, "_constant", lambda value, dtype, device: torch.tensor([value], dtype=dtype))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    cuda._plain_problem.cache_clear()
    cuda._needed.clear()
    yield made
    cuda._plain_problem.cache_clear()
    cuda._needed.clear()


def inputs():
    q = torch.randn(2, HEADS, ROWS, DIM)
    return q, *torch.randn(2, 2, KV_HEADS, KEYS, DIM)


PLAIN = operators.Problem(None, 1.5, False, 0.0, 0, 0)


def test_a_problem_of_numbers_is_made_once_and_its_alpha_is_checked(made):
    q, k, v = inputs()
    for causal in (False, True, False):
        out, *others = cuda.attention(q, k, v, *PLAIN._replace(alpha_value=1.25, causal=causal), False, False, -1)
        assert (out > 0).all() and all(other.numel() == 0 for other in others)
    assert [problem.alpha_checked for problem in made] == [True, True]
    assert made[0].alphas == [[1.25], [1.25]] and made[0].capacities == [-1, -1] and made[1].alphas == [[1.25]]


def test_a_problem_of_the_portable_path_says_so_once(made, monkeypatch):
    q, k, v = inputs()
    cuda._say_portable.cache_clear()
    monkeypatch.setattr(cuda._core.DeviceProblem, "portable_because", "a soft cap")
    with pytest.warns(UserWarning, match="does not take a soft cap yet: such calls run on its portable path") as told:
        for k_keep in (0, 3, 0):
            cuda.attention(q, k, v, *PLAIN._replace(k_keep=k_keep), False, False, -1)
    assert len(made) == 2 and len(told) == 1


def test_out_alone_leaves_the_rest_in_the_store(made):
    q, k, v = inputs()
    problem = PLAIN
    assert (cuda.output(q, k, v, *problem) == 1).all()
    cuda._needed[cuda._problem_key(q, k)] = 300
    out, store = cuda.kept_output(q, k, v, *problem)
    assert (out == 2).all() and made[0].capacities == [-1, 300]
    store[256 : 256 + 8 * HEADS * ROWS].view(torch.float32)[:] = torch.arange(2.0 * HEADS * ROWS)
    store[256 + 8 * HEADS * ROWS :][: 8 * HEADS * ROWS].view(torch.int32)[:] = 3
    tau, counts = cuda._rows(cuda._problem_of(q, k, *problem)[0], store)
    assert tau.shape == counts.shape == q.shape[:3] and (counts == 3).all() and torch.equal(tau.flatten(), torch.arange(2.0 * HEADS * ROWS))
    gradients = cuda.attention_backward(out, q, k, v, *problem, store)
    assert all((gradient == 1).all() for gradient in gradients[:3]) and len(made[0].capacities) == 2


def test_given_thresholds_and_a_k_keep_a_head_reach_the_kernels(made):
    q, k, v = inputs()
    offsets, kept = torch.full((2, HEADS, ROWS), -0.5, dtype=torch.bfloat16), torch.tensor([1, 0, 4, 2])
    problem = PLAIN._replace(tau_offsets=offsets, head_k_keep=kept)
    out, *_, store = cuda.attention(q, k, v, *problem, False, False, 64)
    cuda.attention_backward(out, q, k, v, *problem, store)
    cuda.attention(q, k, v, *PLAIN, False, False, 64)
    given, plain = made  # problems of their own: they take other paths
    assert given.given_thresholds and not plain.given_thresholds
    assert all(all(table[:2]) and table[2:] == (0, 0, 0) for table in given.tables) and plain.tables == [(0,) * 5]


def test_soft_caps_sinks_dropout_and_a_bias_reach_the_kernels(made):
    q, k, v = inputs()
    sinks, seed, bias = torch.arange(4.0, requires_grad=True), torch.tensor([7]), torch.randn(HEADS, 3)
    problem = PLAIN._replace(softcap=3.0, dropout=0.25, bias_first=-2, sinks=sinks, dropout_seed=seed, bias=bias)
    out, *_, store = cuda.attention(q, k, v, *problem, False, False, 64)
    *_, d_sinks, d_bias = cuda.attention_backward(out, q, k, v, *problem, store)
    cuda.attention(q, k, v, *PLAIN, False, False, 64)
    modified, plain = made
    assert modified.tables[0][2:] == (sinks.data_ptr(), seed.data_ptr(), bias.data_ptr()) == modified.tables[1][2:]
    assert (d_sinks == 2).all() and d_bias.shape == bias.shape and (d_bias == 3).all()
    assert plain.tables == [(0,) * 5]
    cuda.attention(q, k, v, *problem._replace(bias_first=-1), False, False, 64)
    cuda.attention(q, k, v, *problem._replace(bias=torch.randn(HEADS, 2)), False, False, 64)
    cuda.attention(q, k, v, *problem._replace(bias=torch.randn(HEADS, 3)), False, False, 64)
    assert len(made) == 4  # the values belong to the call


def test_what_hooks_save_depends_on_shapes_alone(made):
    q, k, v = inputs()
    cuda._needed[cuda._problem_key(q, k)] = 300
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert cuda.capacity_for(q, k) == cuda.first_capacity(q, k) == 2 * HEADS * ROWS * KEYS
    assert cuda.capacity_for(q, k) == 300


def test_alphas_in_a_tensor_are_left_to_the_kernels(made):
    q, k, v = inputs()
    for values in ([1.5, 2.0, 1.0, torch.nan], [1.2, 1.2, 1.2, 1.2]):
        alpha = torch.tensor(values, dtype=torch.float64)
        problem = PLAIN._replace(alpha=alpha, alpha_value=0.0)
        out, *_, store = cuda.attention(q, k, v, *problem, True, False, 64)
        gradients = cuda.attention_backward(out, q, k, v, *problem, store)
        assert gradients[3].dtype == torch.float64 and (gradients[3] == 1).all()
        assert alpha.tolist()[:2] == values[:2]  # the caller's own
    (problem,) = made  # the values belong to the call
    assert not problem.alpha_checked
    assert np.allclose(problem.alphas, [[1.5], [1.5], [1.2], [1.2]])


def test_a_repeated_call_is_one_on_a_gpu(made):
    if not (core.has_cuda and hasattr(torch.Tensor, "__dlpack_c_exchange_api__")):
        pytest.skip("needs PyTorch 2.10 and a build with CUDA")
    calls = core.RepeatedCalls(torch.Tensor)
    q, k, v = inputs()
    numbers = (1.5, False, 0.0, 0, 0, 0)
    calls.add(q, k, *numbers, 0, made)
    for keeps in (0, operators.store_bytes(q.shape, 16)):
        assert calls.forward(q, k, v, torch.empty_like(q), keeps, *numbers) is None
        assert calls.forward(q, "k", np.zeros(3), 5, keeps, *numbers) is None
        assert calls.forward(q, k, v, torch.empty_like(q), keeps, torch.ones(2), *numbers[1:]) is None
    with pytest.raises(AttributeError):
        core.RepeatedCalls(np.ndarray)


def test_tables_belong_to_the_call(made):
    q, k, v = inputs()
    positions = torch.arange(ROWS), torch.tensor([0, 1, 2, 3, 4, 2**40, -(2**40)])
    for _ in range(2):
        cuda.attention(q, k, v, *PLAIN._replace(q_positions=positions[0], k_positions=positions[1]), False, False, -1)
    packed = PLAIN._replace(causal=True, cu_seqlens_q=torch.tensor([0, 2, ROWS]), cu_seqlens_k=torch.tensor([0, 3, KEYS]))
    cuda.attention(q, k, v, *packed, False, False, -1)
    first, second, third = made
    assert first.mask[0] == 0 and first.mask[3:] == second.mask[3:] == third.mask[3:] == (1, 1, 0, 1) and third.mask[1:3] == (0, 0)
    assert cuda._int32(positions[1]).tolist() == [0, 1, 2, 3, 4, 2**31 - 1, -(2**31) + 1]
    assert third.spec.key_ranges().tolist() == [[0, 2], [0, 3], [3, 5], [3, 6], [3, 7]]
    pairs = torch.arange(ROWS)[None, :, None].expand(2, -1, -1)
    for lengths in (PLAIN, packed):
        cuda.attention(q, k, v, *lengths._replace(pairs=pairs), False, False, -1)
        assert made[-1].mask[5] != 0 and made[-1].mask[6] == 2 and (made[-1].mask[0] != 0) == (lengths is packed)
    cuda.attention(q, k, v, *packed._replace(window=2), False, False, -1)
    assert made[-1].spec.key_ranges().tolist() == [[0, 2], [1, 3], [3, 5], [4, 6], [5, 7]]


def test_the_lengths_of_packed_sequences_are_read_once(made, monkeypatch):
    """By all layers, forward and backward: to read them waits for the GPU."""
    q, k, v = inputs()
    lengths = torch.tensor([0, 2, ROWS]), torch.tensor([0, 3, KEYS])

    def forward(*lengths, **others):
        packed = PLAIN._replace(causal=True, cu_seqlens_q=lengths[0], cu_seqlens_k=lengths[1], **others)
        return packed, cuda.attention(q, k, v, *packed, False, False, 64)

    packed, (out, *_, store) = forward(*lengths)
    cuda.attention_backward(out, q, k, v, *packed, store)
    forward(*lengths)
    assert len(made) == 1
    forward(*lengths, window=2)
    forward(*(table.clone() for table in lengths))
    forward(*lengths)
    assert [problem.spec.key_ranges()[-1].tolist() for problem in made] == [[3, 7], [5, 7], [3, 7]]
    lengths[0][1] = 1
    forward(*lengths)
    assert len(made) == 4 and made[-1].spec.key_ranges().tolist() == [[0, 3], [3, 4], [3, 5], [3, 6], [3, 7]]
    lengths[0].data = torch.tensor([0, 3, ROWS])
    forward(*lengths)
    assert len(made) == 5 and made[-1].spec.key_ranges()[2].tolist() == [0, 3]
    with torch.inference_mode():
        uncounted = tuple(table.clone() for table in lengths)
        forward(*uncounted)
        forward(*uncounted)
    assert len(made) == 7
    monkeypatch.setattr(cuda, "current_stream", lambda tensor: 7)  # memory belongs to a stream
    forward(*lengths)
    assert len(made) == 8
    one, other = (cuda.known_lengths(stream, *lengths) for stream in (0, 7))
    assert one.number < other.number and one.problems.keys() == other.problems.keys() and other.problems != one.problems
    kept = [tuple(torch.tensor([0, i, n]) for n in (ROWS, KEYS)) for i in (1, 2, 1, 2) * cuda._KEPT_LENGTHS]
    for each in kept:
        forward(*each)
    assert len(cuda._lengths) == cuda._KEPT_LENGTHS
    numbers = [known.number for known in cuda._lengths.values()]
    assert numbers == sorted(set(numbers)) and 0 not in numbers
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert cuda.known_lengths(7, *kept[-1]) is None  # a graph may outlive them
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(cuda, "_KEPT_PROBLEMS", 2)
    for window in (1, 2):
        forward(*kept[-1], window=window)
    assert cuda.known_lengths(7, *kept[-1]).number == numbers[-1] + 1
    del kept, each
    forward(*lengths)
    assert [known.number for known in cuda._lengths.values()] == [numbers[-1] + 2]


def test_backward_is_given_forwards_own_lengths(monkeypatch):
    seen = []
    backward = operators.attention_backward_cpu
    for table in (calls._attention_backward, calls._output_backward):
        monkeypatch.setitem(table, "cpu", lambda *inputs: (seen.extend(inputs[4:]), backward(*inputs))[1])
    q, k, v = (x.requires_grad_() for x in inputs())
    lengths = torch.tensor([0, 2, ROWS]), torch.tensor([0, 3, KEYS])
    for sinks in (None, torch.zeros(HEADS)):
        seen.clear()
        splash_attention(q, k, v, cu_seqlens_q=lengths[0], cu_seqlens_k=lengths[1], sinks=sinks).sum().backward()
        assert all(any(given is table for given in seen) for table in lengths)
        out = splash_attention(q, k, v, cu_seqlens_q=lengths[0], cu_seqlens_k=lengths[1], sinks=sinks)
        lengths[0][1] = 3
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_a_store_that_is_too_small_grows_and_is_remembered(made, monkeypatch):
    q, k, v = inputs()
    problem = PLAIN
    out, *_, store = cuda.attention(q, k, v, *problem, False, False, 64)
    monkeypatch.setattr(made[0], "used_entries", [400, 400])
    d_q, *_ = cuda.attention_backward(out, q, k, v, *problem, store)
    assert made[0].capacities == [64, 450] and (d_q == 1).all() and (out == 1).all()  # out is not written again
    assert made[0].unseen == [(True, False), (False, False)]
    assert cuda.capacity_for(q, k) == 450


def test_a_store_that_another_problem_emptied_is_made_again(made, monkeypatch):
    """In a graph: then the notice is forgotten, for it still tells what there was."""
    q, k, v = inputs()
    out, *_, store = cuda.attention(q, k, v, *PLAIN, False, False, 64)
    with monkeypatch.context() as captured:
        captured.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        cuda.attention_backward(out, q, k, v, *PLAIN, store)
    made[0].unseen.clear()
    monkeypatch.setattr(made[0], "used_entries", [-1, 5])
    d_q, *_ = cuda.attention_backward(out, q, k, v, *PLAIN, store)
    assert made[0].capacities == [64, 0, 5] and made[0].unseen == [(False, False)] and (d_q == 1).all()


def test_the_store_of_another_problem_is_looked_at_before_a_launch(made, monkeypatch):
    """Which would empty it, and its own backward believes the notice."""
    q, k, v = inputs()
    out, *_, store = cuda.attention(q, k, v, *PLAIN, False, False, 64)
    monkeypatch.setattr(made[0], "key", 8)
    cuda.attention_backward(out, q, k, v, *PLAIN, store)
    assert made[0].unseen == [(False, False)]


def test_backward_is_launched_before_it_is_known_whether_the_store_is_whole(made, monkeypatch):
    q, k, v = inputs()
    out, *_, store = cuda.attention(q, k, v, *PLAIN, False, False, 64)
    entries = made[0].entries
    asked = []  # on which stream, after how many launches
    monkeypatch.setattr(made[0], "entries", lambda *store: asked.append((store[-1], len(made[0].unseen))) or entries(*store))
    cuda.attention_backward(out, q, k, v, *PLAIN, store)
    assert asked == [("told", 1)] and made[0].unseen == [(True, False)]
    cuda.attention_backward(out, q, k, v, *PLAIN, store.clone())  # nothing is known of it: as a hook brings it back
    assert asked[1:] == [(0, 1)] and made[0].unseen[1:] == [(False, False)]
    del asked[1:], made[0].unseen[1:]
    monkeypatch.setattr(cuda._core.Notice, "known", False)  # another forward took the word
    cuda.attention_backward(out, q, k, v, *PLAIN, store)
    assert asked[1:] == [(0, 2)] and made[0].unseen[1:] == [(True, False), (False, False)]
    del made[0].unseen[1:]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    cuda.attention_backward(out, q, k, v, *PLAIN, store)
    assert len(asked) == 2 and made[0].unseen[1:] == [(True, True)]


def test_backward_of_a_call_like_one_before_is_one_call_of_the_library(made, monkeypatch):
    q, k, v = inputs()
    alphas = torch.full((HEADS,), 1.25)
    capped, learned = PLAIN._replace(softcap=2.0), PLAIN._replace(alpha=alphas, alpha_value=0.0)
    stores = {problem: cuda.kept_output(q, k, v, *problem)[1] for problem in (PLAIN, capped, learned)}
    asked, answers = [], [True, False, None]  # whole; not whole; no such call

    def backward(d_out, *rest):
        asked.append((rest[8].problem, *rest[9:]))
        return answers[len(asked) - 1]

    monkeypatch.setattr(cuda, "_repeated", types.SimpleNamespace(backward=backward))
    for launched in (0, 1, 2):  # by another way
        gradients = cuda.output_backward(q, q, k, v, *PLAIN, stores[PLAIN])
        assert [one.shape for one in gradients[:3]] == [q.shape, k.shape, v.shape] and gradients[3] is None
        assert len(made[0].unseen) == launched
    assert asked == [(7, 1.5, False, 0.0, 0, 0, 0)] * 3
    for problem, store in ((capped, stores[capped]), (learned, stores[learned]), (PLAIN, stores[PLAIN].clone())):
        cuda.output_backward(q, q, k, v, *problem, store)
    assert len(asked) == 3  # none of these is such a call, or nothing is known of its store


@pytest.mark.parametrize("by", ["kernels", "dense products"])
def test_who_sends_the_gradient_by_q_is_told_when_it_is_there(made, monkeypatch, by):
    q, k, v = inputs()
    out, *_, store = cuda.attention(q, k, v, *PLAIN, False, False, 64)
    if by == "dense products":
        monkeypatch.setattr(cuda, "_problem_of", lambda *_: (types.SimpleNamespace(kernels=None), None, None))
        monkeypatch.setattr(cuda, "_dense_problem", lambda *_: None)
        monkeypatch.setattr(cuda.dense, "backward", lambda *_: (out,) * 4)
    recorded = []
    cuda.gradients(out, q, k, v, *PLAIN, store, d_q_done=types.SimpleNamespace(record=recorded.append))
    assert recorded == [0]  # on the current stream


@pytest.mark.parametrize("tables", ["none", "window", "positions", "packed", "packed window", "given", "given, packed", "pairs", "packed pairs"])
@pytest.mark.parametrize("alpha", [2.5, "of each head"])
def test_what_the_kernels_do_not_take_is_computed_without_them(made, monkeypatch, alpha, tables):
    def refuse(spec, device, dtype, alpha_checked, given_thresholds, mask):
        raise NotImplementedError("entmax forward takes ...")

    monkeypatch.setattr(cuda._core, "DeviceProblem", refuse)
    q, k, v = (x.double() for x in inputs())
    values = (None, alpha) if alpha == 2.5 else (torch.tensor([1.2, 2.5, 4.0, 1.5], dtype=torch.float64), 2.5)
    problem = operators.Problem(*values, True, 0.0, 0 if tables == "given, packed" else 3, 2 if "window" in tables else 0)
    if "positions" in tables:
        problem = problem._replace(q_positions=torch.tensor([3, 0, 2, 1, 6]), k_positions=torch.arange(KEYS))
    if "packed" in tables:
        problem = problem._replace(cu_seqlens_q=torch.tensor([0, 2, ROWS]), cu_seqlens_k=torch.tensor([0, 3, KEYS]))
    if "pairs" in tables:
        problem = problem._replace(pairs=torch.tensor([[[0b1011], [0], [0b1100100], [127], [1]]]).expand(1 if "packed" in tables else 2, -1, -1))
    if "given" in tables:
        problem = problem._replace(tau_offsets=-torch.rand(2, HEADS, ROWS, dtype=torch.float64))
    if tables == "given, packed":
        problem = problem._replace(head_k_keep=torch.tensor([1, 0, 4, 9], dtype=torch.int32))
    for kept in ((True, True, 64), (False, False, -1)):
        mine = cuda.attention(q, k, v, *problem, *kept)
        theirs = operators.attention_cpu(q, k, v, *problem, *kept)
        for a, b in zip(mine[:3], theirs):
            torch.testing.assert_close(a, b)
        assert mine[3].numel() == (theirs[1].numel() if kept[1] else 0)
        assert mine[4].numel() == (operators.store_bytes(q.shape, 64) if kept[2] > 0 else 0)  # as compilers expect
    out, store = cuda.kept_output(q, k, v, *problem)
    assert torch.equal(out, cuda.output(q, k, v, *problem)) and torch.equal(out, mine[0])
    backward = zip(
        cuda.attention_backward(out, q, k, v, *problem, store),
        operators.attention_backward_cpu(out, q, k, v, *problem, store),
    )
    for a, b in (*backward, *zip(cuda.probabilities(q, k, *problem), operators._probabilities_cpu(q, k, *problem))):
        torch.testing.assert_close(a, b)


@pytest.mark.skipif(not core.has_cuda, reason="this build has no CUDA")
@pytest.mark.parametrize("dtype, dim, alpha, scale", [
    ("float64", 8, 1.5, 1.0), ("bfloat16", 20, 1.5, 1.0), ("float32", 320, 1.5, 1.0), ("float16", 8, 1.005, 1.0),
    ("bfloat16", 8, 2.5, 1.0), ("float32", 8, 1.5, -1.0),
])  # fmt: skip
def test_the_library_refuses_such_a_problem_before_it_asks_for_a_device(dtype, dim, alpha, scale):
    spec = make_spec((1, 1, 1, 3, 3, dim), [alpha], False, scale, 0, 0, [None] * 4)
    with pytest.raises(NotImplementedError, match="entmax forward takes"):
        core.DeviceProblem(spec, 0, dtype, True, False, (0, 0, 0, 1, 1, 0, 1))


def test_the_host_says_which_alphas_the_kernels_do_not_take():
    q = torch.randn(1, 2, 3, 4)
    takes = cuda.takes_alpha
    assert [takes(alpha) for alpha in (1.0099, 1.01, 1.5, 2.0, 2.0001, np.nan)] == [False, True, True, True, False, False]
    for given, number in ((1.5, 1.5), (2.5, 2.5), ([1.5, 2.0], 0.0), ([1.5, 64], 64.0), (np.array([1.005, 2]), 1.005)):
        assert functional.as_alpha(given, "q", q, takes)[1] == number
    compiled = torch.compile(lambda q, alpha: functional.as_alpha(alpha, "q", q, takes), fullgraph=True, backend="eager")
    assert [compiled(q, alpha)[1] for alpha in (1.5, 2.5, [1.5, 64.0])] == [0.0, 2.5, 64.0]


def test_what_inference_mode_left_is_no_obstacle_to_gradients():
    operators.nothing.cache_clear()
    with torch.inference_mode():
        operators.nothing(torch.float32, torch.device("cpu"))
    assert not operators.nothing(torch.float32, torch.device("cpu")).is_inference()
    operators.nothing.cache_clear()
    q, k, v = inputs()
    with torch.inference_mode():
        splash_attention(q, k, v)
    splash_attention(q.requires_grad_(), k, v).sum().backward()
    assert q.grad.shape == q.shape
