"""The process of `splash bench` in Python, driven word by word, and flashinfer-bench's files read by it."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from splash_laboratory import kernels  # noqa: E402
from splash_laboratory.kernels.flashinfer import Refused, kernel_of  # noqa: E402
from splash_laboratory.kernels.worker import Worker, make_of_file  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/bench/flashinfer"
ARRAYS = {"inputs": {"x": ("float32", ["n"])}, "outputs": {"y": ("float32", ["n"])}}


@pytest.fixture(autouse=True)
def none_declared():
    kernels.declared.clear()
    yield
    kernels.declared.clear()


def worker_of(function, n: int = 8, **changes) -> Worker:
    """A process that was told of its arrays, x = 0, 1, 2, ... of two sets; outputs hold -1."""
    kernels.declare(**({"sizes": {"n": n}, "reference": lambda x: 2 * x} | ARRAYS | changes))(function)
    worker = Worker(kernels.declared[0])
    worker.device.cuda, worker.device.name = False, "cpu"
    worker.declare("n", str(n))
    stride = 64 * len(worker.kernel.arrays)
    worker.memory, worker.stride = mmap.mmap(-1, 2 * stride + 4096), stride
    worker.offsets = [64 * i for i in range(len(worker.kernel.arrays))]
    for number in range(2):
        for i, array in enumerate(worker.kernel.arrays):
            worker.host(number, i).copy_(torch.arange(n) + number if array.role == "input" else torch.full((n,), -1.0))
    return worker


@pytest.mark.parametrize("how", ["returns", "writes", "names"])
def test_a_function_returns_or_writes_its_outputs(how: str):
    def writes(x, y):
        y.copy_(2 * x)

    call = {"returns": lambda x: 2 * x, "names": lambda x: {"y": 2 * x}, "writes": writes}[how]
    worker = worker_of(call)
    assert worker.declare()["arrays"][1]["role"] == "output"
    worker.prepare("warm", "2")
    assert len(worker.time("warm", "2")["seconds"]) == 2
    worker.collect("warm", "2")
    assert worker.host(0, 1).tolist() == [2.0 * i for i in range(8)] and worker.host(1, 1)[0] == 2
    indices = torch.frombuffer(worker.memory, dtype=torch.int64, count=2, offset=2 * worker.stride)
    indices.copy_(torch.tensor([3, 7]))
    worker.reference("1", "1", "2", str(2 * worker.stride))
    expected = torch.frombuffer(worker.memory, dtype=torch.float64, count=2, offset=2 * worker.stride + 16)
    assert expected.tolist() == [8.0, 16.0]


class Lazy(torch.Tensor):
    """A published cheat: it computes when it is read, after the clock has stopped."""


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (lambda x: (2 * x).as_subclass(Lazy), "is of type Lazy, not torch.Tensor"),
        (lambda x: None, "is of type NoneType"),
        (lambda x: 2 * x[1:], r"has the shape \[7\], not \[8\]"),
        (lambda x: (2 * x).double(), "has the dtype float64, not float32"),
    ],
)
def test_a_result_that_is_not_what_was_declared_is_refused(result, why: str):
    worker = worker_of(result)
    worker.prepare("warm", "1")
    worker.calls("warm", "1")
    with pytest.raises(TypeError, match=why):
        worker.collect("warm", "1")


def test_a_file_declares_one_kernel(tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text("")
    with pytest.raises(ValueError, match="declares 0 kernels where one is needed"):
        make_of_file(path)
    with pytest.raises(ValueError, match="there is no size 'm'"):
        worker_of(lambda x: x) and kernels.declared[0]({"m": 1})


def flashinfer(tmp_path: Path, change=lambda d, s, w: None):
    """The example with changes to definition, solution and workload."""
    found = [json.loads((EXAMPLE / name).read_text()) for name in ("definition.json", "solution.json")]
    found.append(json.loads((EXAMPLE / "workloads.jsonl").read_text().splitlines()[0]))
    change(*found)
    paths = [tmp_path / name for name in ("d.json", "s.json", "w.json")]
    for path, value in zip(paths, found, strict=True):
        path.write_text(json.dumps(value))
    return kernel_of(*paths)


def test_a_definition_and_a_solution_are_a_kernel(tmp_path: Path):
    kernel = flashinfer(tmp_path)
    roles = {"x": "input", "y": "input", "out": "output"}
    assert [(a.name, a.shape, a.role) for a in kernel.arrays] == [(name, [64, 256], role) for name, role in roles.items()]
    assert kernel.name == "scaled_add_torch" and kernel.scalars == {"scale": 0.5} and kernel.sizes == {"rows": 64}
    x, y, out = torch.ones(2, 2), torch.ones(2, 2), torch.zeros(2, 2)
    kernel.call(x=x, y=y, scale=0.5, out=out)
    assert kernel.writes_outputs and torch.equal(out, kernel.reference(x=x, y=y, scale=0.5))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d, s, w: s["sources"][0].update(path="../main.py"), "lies outside of the solution's folder"),
        (lambda d, s, w: s["sources"][0].update(path="/tmp/main.py"), "lies outside of the solution's folder"),
        (lambda d, s, w: s["spec"].update(entry_point="main.cu::run"), "no function of a Python file"),
        (lambda d, s, w: s["spec"].update(entry_point="main.py::go"), "has no function 'go'"),
        (lambda d, s, w: s.update(definition="another"), "is of the definition 'another'"),
        (lambda d, s, w: w["axes"].update(rows=-4), "the axis 'rows' has no value"),
        (lambda d, s, w: w["axes"].update(rows=1.5), "the axis 'rows' has no value"),
        (lambda d, s, w: w["inputs"].pop("scale"), "no value for the scalar 'scale'"),
        (lambda d, s, w: d["inputs"]["x"].update(dtype="float8_e4m3fn"), "not benched here"),
        (lambda d, s, w: d["inputs"]["x"].update(shape=["rows", "m"]), "not benched here"),
        (lambda d, s, w: d["axes"].update({"os.system": {"type": "var"}}), "whose name is no identifier"),
        (lambda d, s, w: d.update(tags=[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]), "nested deeper"),
        (lambda d, s, w: d.pop("reference"), "no 'reference' that is a str"),
    ],
)
def test_what_is_not_the_format_is_refused(tmp_path: Path, change, why: str):
    with pytest.raises(Refused, match=why):
        flashinfer(tmp_path, change)
