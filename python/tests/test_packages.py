"""The library and the laboratory are two packages: arrows go from the second to the first."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[1]
LIBRARY, LABORATORY = PYTHON / "splash_attention", PYTHON / "splash_laboratory"
RESERVED = re.compile(r"(aux|con|nul|prn|com\d|lpt\d)", re.IGNORECASE)  # names of devices on Windows, whatever the ending


def imported(source: str) -> set[str]:
    """The packages that a module names in its imports, wherever they stand in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_the_library_imports_nothing_of_the_laboratory() -> None:
    modules = sorted(LIBRARY.rglob("*.py"))
    assert len(modules) > 30
    assert [module for module in modules if "splash_laboratory" in imported(module.read_text())] == []


def test_attention_over_several_gpus_stands_below_the_models() -> None:
    """hugging_face asks distributed whether a context is active; not the other way."""
    modules = sorted((LIBRARY / "distributed").glob("*.py"))
    assert len(modules) > 10
    above = re.compile(r"^\s*(?:from|import) (?:transformers|splash_attention\.(?:hugging_face|language|kascade))", re.MULTILINE)
    assert [module for module in modules if above.search(module.read_text())] == []


def test_each_room_of_models_stands_on_those_before_it() -> None:
    """hugging_face, then kascade, then language."""
    rooms = ("hugging_face", "kascade", "language")
    for at, room in enumerate(rooms):
        above = re.compile(rf"^(?:from|import) splash_attention\.(?:{'|'.join(rooms[at + 1 :]) or 'none'})\b", re.MULTILINE)
        modules = sorted((LIBRARY / room).glob("*.py"))
        assert len(modules) > 3
        assert [module for module in modules if above.search(module.read_text())] == []


def test_an_import_is_found_wherever_it_stands() -> None:
    source = "import a.b\nfrom c.d import e\ndef f():\n    from g import h\nif True:\n    import i as j\nfrom . import k\n"
    assert imported(source) == {"a", "c", "g", "i"}


def test_the_library_has_no_context_variables() -> None:
    """torch.compile of PyTorch 2.11 traces none, so that it would break graphs of models; and threads of autograd have contexts of their own."""
    assert [module for module in sorted(LIBRARY.rglob("*.py")) if "contextvars" in imported(module.read_text())] == []


def test_no_file_has_a_name_that_windows_reserves() -> None:
    files = [path for folder in (LIBRARY, LABORATORY) for path in folder.rglob("*")]
    assert [path for path in files if RESERVED.fullmatch(path.name.partition(".")[0])] == []


def test_numpy_alone_is_enough() -> None:
    """As in an environment that holds nothing else: every other package is refused, whether it is installed here or not."""
    pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
    code = """if True:
        import sys

        class Refuses:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] not in {*sys.stdlib_module_names, "numpy", "splash_attention"}:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Refuses())
        import numpy
        from splash_attention import Aux, entmax, entmax15, sparsemax, splash_attention

        assert abs(entmax15(numpy.arange(4.0)).sum() - 1) < 1e-12 and sparsemax(numpy.arange(4.0)).tolist() == [0, 0, 0, 1]
        q = numpy.random.default_rng(1).standard_normal((1, 2, 5, 8))
        out, aux = splash_attention(q, q, q, causal=True, return_aux=True)
        assert out.shape == q.shape and isinstance(aux, Aux) and 0 <= aux.sparsity_by_token < 1
        print("computed")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "computed", done.stderr


def test_both_packages_are_of_one_version() -> None:
    library, laboratory = (tomllib.loads((folder / "pyproject.toml").read_text()) for folder in (PYTHON.parent, PYTHON))
    version = library["project"]["version"]
    assert f'__version__ = "{version}"' in (LIBRARY / "__init__.py").read_text()
    assert f"VERSION {version} " in (PYTHON.parent / "CMakeLists.txt").read_text()
    assert f"\nversion: {version}\n" in (PYTHON.parent / "CITATION.cff").read_text()
    assert library["project"]["optional-dependencies"]["reports"] == [f"splash-laboratory=={version}"]
    assert laboratory["project"]["version"] == version
    assert f"splash-attention=={version}" in laboratory["project"]["dependencies"]
    assert library["tool"]["scikit-build"]["wheel"]["packages"] == ["python/splash_attention"]
    assert laboratory["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["splash_laboratory"]


def test_no_link_on_a_wheels_page_leads_nowhere() -> None:
    """There README.md stands alone: its pictures and files are not beside it."""
    declared = tomllib.loads((PYTHON.parent / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    (fragment,) = declared["fragments"]
    page = (PYTHON.parent / fragment["path"]).read_text()
    for substitution in declared["substitutions"]:
        page = re.sub(substitution["pattern"], substitution["replacement"], page)
    assert re.findall(r"\]\((?!https?://)[^)]*\)", page) == []
    assert "in the glossary" in page and "![" not in page and "\n```python\n" in page


def test_what_a_build_lacks_is_told_in_one_sentence(tmp_path: Path) -> None:
    """As pip shows it, where nothing but pip was there."""
    hidden = ["-DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON"]
    parts = ["-DSPLASH_LABORATORY=OFF", "-DSPLASH_CUDA=OFF", "-DSPLASH_TESTS=OFF"]
    cmake = next((name for name in (PYTHON.parent / ".venv/bin/cmake", "cmake") if shutil.which(name)), "cmake")
    done = subprocess.run([cmake, "-S", PYTHON.parent, "-B", tmp_path, *hidden, *parts], capture_output=True, text=True)
    said = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert "To build splash takes what was not found: Eigen 3.4 or newer (libeigen3-dev), fmt (libfmt-dev); in brackets the packages" in said
