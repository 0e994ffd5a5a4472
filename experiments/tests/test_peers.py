"""The peers need PyTorch, and some a GPU; without them it is only seen that they are Python."""

import pathlib

import pytest

PEERS = sorted((pathlib.Path(__file__).parent.parent / "peers").glob("*.py"))


@pytest.mark.parametrize("path", PEERS, ids=lambda path: path.name)
def test_peers_compile(path):
    compile(path.read_text(), str(path), "exec")


def test_there_are_peers():
    assert len(PEERS) >= 2
