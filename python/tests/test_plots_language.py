"""The pictures of language models: from plain arrays, and from the JSON of `splash_attention.language perplexity --out`."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from splash_laboratory.plots.language import family_and_name, measures_of, perplexity_against_keys, support_maps, supports_of

random = np.random.default_rng(3)


def method(kind: str, perplexity: float, keys: float, made_by=None, layers=None, **settings) -> dict:
    default = {"kind": kind, "factor": 1.0, **settings}
    return {
        "title": f"{kind} {keys:g}",
        "method": {"default": default, "layers": layers or {}, "made_by": made_by or {}},
        "perplexity": perplexity,
        "support_of_heads": {"mean": (keys * random.lognormal(0, 0.5, (30, 9))).tolist()},
    }


HELD = {
    "methods": [
        method("softmax", 12.0, 256.5),
        method("entmax", 77.0, 5, alpha=1.5),
        method("entmax", 20.0, 10, alpha=1.5, factor=0.5),
        method("entmax", 15.0, 30, {"how": "tuned without training"}, {"0": {}}, alpha=1.5),
        method("entmax", 13.0, 90, {"how": "tuned without training"}, {"0": {}}, alpha=1.5),
        method("entmax", 12.1, 20, {"how": "trained"}, {"0": {}}, alpha=1.5),
        method("top-k-softmax", 12.5, 32, k_keep=32),
    ]
}


def drawn_within(figure) -> None:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure.get_tightbbox(canvas.get_renderer())
    width, height = figure.get_size_inches()
    assert box.x0 > -0.02 and box.y0 > -0.02 and box.x1 < width + 0.02 and box.y1 < height + 0.02


def test_a_curve_a_family_in_the_order_of_keys() -> None:
    measures = measures_of(HELD)
    figure = perplexity_against_keys(**measures, context="Of the tests.")
    drawn_within(figure)
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert list(lines)[1:] == ["entmax, α 1.5", "tuned for each head", "trained", "top-k-softmax"]
    assert list(lines["tuned for each head"].get_ydata()) == [15.0, 13.0]
    assert lines["tuned for each head"].get_xdata() == pytest.approx([np.mean(one) for one in measures["supports"][3:5]])
    assert np.unique(next(iter(lines.values())).get_ydata()) == [12.0]
    assert " ".join(figure.texts[0].get_text().split()).endswith("“trained, entmax 20” changes softmax's perplexity by +0.8 %")


def test_a_map_a_method_on_one_scale() -> None:
    maps = supports_of(HELD, ["entmax 5", "entmax 30"])
    figure = support_maps(maps)
    drawn_within(figure)
    images = [axes.get_images()[0] for axes in figure.axes if axes.get_images()]
    for image, values in zip(images, maps.values(), strict=True):
        assert np.asarray(image.get_array()) == pytest.approx(np.maximum(values, 1)) and image.norm.vmax == maps["entmax 30"].max()
    drawn_within(support_maps({"one": np.full((2, 4), 3.0)}))


def test_what_cannot_be_drawn_is_told() -> None:
    measures = measures_of(HELD)
    with pytest.raises(ValueError, match="one must be 'softmax', and another something else"):
        perplexity_against_keys(*(values[1:] for values in measures.values()))
    with pytest.raises(ValueError, match="6 names, 7 families"):
        perplexity_against_keys(**{**measures, "names": measures["names"][1:]})
    with pytest.raises(ValueError, match="nothing was not measured; measured were softmax 256.5, entmax 5"):
        supports_of(HELD, ["nothing"])
    with pytest.raises(ValueError, match="must all be of one"):
        support_maps({"a": np.ones((2, 3)), "b": np.ones((3, 3))})


def test_a_method_is_of_one_family_as_text_and_as_json() -> None:
    for text, settings in (
        ("softmax", {}), ("softmax:factor=0.5", {"factor": 0.5}), ("entmax:alpha=1.5,factor=0.5", {"alpha": 1.5, "factor": 0.5}),
        ("entmax:alpha=1.5,factor=0.5,k_keep=8", {"alpha": 1.5, "factor": 0.5, "k_keep": 8}), ("top-k-softmax:k_keep=8", {"k_keep": 8}),
        ("kascade:plan=p.toml,budget=0.05", {"plan": "p.toml", "budget": 0.05}), ("pages:budget=0.1", {"budget": 0.1, "page": 16}),
    ):  # fmt: skip
        assert family_and_name(text) == family_and_name(method(text.partition(":")[0], 1, 1, **settings)["method"])
