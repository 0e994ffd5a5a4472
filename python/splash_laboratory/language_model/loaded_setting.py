"""What the laboratory's experiments measure of a language model (experiments/kinds/support/language_model.h): methods in softmax's
place, and models that were trained to do without it. A setting is loaded once; softmax's measure and tuning's curves are kept for its cases."""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from splash_attention.language.cache import cache_folder
from splash_attention.language.conversion import load_converted
from splash_attention.language.measure import Measured, perplexity
from splash_attention.language.made_methods import TUNED
from splash_attention.language.making import Maker
from splash_attention.language.methods import Method
from splash_attention.language.model_file import sha256_of
from splash_attention.language.models import load_model
from splash_attention.language.plan import Plan
from splash_attention.language.texts import texts_of
from splash_laboratory.language_model.setting import Setting, place_of


class LoadedSetting:
    """One setting, loaded. Raises as load_model, texts_of and Texts.windows, and Unavailable where there is no such device."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.dtype, self.device = place_of(setting)
        self.model, tokenizer, self.description = load_model(setting.model, self.dtype, self.device)
        self.texts = texts_of(tokenizer, setting.sources)
        self.windows = self.texts.windows(setting.part, setting.window, setting.windows)
        self.maker = Maker(self.model, self.description, self.texts, self.device, setting.window)

    @functools.cached_property
    def softmax(self) -> Measured:
        return self._measured(self.model, Method())

    def measure(self, method: str) -> dict[str, Any]:
        """What a report holds of a METHOD of the command line, tuned:…, kascade:anchors=…, or a file of `convert`."""
        if method.endswith(".safetensors"):
            return self._converted(Path(method))
        found = self.maker.make(method)
        return self._told(self.softmax if found.as_dict() == Method().as_dict() else self._measured(self.model, found))

    def convert(self, plan: Plan, seconds: float) -> dict[str, Any]:
        """Trains on the training part, or goes on with it, in the cache, and measures the result.

        Raises TimeoutError where it is not done after `seconds`: the same call goes on.
        """
        from splash_attention.language import convert

        folder = self.folder_of(plan)
        result = folder / ("adapter.safetensors" if plan.rank else "model.safetensors")
        if not result.is_file():
            model = load_model(self.setting.model, self.dtype if plan.rank else "float32", self.device).model
            tokens = torch.from_numpy(self.texts.tokens["training"].astype(np.int64))
            convert(model, tokens, plan, folder, seconds=seconds, start=self._start_of(plan, folder))
            del model
        steps = list(csv.DictReader((folder / "log.csv").open()))
        if not result.is_file():
            raise TimeoutError(f"training stopped after {seconds:g} s, at step {len(steps)} of {plan.steps}; --resume goes on with it")
        told = self._converted(result)
        told["vectors"]["loss"] = [float(step["loss"]) for step in steps]
        told["numbers"]["step_seconds_median"] = float(np.median([float(step["seconds"]) for step in steps]))
        told["texts"]["trained_hash"] = sha256_of(result)
        return told

    def folder_of(self, plan: Plan) -> Path:
        """Where its training is kept: by plan, model, text and dtype, so that it goes on after any stop."""
        whole = f"{plan} {self.description.sha256} {json.dumps(self.texts.record, sort_keys=True)} {self.dtype} {self.device}"
        if plan.start.startswith(TUNED):
            whole += f" {self.setting.window}"
        elif plan.start:
            whole += f" {sha256_of(Path(plan.start))}"
        return cache_folder() / "conversions" / hashlib.sha256(whole.encode()).hexdigest()[:32]

    def _start_of(self, plan: Plan, folder: Path) -> Method | None:
        """What a start of tuned:… is. It is kept, so that each part of a training begins with the same."""
        if not plan.start.startswith(TUNED):
            return None
        kept = folder / "start.json"
        if not kept.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            self.maker.make(plan.start).write(kept)
        return Method.read(kept)

    def _converted(self, path: Path) -> dict[str, Any]:
        model = load_model(self.setting.model, self.dtype, self.device).model
        method = replace(load_converted(model, path).method(), name=path.parent.name)
        return self._told(self._measured(model, method))

    def _measured(self, model: Any, method: Method) -> Measured:
        return perplexity(model, self.windows, method, looked_at=self.setting.looked_at)

    def _told(self, measured: Measured) -> dict[str, Any]:
        """Columns' values by name; what is not known is absent."""
        mean, low, high = measured.difference(self.softmax)
        support = measured.support()
        numbers = {
            "perplexity": measured.perplexity,
            "nll_mean": float(np.mean(measured.nll)),
            "nll_difference": mean,
            "nll_difference_low": low,
            "nll_difference_high": high,
            "perplexity_ratio": math.exp(mean),
            "perplexity_ratio_low": math.exp(low),
            "perplexity_ratio_high": math.exp(high),
            "support_mean": float(measured.support_mean.mean()),
            "support_median": support["median"],
            "support_p95": support["p95"],
            "support_largest": support["largest"],
            "layer_nmse_median": float(np.median(measured.layer_nmse)),
            "window_seconds_median": measured.seconds_a_window,
        }
        arrays = {"support_of_heads": measured.support_mean, "support_p95_of_heads": measured.support_p95, "nmse_of_heads": measured.nmse}
        layers, heads = measured.support_mean.shape
        chosen = [measured.method.of(layer) for layer in range(layers)]
        if all(one.kind == "entmax" for one in chosen):
            for name in ("alpha", "factor"):
                arrays[f"{name}_of_heads"] = np.stack([np.broadcast_to(getattr(one, name), heads) for one in chosen])
        return {
            "numbers": {name: value for name, value in numbers.items() if math.isfinite(value)},
            "vectors": {"nll": measured.nll, "nll_softmax": self.softmax.nll, "layer_nmse": measured.layer_nmse.tolist()},
            "arrays": {name: {"extents": list(values.shape), "numbers": values.ravel().tolist()} for name, values in arrays.items()},
            "texts": self._facts(),
        }

    def _facts(self) -> dict[str, str]:
        import transformers

        of, record = self.description, self.texts.record
        named = [" ".join(str(one[key]) for key in ("source", "version", "licence") if one.get(key)) for one in record.get("sources", [])]
        return {
            "model_name": f"{of.name} ({of.licence}); {of.architecture}",
            "model_hash": of.sha256,
            "quantisation": of.quantisation if of.quantisation.startswith("unquantised") else f"{of.quantisation}, dequantised",
            "text_sources": "; ".join(named) or "not said",
            "text_hash": str(record.get("sha256", "not said")),
            "device_name": torch.cuda.get_device_name() if self.device == "cuda" else "CPU",
            "computed_in": self.dtype,
            "version": f"torch {torch.__version__}, transformers {transformers.__version__}",
        }
