"""Which forward backward waits for: the one that wrote the store, whatever has its address or its graph."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

from splash_attention.backends.torch import cuda  # noqa: E402


@pytest.fixture(autouse=True)
def events(monkeypatch):
    found, capturing = iter(range(1, 99999)), [False]
    monkeypatch.setattr(cuda._core, "StreamPoint", lambda device, stream: next(found), raising=False)
    monkeypatch.setattr(cuda, "current_stream", lambda store: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(cuda, "_ends", {})
    return capturing


def test_a_store_has_the_last_forward_that_wrote_it():
    first, second = torch.empty(8), torch.empty(8)
    assert cuda.end_of(first) is None
    cuda.note_end(first)
    cuda.note_end(second)
    cuda.note_end(first)
    assert (cuda.end_of(first), cuda.end_of(second)) == (3, 2)
    assert cuda.end_of(first.view(2, 4)) == 3  # as autograd gives it back
    assert cuda.end_of(first) == 3  # a graph that is kept asks again


def test_a_copy_and_what_gets_the_memory_of_a_store_are_others():
    import ctypes

    memory = ctypes.create_string_buffer(64)
    store = torch.frombuffer(memory, dtype=torch.uint8)
    cuda.note_end(store)
    assert cuda.end_of(store.clone()) is None
    other = torch.frombuffer(memory, dtype=torch.uint8)
    assert other.data_ptr() == store.data_ptr() and cuda.end_of(other) is None
    del store
    assert all(cuda.end_of(torch.empty(64, dtype=torch.uint8)) is None for _ in range(1000))


def test_a_captured_forward_tells_nothing(events):
    store = torch.empty(8)
    cuda.note_end(store)
    events[0] = True
    cuda.note_end(store)
    assert cuda.end_of(store) is None


def test_stores_that_are_gone_are_forgotten_and_others_are_not():
    kept = [torch.empty(8) for _ in range(10)]
    for store in kept:
        cuda.note_end(store)
    for _ in range(2 * cuda._MOST_ENDS):
        cuda.note_end(torch.empty(8))
    assert len(cuda._ends) <= cuda._MOST_ENDS
    assert [cuda.end_of(store) for store in kept] == list(range(1, 11))
