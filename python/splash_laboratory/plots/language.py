"""What another attention does to a language model: perplexity against keys a query, and how many keys each head reads.

    held = json.loads(Path("perplexity.json").read_text())       # of splash_attention.language perplexity --out
    perplexity_against_keys(**measures_of(held)).savefig("perplexity.png")
    support_maps(supports_of(held, ["entmax:alpha=1.5", "tuned to 16 keys"])).savefig("supports.png")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from splash_laboratory.plots import style

SOFTMAX = "softmax"
TRAINED = "trained"
CHOSEN = {"kascade": "Kascade", "tile-top-k": "top keys of each layer", "pages": "pages by bounds"}


def perplexity_against_keys(
    names: Sequence[str], families: Sequence[str], perplexities: Sequence[float], supports: Sequence[np.ndarray], context: str = ""
) -> Figure:
    """A point a method, a curve a family in the order of keys, softmax as a line across.

    supports: of each method [layers, heads], mean keys of a query. The family "softmax" has one method, the model as it is. context:
    what was measured, a sentence. Raises ValueError for sequences of other lengths, or without softmax or another method.
    """
    counts = [len(names), len(families), len(perplexities), len(supports)]
    if len(set(counts)) != 1:
        raise ValueError("{} names, {} families, {} perplexities, {} supports; they must be as many".format(*counts))
    keys = np.array([float(np.mean(support)) for support in supports])
    held = {family: [at for at, own in enumerate(families) if own == family] for family in dict.fromkeys(families)}
    softmax = held.pop(SOFTMAX, [])
    if len(softmax) != 1 or not held:
        raise ValueError(f"the families are {', '.join(map(repr, families))}; one must be 'softmax', and another something else")
    base = perplexities[softmax[0]]
    with matplotlib.rc_context(style.SETTINGS):
        drawn, axes = style.canvas(1, 1, (9.5, 5))
        panel = axes[0, 0]
        read = f"softmax: {style.count(keys[softmax[0]], 'key')}"
        panel.axhline(base, color=style.INK, linewidth=1.2, linestyle=(0, (4, 3)), label=read)
        for number, (family, members) in enumerate(held.items()):
            members.sort(key=lambda at: keys[at])
            colour, marker = style.PALETTE[number % len(style.PALETTE)], style.MARKERS[number % len(style.MARKERS)]
            panel.plot(keys[members], np.array(perplexities)[members], color=colour, marker=marker, markersize=6, label=family)
            for at in members:
                place = (keys[at], perplexities[at])
                panel.annotate(names[at], place, xytext=(6, 5), textcoords="offset points", fontsize=8, color=colour)
        style.log2_axis(panel, "x")
        panel.set_yscale("log")
        panel.margins(x=0.16, y=0.12)
        low, high = panel.get_ylim()
        ticks = [value for power in range(-1, 6) for value in np.array((1, 1.5, 2, 3, 5, 7)) * 10.0**power if low <= value <= high]
        style.ticks_at(panel, "y", [base, *(value for value in ticks if abs(np.log(value / base)) > 0.08)])
        panel.yaxis.set_major_formatter(lambda value, _: style.number(value))
        panel.set_xlabel("keys of a query, mean over all heads")
        panel.set_ylabel("perplexity")
        drawn.legend(loc="outside right upper", frameon=False)
        best = min((at for members in held.values() for at in members), key=lambda at: perplexities[at])
        finding = (
            f"With {style.count(keys[best], 'key')} a query in the mean of {style.number(keys[softmax[0]])}, “{families[best]}, {names[best]}” changes "
            f"softmax's perplexity by {100 * (perplexities[best] / base - 1):+.1f} %"
        )
        style.headline(drawn, finding, context)
    return drawn


def support_maps(supports: Mapping[str, np.ndarray], context: str = "") -> Figure:
    """A panel a method, such as before and after tuning: layers down, heads across, the colour is the head's mean keys of a query.

    supports: of each method's name, [layers, heads]. Raises ValueError for no method, or other shapes than the first's.
    """
    maps = {name: np.asarray(values, float) for name, values in supports.items()}
    shapes = {values.shape for values in maps.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise ValueError(f"supports have the shapes {sorted(shapes)}; they must all be of one [layers, heads]")
    layers, heads = next(iter(shapes))
    most = max(2.0, *(float(values.max()) for values in maps.values()))
    with matplotlib.rc_context(style.SETTINGS):
        size = (1.6 + len(maps) * max(2.4, 0.32 * heads), max(2.6, 0.9 + 0.19 * layers))
        drawn, axes = style.canvas(1, len(maps), size, sharey=True)
        for panel, (name, values) in zip(axes[0], maps.items()):
            image = panel.imshow(values.clip(1), cmap=style.SEQUENTIAL, norm=LogNorm(1, most), aspect="auto", interpolation="nearest")
            title = "\n".join(style.balanced(name, 30))
            panel.set_title(f"{title}\nmedian {style.number(float(np.median(values)))}, largest {style.number(float(values.max()))}")
            panel.set_xlabel("head")
            panel.grid(False)
            panel.tick_params(length=0)
            style.ticks_at(panel, "x", list(range(heads)) if heads <= 16 else list(range(0, heads, 4)))
        style.ticks_at(axes[0, 0], "y", list(range(0, layers, 1 if layers <= 12 else 5)))
        axes[0, 0].set_ylabel("layer")
        bar = drawn.colorbar(image, ax=list(axes[0]), pad=0.02)
        bar.set_label("keys of a query, mean")
        bar.outline.set_visible(False)
        steps = 2.0 ** np.arange(0, np.floor(np.log2(most)) + 1, 1 if most < 64 else 2)
        style.ticks_at(bar.ax, "y", steps.tolist())
        name, values = list(maps.items())[-1]
        layer, head = np.unravel_index(int(values.argmax()), values.shape)
        finding = (
            f"“{name}”: {style.count(float(np.median(values)), 'key')} a query in the median head, "
            f"{style.number(float(values.max()))} in head {head} of layer {layer}"
        )
        style.headline(drawn, finding, context)
    return drawn


def measures_of(held: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The arguments of perplexity_against_keys from the JSON that `splash_attention.language perplexity --out` wrote."""
    methods = held["methods"]
    return {
        "names": [one["title"] for one in methods],
        "families": [family_and_name(one["method"])[0] for one in methods],
        "perplexities": [one["perplexity"] for one in methods],
        "supports": [np.array(one["support_of_heads"]["mean"]) for one in methods],
    }


