"""Which forward backward asks: the one that wrote the store, whatever has its address or its graph."""

from __future__ import annotations

import ctypes

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

from splash_attention.backends.torch import store_ends  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    monkeypatch.setattr(store_ends, "_ends", {})


def test_a_store_has_the_last_forward_that_wrote_it():
    first, second = torch.empty(8), torch.empty(8)
    assert store_ends.of(first) is None
    for store, notice in ((first, 1), (second, 2), (first, 3)):
        store_ends.note(store, notice)
    assert (store_ends.of(first), store_ends.of(second)) == (3, 2)
    assert store_ends.of(first.view(2, 4)) == 3  # as autograd gives it back
    assert store_ends.of(first) == 3  # a graph that is kept asks again


def test_a_copy_and_what_gets_the_memory_of_a_store_are_others():
    memory = ctypes.create_string_buffer(64)
    store = torch.frombuffer(memory, dtype=torch.uint8)
    store_ends.note(store, 1)
    assert store_ends.of(store.clone()) is None
    other = torch.frombuffer(memory, dtype=torch.uint8)
    assert other.data_ptr() == store.data_ptr() and store_ends.of(other) is None
    del store
    assert all(store_ends.of(torch.empty(64, dtype=torch.uint8)) is None for _ in range(1000))


def test_a_forward_without_a_notice_hides_the_one_before():
    store = torch.empty(8)
    store_ends.note(store, 1)
    store_ends.note(store, None)
    assert store_ends.of(store) is None


def test_stores_that_are_gone_are_forgotten_and_others_are_not():
    kept = [torch.empty(8) for _ in range(10)]
    for i, store in enumerate(kept):
        store_ends.note(store, i)
    for _ in range(2 * store_ends._MOST):
        store_ends.note(torch.empty(8), -1)
    assert len(store_ends._ends) <= store_ends._MOST
    assert [store_ends.of(store) for store in kept] == list(range(10))
