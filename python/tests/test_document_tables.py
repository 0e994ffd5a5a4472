"""The modules that write tables of recorded reports into the documents: what they share."""

import importlib
import re
from pathlib import Path

import pytest

from splash_laboratory.documents import peer_tables
from splash_laboratory.documents.ladder_tables import LadderError
from splash_laboratory.reports import open_report

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted((ROOT / "docs" / "questions").glob("*.md"))


@pytest.mark.parametrize("name", ["ladder_tables", "milestone_tables", "peer_tables", "claim_tables", "model_tables", "retrieval_tables"])
def test_usage(name, capsys):
    assert importlib.import_module(f"splash_laboratory.documents.{name}").main([]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, recorded, least",
    [
        ("ladder_tables", "ladders-h100.h5", 15),
        ("milestone_tables", "ladders-h100.h5", 2),
        ("peer_tables", "flagship-h200.h5", 2),
        ("peer_tables", "papers-h200.h5", 4),
        ("peer_tables", "flagship-python-h200.h5", 1),
        ("peer_tables", "entmax-model-8192-h200.h5", 2),
        ("peer_tables", "entmax-model-2048-h200.h5", 2),
        ("peer_tables", "decode-h200.h5", 2),
        ("claim_tables", "papers-h200.h5", 1),
        ("model_tables", "model-perplexity-h100.h5", 2),
        ("model_tables", "model-kascade-h200.h5", 1),
        ("model_tables", "model-conversion-h100.h5", 2),
        ("model_tables", "model-conversion-long-h100.h5", 2),
        ("model_tables", "model-kascade-8-bits-h100.h5", 1),
        ("model_tables", "model-conversion-held-h200.h5", 1),
        ("model_tables", "model-straight-through-h200.h5", 1),
    ],
)
def test_the_documents_hold_what_the_recorded_report_says(name, recorded, least):
    module, report = importlib.import_module(f"splash_laboratory.documents.{name}"), open_report(ROOT / "data" / "reports" / recorded)
    tables = 0
    for document in DOCUMENTS:
        text = document.read_text()
        tables += len(re.findall(module.MARKER, text))
        assert module.fill(text, report) == text, f"{document.name}: python -m splash_laboratory.documents.{name} writes it anew"
    assert tables >= least


def test_each_table_of_peers_is_a_recorded_reports():
    """Its marker could choose cases that no report has: then nobody would write it anew."""
    reports = [open_report(path) for path in sorted((ROOT / "data" / "reports").glob("*.h5"))]
    for document in DOCUMENTS:
        for match in peer_tables.MARKER.finditer(document.read_text()):
            empty = match[1] + match[5]
            held = [report for report in reports if match["experiment"] in report.results.get("experiment", [])]
            assert any(_fills(empty, report) for report in held), f"{document.name}: {match[1]}"


def _fills(table, report):
    try:
        return peer_tables.fill(table, report) != table
    except LadderError:
        return False


@pytest.mark.parametrize(
    "marker, recorded, page",
    [
        ("chat", "retrieval-chat-h200.json", "what-does-entmax-cost-my-model.md"),
        ("raw", "retrieval-raw-h200.json", "what-does-entmax-cost-my-model.md"),
        ("raw stretched", "retrieval-stretched-h200.json", "what-does-entmax-cost-my-model.md"),
        ("chat kascade", "retrieval-kascade-h100.json", "what-does-reusing-another-layers-keys-cost.md"),
    ],
)
def test_the_documents_hold_what_was_retrieved(marker, recorded, page, tmp_path):
    from splash_laboratory.documents import retrieval_tables

    report = retrieval_tables.open_retrieval(ROOT / "data" / "reports" / recorded)
    text = (ROOT / "docs" / "questions" / page).read_text()
    assert f"<!-- retrieval {marker} -->" in text and retrieval_tables.fill(text, report) == text
    report["results"][0]["exact"]["share"] = 0.123
    assert "| 12 % [" in retrieval_tables.fill(text, report)
    other = tmp_path / "other.json"
    other.write_text('{"schema": "splash retrieval 0"}')
    with pytest.raises(ValueError, match="splash retrieval 0"):
        retrieval_tables.open_retrieval(other)


def test_the_documents_hold_the_steps_of_a_model(tmp_path):
    from splash_laboratory.documents import decode_step_tables

    report = decode_step_tables.open_steps(ROOT / "data" / "reports" / "decode-step-h200.json")
    text = (ROOT / "docs" / "questions" / "how-do-i-decode.md").read_text()
    assert "| 64 |" in text and decode_step_tables.fill(text, report) == text
    report["measured"][1]["steps"]["splash"]["median"] = 1.25
    assert "| 64 | 1.25 |" in decode_step_tables.fill(text, report)
    for wrong in ("[]", "{", '{"measured": [{"batch": 1}]}'):
        (tmp_path / "other.json").write_text(wrong)
        with pytest.raises(ValueError, match="other.json holds no steps of decoding"):
            decode_step_tables.open_steps(tmp_path / "other.json")


def test_the_documents_hold_the_training_steps_of_a_model(tmp_path):
    from splash_laboratory.documents import training_step_tables

    report = training_step_tables.open_steps(ROOT / "data" / "reports" / "training-step-h200.json")
    text = (ROOT / "docs" / "questions" / "what-does-entmax-cost-my-model.md").read_text()
    assert "| 2 × 8192 | `schedule=fixed` |" in text and training_step_tables.fill(text, report) == text
    softmax, fixed = report["measured"][:2]
    fixed["step"]["median"] = softmax["step"]["median"] / 3
    assert "| 3.00 |" in training_step_tables.fill(text, report)
    for wrong in ("[]", "{", '{"measured": [{"batch": 1}], "arms": {}}'):
        (tmp_path / "other.json").write_text(wrong)
        with pytest.raises(ValueError, match="other.json holds no training steps"):
            training_step_tables.open_steps(tmp_path / "other.json")


def test_a_training_is_compared_with_softmax_of_the_same_rank_rate_and_seed():
    from splash_attention.language.plan import Plan
    from splash_laboratory.documents.model_tables import alike

    softmax, bounded = Plan.parse("kind=softmax,schedule=fixed,rate=1e-2"), Plan.parse("k_keep=64,median_keys=14.5,rate=1e-2")
    assert alike(softmax) == alike(bounded)
    for other in ("rank=0,rate=1e-2", "rate=3e-3", "rate=1e-2,seed=2", "rate=1e-2,steps=1000", "rate=1e-2,length=4096"):
        assert alike(Plan.parse(other)) != alike(softmax)
