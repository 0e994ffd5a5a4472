"""The plots: each is drawn from a report that holds its data, and skipped with a sentence where it does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.font_manager
import numpy as np
import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg

from made_up import distributed_cases
from splash_laboratory import open_report
from splash_laboratory.plots import FIGURES, NotInReport
from splash_laboratory.plots.cli import main
from splash_laboratory.plots.data import is_captured, real_input
from splash_laboratory.plots.language import family_and_name
from splash_laboratory.plots.style import balanced, number, power_of_ten, seconds

PYTHON = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def opened(sample_report: Path):
    return open_report(sample_report)


@pytest.fixture(scope="session")
def ladders():
    """The recorded kernels of a GPU."""
    return open_report(PYTHON.parent / "data" / "reports" / "ladders-h200.h5")


@pytest.fixture(scope="session")
def language_model():
    """Its recorded perplexities."""
    return open_report(PYTHON.parent / "data" / "reports" / "model-perplexity-h100.h5")


@pytest.fixture(scope="session")
def kascade_plan(opened):
    """Of seven layers, two of them anchors, as splash kascade plan writes it."""
    import dataclasses

    layers = np.arange(7)
    anchor = np.where(layers < 3, 0, 3)
    pairs = np.triu(0.6 + 0.05 * layers[:, None] - 0.01 * layers)
    columns = {
        "layer": layers, "anchor": anchor, "similarity": pairs[anchor, layers], "own_similarity": np.diag(pairs),
        "budget": np.full(7, 0.1), "least_keys": np.full(7, 128), "tile": np.full(7, 32),
    }  # fmt: skip
    results = xr.Dataset({name: ("case", values.astype(float), {"long_name": name, "units": "1"}) for name, values in columns.items()})
    held = xr.Dataset({"layer_similarity": (("choosing_layer", "using_layer"), pairs)})
    return dataclasses.replace(opened, results=results, attachments={"layer-0": held})


@pytest.fixture(scope="session")
def several_gpus(opened):
    """Made up: none is recorded yet."""
    import dataclasses

    return dataclasses.replace(opened, results=distributed_cases())


@pytest.fixture(scope="session", params=FIGURES)
def named(request: pytest.FixtureRequest, opened, ladders, language_model, kascade_plan, several_gpus):
    """Every plot of the sample report, of the recorded kernels or the recorded model, drawn once: its name, the figure, the canvas."""
    of_others = {"roofline": ladders, "perplexity-against-keys": language_model, "keys-of-a-model-by-layer-and-head": language_model}
    of_others["time-against-length-and-support"] = open_report(PYTHON.parent / "data" / "reports" / "flagship-h200.h5")
    of_others |= {"kascade-plan": kascade_plan, "strong-scaling": several_gpus, "weak-scaling": several_gpus}
    drawn = FIGURES[request.param](of_others.get(request.param, opened))
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    return request.param, drawn, canvas


def test_every_axes_says_what_it_shows(named) -> None:
    name, drawn, _ = named
    for axes in drawn.axes:
        titles = [axes.get_title(loc) for loc in ("left", "center")]
        says = axes.get_xlabel() or axes.get_ylabel() or any(titles) or not axes.axison
        assert says, f"{name}: axes that say nothing"


def test_every_headline_states_a_finding(named) -> None:
    name, drawn, _ = named
    texts = sorted(drawn.texts, key=lambda text: -text.get_fontsize())
    headline = texts[0].get_text()
    assert re.search(r"\d", headline), f"{name}: no number in '{headline}'"
    assert "nan" not in headline.lower().split() and "None" not in headline


def test_nothing_runs_off_the_page(named) -> None:
    """Every text lies within the figure."""
    name, drawn, canvas = named
    box = drawn.get_tightbbox(canvas.get_renderer())
    width, height = drawn.get_size_inches()
    assert box.x0 > -0.02 and box.y0 > -0.02, f"{name}: {box}"
    assert box.x1 < width + 0.02 and box.y1 < height + 0.02, f"{name}: {box} in {width} × {height}"


def test_every_letter_is_in_the_font(named) -> None:
    name, drawn, _ = named
    font = matplotlib.font_manager.get_font(matplotlib.font_manager.findfont("DejaVu Sans"))
    letters = set(font.get_charmap())
    for text in drawn.findobj(lambda artist: hasattr(artist, "get_text")):
        unknown = {letter for letter in text.get_text() if ord(letter) not in letters and letter != "\n"}
        assert not unknown, f"{name}: {unknown}"


def test_an_empty_report_skips_every_plot(opened) -> None:
    import dataclasses

    import xarray as xr

    empty = dataclasses.replace(opened, results=xr.Dataset(coords={"case": []}), claims=xr.Dataset(), attachments={})
    for function in FIGURES.values():
        with pytest.raises(NotInReport):
            function(empty)


def on_the_cpu(ladders, rows: slice = slice(0, 3), beside: bool = False):
    """The report with these of its cases as if they were a CPU's, and its ceilings; others are left out but where `beside`."""
    import dataclasses

    import xarray as xr

    counted = np.flatnonzero(np.isfinite(ladders.results["executed_flops"].values))
    results = ladders.results.isel(case=counted[:9] if beside else counted[rows]).copy(deep=True)
    results["math_unit"].values[rows] = "cpu float32"
    row = next(iter(ladders.ceilings.sizes))
    measured = (("cpu fma", "float32", 2e11), ("cpu l2 read", "", 1e11), ("cpu dram read", "", 1e10), ("cpu dram copy", "", 2e10))
    ceilings = ladders.ceilings.isel({row: [0] * len(measured)}).copy(deep=True)
    for at, (name, dtype, rate) in enumerate(measured):
        ceilings["name"].values[at], ceilings["dtype"].values[at], ceilings["measured"].values[at] = name, dtype, rate
    ceilings = xr.concat([ladders.ceilings, ceilings], row) if beside else ceilings
    return dataclasses.replace(ladders, results=results, ceilings=ceilings)


