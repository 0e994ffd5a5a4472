"""Which forward backward waits for: the one that wrote the store, whatever has its address or its graph."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

from splash_attention.backends.torch import store_ends  # noqa: E402


@pytest.fixture(autouse=True)
def events(monkeypatch):
    found, capturing = iter(range(1, 99999)), [False]
    monkeypatch.setattr(store_ends._core, "StreamPoint", lambda device, stream: next(found), raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(store_ends, "_ends", {})
    return capturing


def test_a_store_has_the_last_forward_that_wrote_it():
    first, second = torch.empty(8), torch.empty(8)
    assert store_ends.of(first) is None
    store_ends.note(first, 0)
    store_ends.note(second, 0)
    store_ends.note(first, 0)
    assert (store_ends.of(first), store_ends.of(second)) == (3, 2)
    assert store_ends.of(first.view(2, 4)) == 3  # as autograd gives it back
    assert store_ends.of(first) == 3  # a graph that is kept asks again


def test_a_copy_and_what_gets_the_memory_of_a_store_are_others():
    import ctypes

    memory = ctypes.create_string_buffer(64)
    store = torch.frombuffer(memory, dtype=torch.uint8)
    store_ends.note(store, 0)
    assert store_ends.of(store.clone()) is None
    other = torch.frombuffer(memory, dtype=torch.uint8)
    assert other.data_ptr() == store.data_ptr() and store_ends.of(other) is None
    del store
    assert all(store_ends.of(torch.empty(64, dtype=torch.uint8)) is None for _ in range(1000))


def test_a_captured_forward_tells_nothing(events):
    store = torch.empty(8)
    store_ends.note(store, 0)
    events[0] = True
    store_ends.note(store, 0)
    assert store_ends.of(store) is None


def test_stores_that_are_gone_are_forgotten_and_others_are_not():
    kept = [torch.empty(8) for _ in range(10)]
    for store in kept:
        store_ends.note(store, 0)
    for _ in range(2 * store_ends._MOST):
        store_ends.note(torch.empty(8), 0)
    assert len(store_ends._ends) <= store_ends._MOST
    assert [store_ends.of(store) for store in kept] == list(range(1, 11))
