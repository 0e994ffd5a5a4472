"""Sphinx's configuration of the site that `./splash docs` builds; build.py lays its source out."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

ROOT = Path(os.environ["SPLASH_ROOT"])
sys.path[:0] = [str(ROOT / "docs" / "site"), str(ROOT / "python")]
os.environ.setdefault("SPLASH_TUNED", "off")

from docstrings import as_restructured_text  # noqa: E402
from sphinx import addnodes  # noqa: E402
from sphinx.ext.autodoc.mock import _MockObject  # noqa: E402

_MockObject.__or__ = lambda self, other: self  # Tensor | None, where it is evaluated

project = "Adaptive Splash"
author = copyright = "Adaptive Splash contributors"
release = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
html_title = f"{project} {release}"

extensions = ["myst_nb", "sphinx.ext.autodoc", "breathe"]
root_doc = "docs/index"
exclude_patterns = ["docs/conf.py"]
html_theme = "furo"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_show_sourcelink = html_copy_source = False
smartquotes = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # of GitHub's manner
suppress_warnings = ["myst.header"]  # a page may begin a section below its title with a small heading

# What is documented is read, not run: the page is the same with PyTorch and the built extension as without.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_mock_imports = [
    "splash_attention._core", "torch", "transformers", "safetensors", "tokenizers", "gguf", "h5py", "h5netcdf", "xarray", "matplotlib",
]  # fmt: skip

breathe_projects = {"splash": os.environ["SPLASH_DOCS_DOXYGEN"]}
breathe_default_project = "splash"
breathe_domain_by_extension = {"h": "cpp"}
breathe_default_members = ("members", "undoc-members")
breathe_show_include = False  # the page does
cpp_maximum_signature_line_length = 90

# Notebooks are run once and again when they change. Those that train models show no outputs without PyTorch and the extension.
nb_execution_mode = os.environ.get("SPLASH_DOCS_NOTEBOOKS", "cache")
nb_execution_cache_path = os.environ["SPLASH_DOCS_CACHE"]
nb_execution_timeout = 600
nb_execution_raise_on_error = True
if not (importlib.util.find_spec("torch") and list((ROOT / "python" / "splash_attention").glob("_core*.so"))):
    nb_execution_excludepatterns = ["*train_with_entmax.ipynb", "*what_entmax_costs_my_model.ipynb"]


def tell_names_alone(app, doctree) -> None:
    """Beside the page of C++ stand its classes and functions, without their members and namespaces."""
    for outer in doctree.findall(lambda node: isinstance(node, addnodes.desc) and node["domain"] == "cpp"):
        for signature in outer.findall(addnodes.desc_signature):
            signature["_toc_name"] = signature["_toc_name"].rpartition("::")[2] if signature.parent is outer else ""


def setup(app) -> None:
    app.connect("doctree-read", tell_names_alone, priority=400)  # before Sphinx collects them
    app.connect("autodoc-process-docstring", as_restructured_text)