def test_no_kernel_stands_above_its_roof(ladders) -> None:
    drawn = FIGURES["roofline"](ladders)
    assert "wmma" in [text.get_text() for text in drawn.legends[0].get_texts()]
    for axes in drawn.axes:
        slope, *flats = [line for line in axes.lines if line.get_linestyle() == "-"]
        (_, ridge), (_, top) = slope.get_data()
        dots = [line for line in axes.lines if line.get_linestyle() == "None"]
        assert dots and len(flats) >= 3
        above = sum((y > np.minimum(top, x * top / ridge)).sum() for x, y in (line.get_data() for line in dots))
        # Document 003's kernel asks L2 for what L1 holds already.
        assert above == (1 if axes.get_title("left") == "L2" else 0)


def test_exponentials_have_a_panel_where_their_ceiling_was_measured(ladders) -> None:
    import dataclasses

    import xarray as xr

    assert len(FIGURES["roofline"](ladders).axes) == 2  # recorded before it was
    rate = 16 * 132 * 1.98e9
    one = ladders.ceilings.isel({next(iter(ladders.ceilings.sizes)): [0]}).copy(deep=True)
    for name, value in (("name", "exponentials"), ("dtype", ""), ("measured", rate)):
        one[name].values[0] = value
    more = xr.concat([ladders.ceilings, one], next(iter(ladders.ceilings.sizes)))
    drawn = FIGURES["roofline"](dataclasses.replace(ladders, ceilings=more))
    *_, panel = drawn.axes
    assert panel.get_title("left") == "exponentials" and "an exponential" in panel.get_xlabel()
    slope = next(line for line in panel.lines if line.get_linestyle() == "-")
    (left, ridge), (low, top) = slope.get_data()
    assert low / left == pytest.approx(rate) and top / ridge == pytest.approx(rate)
    dots = [line.get_data() for line in panel.lines if line.get_linestyle() == "None"]
    names = ladders.results["implementation"].values[ladders.results["exponentials"].values > 0]
    assert 0 < sum(x.size for x, _ in dots) <= names.size
    for x, y in dots:
        assert (y <= np.minimum(top, x * rate)).all() and np.isfinite(x).all()


def test_implementations_on_the_cpu_have_panels_of_their_own(ladders) -> None:
    drawn = FIGURES["roofline"](on_the_cpu(ladders))
    assert [axes.get_title("left") for axes in drawn.axes] == ["DRAM of the CPU", "L2 of the CPU"]
    for axes, bandwidth in zip(drawn.axes, (2e10, 1e11), strict=True):
        slope, *flats = [line for line in axes.lines if line.get_linestyle() == "-"]
        (left, ridge), (low, top) = slope.get_data()
        assert low / left == pytest.approx(bandwidth) and top == pytest.approx(2e11) and len(flats) == 1
        assert low < top, "the slope rises to the rate, wherever the dots are"
        dots = [line.get_data() for line in axes.lines if line.get_linestyle() == "None"]
        assert sum(x.size for x, _ in dots) == 3
    both = on_the_cpu(ladders, rows=slice(0, 3), beside=True)
    assert len(FIGURES["roofline"](both).axes) == 4


