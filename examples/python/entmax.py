"""alpha-entmax in softmax's place: small scores get probability 0 exactly. Runs on a CPU with NumPy alone.

PYTHONPATH=python python examples/python/entmax.py        (in a checkout, after ./splash build)
"""

import numpy as np

from splash_attention import entmax

scores = np.array([[1.0, 2.0, 3.0], [0.0, 0.1, 0.2]])  # a row each; the last axis is normalized

for alpha in (1.2, 1.5, 2.0):  # towards 1 it is softmax, 2 is sparsemax
    p = entmax(scores, alpha=alpha)
    print(alpha, np.round(p, 3).tolist(), "keys kept:", np.count_nonzero(p, axis=-1).tolist())
    assert np.allclose(p.sum(axis=-1), 1)
