"""What editors, hooks, containers and hosts are told is what the front door does."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def front_door_packages() -> set[str]:
    """Of the lists `…_packages=(package[:command] …)` of the front door and what it sources."""
    text = (ROOT / "splash").read_text() + (ROOT / "cmake/format_and_lint.sh").read_text()
    lists = re.findall(r"^\w+_packages=\(([^)]*)\)", text, re.M)
    assert len(lists) == 4
    return {word.split(":")[0] for words in lists for word in words.split()}


def test_the_container_has_the_packages_of_the_front_door():
    dockerfile = (ROOT / ".devcontainer/Dockerfile").read_text()
    assert re.findall(r"^FROM (.*)$", dockerfile, re.M) == ["debian:12"]
    installed = re.search(r"apt-get install -y --no-install-recommends (.*?)&&", dockerfile.replace("\\\n", " ")).group(1).split()
    assert installed == sorted(set(installed))
    assert set(installed) - front_door_packages() == {"ca-certificates"}  # pip's, which Debian's image lacks
    assert front_door_packages() <= set(installed)
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).is_file()
    assert shlex.split(container["postCreateCommand"])[0] == "./splash"


def hooks() -> list[dict]:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]  # no one else's sources are fetched
    return repositories[0]["hooks"]


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["id"])
def test_hooks_are_words_of_the_front_door(hook: dict):
    program, word, *options = shlex.split(hook["entry"])
    assert os.access(ROOT / program, os.X_OK)
    assert re.search(rf"^  {word}\)$", (ROOT / "splash").read_text(), re.M)
    assert all(option in (ROOT / "cmake/format_and_lint.sh").read_text() for option in options)
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()
    asked = [path for path in tracked if re.search(hook["files"], path) and not re.search(hook.get("exclude", "^$"), path)]
    assert {"core/mask.cpp", "gpu/tests/ladder_test.cpp"} <= set(asked)
    assert not any(path.startswith(("fuzz/", "docs/")) for path in asked if hook.get("pass_filenames", True))


def test_the_workflow_runs_what_continuous_integration_is():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    [job] = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert job["container"] == "debian:12"  # as the container of developers


def test_editors_indent_and_wrap_as_clang_format_does():
    parser = configparser.ConfigParser()
    parser.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    style = yaml.safe_load((ROOT / ".clang-format").read_text())
    assert int(parser["*"]["max_line_length"]) == style["ColumnLimit"]
    assert int(parser["*"]["indent_size"]) == style["IndentWidth"]