def test_ceilings_that_were_not_measured_are_the_data_sheets(ladders) -> None:
    import dataclasses

    ceilings = ladders.ceilings.copy(deep=True)
    ceilings["measured"].values[:] = np.nan
    drawn = FIGURES["roofline"](dataclasses.replace(ladders, ceilings=ceilings))
    assert [axes.get_title("left") for axes in drawn.axes] == ["DRAM"], "no data sheet tells the bandwidth of L2"
    said = " ".join(text.get_text() for text in drawn.texts)
    assert "figures of the data sheet, not measured" in " ".join(said.split())
    ceilings["datasheet"].values[:] = np.nan
    with pytest.raises(NotInReport, match="no ceiling of a level"):
        FIGURES["roofline"](dataclasses.replace(ladders, ceilings=ceilings))


def test_a_report_without_ceilings_has_no_roofline(ladders) -> None:
    import dataclasses

    import xarray as xr

    with pytest.raises(NotInReport, match="no measured ceiling"):
        FIGURES["roofline"](dataclasses.replace(ladders, ceilings=xr.Dataset()))


def test_inputs_of_both_models_are_real_and_are_not_mixed() -> None:
    names = ["smollm2", "gaussian", "minilm", "smollm2"]
    data = xr.Dataset({"input": ("case", names), "text": ("case", ["", "", "gpl-3", ""]), "value": ("case", [1.0, 2.0, 3.0, 4.0])})
    assert is_captured(data).tolist() == [True, False, True, True]
    assert real_input(data)["value"].values.tolist() == [3.0]
    decoder = data.isel(case=[0, 1, 3])
    assert real_input(decoder)["value"].values.tolist() == [1.0, 4.0]
    assert real_input(data.isel(case=[1]))["value"].values.tolist() == [2.0]


def test_methods_of_a_model_are_curves_by_family() -> None:
    assert family_and_name("softmax") == ("softmax", "")
    assert family_and_name("entmax:alpha=1.5,factor=0.5") == ("entmax, α 1.5", "factor 0.5")
    assert family_and_name("entmax:alpha=1.5,factor=0.5,k_keep=8") == ("entmax, α 1.5, factor 0.5, K_KEEP", "8")
    assert family_and_name("top-k-softmax:k_keep=8") == ("top-k-softmax", "8")
    assert family_and_name("softmax:factor=0.5") == ("softmax of another scale", "factor 0.5")
    assert family_and_name("kascade:plan=p.toml,budget=0.05") == ("Kascade", "5 %") and family_and_name("kascade:plan=p.toml")[1]
    assert family_and_name("tuned:budget=16") == ("tuned for each head", "16 keys")
    assert family_and_name("schedule=learned,steps=300") == ("trained", "schedule learned, steps 300")


def test_a_trained_model_has_a_map_of_its_heads() -> None:
    drawn = FIGURES["keys-of-a-model-by-layer-and-head"](open_report(PYTHON.parent / "data" / "reports" / "model-conversion-h100.h5"))
    (title, *_) = [axes.get_title(loc) for axes in drawn.axes for loc in ("left", "center") if axes.get_title(loc)]
    assert " ".join(title.split()).startswith("trained, schedule learned") and "median 14" in title


def test_the_power_of_zero_is_blank_in_the_map(opened) -> None:
    """Zero is masked, so that the paper shows; the smallest probability is not."""
    drawn = FIGURES["attention-of-one-head"](opened)
    for axes in drawn.axes[:3]:
        shown = axes.images[0].get_array()
        assert (shown[~np.ma.getmaskarray(shown)] > 0).all()
    assert np.ma.getmaskarray(drawn.axes[1].images[0].get_array()).any()


