"""Of language models: perplexity and training."""

from __future__ import annotations

from recorded import RECORDS


def language_model() -> list[float | str]:
    def of(column: str, method: str) -> float:
        return RECORDS.one("model-perplexity-h100", "perplexity", column, method=method)

    def trained(column: str, plan: str) -> float:
        return RECORDS.one("model-conversion-long-h100", "conversion-long", column, plan=plan)

    tuned, alike = "tuned:budget=64", "kind=softmax,schedule=fixed,rate=1e-2,steps=1000,seed=1"
    bounded = "schedule=learned,k_keep=64,median_keys=14.5,rate=1e-2,steps=1000,seed=1"
    return [
        *("the model's name", of("window", "softmax"), of("windows", "softmax")),
        *(of("perplexity", "softmax"), of("perplexity", "entmax:alpha=1.5")),
        *(of("perplexity", tuned), of("support_median", tuned)),
        *("the plan's steps", trained("perplexity", bounded), trained("support_median", bounded)),
        trained("perplexity", alike),
    ]
