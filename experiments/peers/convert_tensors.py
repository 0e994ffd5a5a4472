"""Files of tensors (.npz, .safetensors, .pt) made HDF5 files of the schema "splash capture 1", kept by their content's hash.

Reads one JSON object a line: file, an absolute path. Answers one a line: {"path": of the HDF5 file}, {"refused": why the
file is not taken}, or {"unavailable": which package is missing}.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))  # after an installed package

from splash_attention.tensor_files import cached_capture  # noqa: E402


def answer(file):
    try:
        return {"path": str(cached_capture(file))}
    except ImportError as error:
        return {"unavailable": str(error)}
    except (OSError, ValueError) as error:
        return {"refused": str(error)}


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # packages may print; only answers go to stdout
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line)["file"])), file=answers, flush=True)