def test_the_command_line(sample_report: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "plots"
    command = [
        sys.executable,
        "-m",
        "splash_laboratory.plots",
        str(sample_report),
        "--out",
        str(out),
        "--only",
        "claims",
    ]
    environment = {**os.environ, "PYTHONPATH": str(PYTHON)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    paths = [Path(line) for line in done.stdout.splitlines()]
    assert paths == [out / "claims.png", out / "claims.svg"]
    assert sorted(out.iterdir()) == sorted(paths), "a temporary file was left"
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    drawing = ElementTree.parse(paths[1])
    assert not drawing.findall(".//{http://www.w3.org/2000/svg}text"), "letters are outlines: no font is needed"


def test_the_same_report_gives_the_same_files(sample_report: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert main([str(sample_report), "--out", str(tmp_path / name), "--only", "workloads"]) == 0
    for kind in ("png", "svg"):
        assert (tmp_path / f"a/workloads.{kind}").read_bytes() == (tmp_path / f"b/workloads.{kind}").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.h5"], "no such file"),
        ([], "a report is needed"),
        (["nowhere.h5", "--only", "claim"], "did you mean 'claims'"),
    ],
)
def test_bad_words(arguments: list[str], words: str, capsys: pytest.CaptureFixture) -> None:
    assert main(arguments) == 2
    heard = capsys.readouterr()
    assert words in heard.err and heard.out == "" and heard.err.count("\n") == 1


def test_a_place_that_cannot_be_written(sample_report: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert main([str(sample_report), "--out", str(tmp_path / "file" / "plots"), "--only", "claims"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    os.mkfifo(tmp_path / "claims.png")
    assert main([str(sample_report), "--out", str(tmp_path), "--only", "claims"]) == 2
    assert "cannot be written" in capsys.readouterr().err and (tmp_path / "claims.png").is_fifo()


def test_plots_of_a_real_report(real_report: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([str(real_report), "--out", str(tmp_path)]) == 0
    heard = capsys.readouterr()
    assert "accuracy-against-k-keep.png" in heard.out
    assert "skipped solver-time: " in heard.err


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (0.0123, "0.012"), (31.25, "31.2"), (2048, "2048"), (8.3e-5, "8.3·10⁻⁵"), (float("nan"), "—")],
)
def test_numbers_in_prose(value: float, words: str) -> None:
    assert number(value) == words


def test_units_and_lines() -> None:
    assert [seconds(value) for value in (2.5, 0.154, 3e-6, 1000)] == ["2.5 s", "154 ms", "3 µs", "1000 s"]
    assert [power_of_ten(value) for value in (1e-7, 0.01, 1, 3)] == ["10⁻⁷", "0.01", "1", ""]
    lines = balanced("one two three four five six seven eight nine ten", 40)
    assert len(lines) == 2 and abs(len(lines[0]) - len(lines[1])) < 8


def test_a_plan_of_kascade_frames_what_each_anchor_serves(kascade_plan) -> None:
    from matplotlib.patches import Rectangle

    drawn = FIGURES["kascade-plan"](kascade_plan)
    frames = [patch.get_bbox().bounds for patch in drawn.axes[0].patches if isinstance(patch, Rectangle)]
    assert frames == [(-0.5, -0.5, 3, 1), (2.5, 2.5, 4, 1)]
    shown = np.asarray(drawn.axes[0].get_images()[0].get_array())
    assert np.isnan(shown[4, 2]) and shown[2, 4] == pytest.approx(66)
    assert "2 anchors of 7 layers" in " ".join(drawn.texts[0].get_text().split())


def test_peers_stand_at_the_support_of_the_same_problem() -> None:
    reports = PYTHON.parent / "data" / "reports"
    drawn = FIGURES["time-against-length-and-support"](open_report(reports / "flagship-h200.h5"))
    length, support = drawn.axes[0], drawn.axes[1]
    curves = {line.get_label(): (line.get_xdata(), line.get_ydata()) for line in support.get_lines()}
    ours, dense = curves["entmax/0-one-pass"], curves["torch-cudnn"]
    assert list(ours[0]) == list(dense[0]) and len(ours[0]) > 1, "cuDNN has no support of its own"
    assert ours[1][0] < dense[1][0] and ours[1][-1] > dense[1][-1]
    assert {line.get_label() for line in length.get_lines()} == set(curves)
    assert len(FIGURES["time-against-length-and-support"](open_report(reports / "papers-h200.h5")).axes) == 1, "one support a length"
    with pytest.raises(NotInReport, match="support_mean"):
        FIGURES["time-against-length-and-support"](open_report(reports / "ladders-h200.h5"))
