"""What another attention costs a language model: splash_laboratory.language_model for the kinds model-perplexity and model-conversion.

Reads one JSON object a line: ask (check, to_fetch, fetch, fingerprint, perplexity or conversion), setting (the fields of
setting.Setting), and method, plan, seconds. Answers one a line: {"answer": …}, {"refused": why what was asked for cannot be}, or
{"unavailable": what this machine lacks}. The last setting stays loaded.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))  # after an installed package

from splash_attention.language import packages  # noqa: E402
from splash_attention.language.plan import Plan  # noqa: E402
from splash_laboratory.language_model import setting  # noqa: E402


class Peer:
    def __init__(self):
        self.loaded = None

    def answer(self, job):
        asked, ask = setting.Setting(**job["setting"]), job["ask"]
        if ask == "check":
            return setting.check(asked, job.get("method"), job.get("plan"))
        if ask == "to_fetch":
            missing, told = packages.to_fetch(setting.fetchable(asked))
            return told if missing else ""
        if ask == "fetch":
            return packages.fetch(setting.fetchable(asked), say=lambda line: None)
        if ask == "fingerprint":
            return setting.fingerprint(asked, job.get("method"), job.get("plan"))
        return self.measured(asked, job)

    def measured(self, asked, job):
        try:
            import transformers  # noqa: F401  (fast; a missing package is reported before the slow import of PyTorch)

            setting.place_of(asked)
            import torch
        except setting.Unavailable as error:
            raise Missing(str(error)) from error

        from splash_laboratory.language_model.loaded_setting import LoadedSetting

        try:
            if self.loaded is None or self.loaded.setting != asked:
                self.loaded = None  # frees the previous one before the next is loaded
                self.loaded = LoadedSetting(asked)
            if job["ask"] == "perplexity":
                return self.loaded.measure(job["method"])
            return self.loaded.convert(Plan.parse(job["plan"]), job["seconds"])
        except torch.OutOfMemoryError as error:
            raise Missing(str(error).splitlines()[0]) from error


class Missing(Exception):
    """What the machine lacks."""


def reply(peer, job):
    try:
        return {"answer": peer.answer(job)}
    except Missing as error:
        return {"unavailable": str(error)}
    except ImportError as error:
        return {"unavailable": f"{error}; SPLASH_PEER_PYTHON must name a Python that has splash-attention[language]"}
    except (ValueError, TypeError, OSError, NotImplementedError, RuntimeError) as error:
        return {"refused": str(error).splitlines()[0]}


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # packages may print; only answers go to stdout
    peer = Peer()
    for line in sys.stdin:
        print(json.dumps(reply(peer, json.loads(line)), allow_nan=False), file=answers, flush=True)