def supports_of(held: Mapping[str, Any], titles: Sequence[str]) -> dict[str, np.ndarray]:
    """The argument of support_maps from the same JSON. Raises ValueError for a title that it does not hold."""
    found = {one["title"]: np.array(one["support_of_heads"]["mean"]) for one in held["methods"]}
    unknown = [title for title in titles if title not in found]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} was not measured; measured were {', '.join(found)}")
    return {title: found[title] for title in titles}


def family_and_name(method: str | Mapping[str, Any]) -> tuple[str, str]:
    """Which curve a method belongs to, and what tells it from the others there. method: KIND:NAME=VALUE,…, tuned:… or a plan of training,
    as experiments have them; or its JSON. What was trained is a family of its own."""
    kind, settings = _of_text(method) if isinstance(method, str) else _of_json(method)
    if kind == TRAINED:
        return kind, ", ".join(f"{name} {value}" for name, value in settings.items())
    if kind == "tuned":
        return "tuned for each head", f"{settings['budget']} keys" if "budget" in settings else ""
    if kind == SOFTMAX and settings:
        return "softmax of another scale", ", ".join(f"{name} {value}" for name, value in settings.items())
    if kind in CHOSEN:
        return CHOSEN[kind], f"{100 * float(settings['budget']):g} %" if "budget" in settings else "the plan's budget"
    of_family = [kind, *(f"α {settings.pop(name)}" for name in ["alpha"] if name in settings)]
    if kind == "entmax" and "k_keep" in settings:
        of_family += [f"{name} {settings.pop(name)}" for name in ["factor"] if name in settings]
    names = (value if name == "k_keep" else f"{name} {value}" for name, value in settings.items())
    return ", ".join(of_family) + (", K_KEEP" if kind == "entmax" and "k_keep" in settings else ""), ", ".join(names)


def _of_text(method: str) -> tuple[str, dict[str, str]]:
    kind, _, text = method.partition(":")
    if "=" in kind:
        kind, text = TRAINED, method
    return kind, dict(part.partition("=")[::2] for part in text.split(",") if part)


def _of_json(method: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    how, default = method["made_by"].get("how"), method["default"]
    if how == "trained":
        return TRAINED, {}
    if method["layers"] and any(layer.get("kind") != "softmax" for layer in method["layers"].values()):
        return ("tuned" if how else "one setting a layer"), {}
    return default["kind"], {
        name: value if isinstance(value, str) else f"{value:g}"
        for name, value in default.items()
        if name != "kind" and (name, value) != ("factor", 1)
    }
