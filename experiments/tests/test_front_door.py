"""The front door ./splash, in a project whose compilers, pip and program are scripts that say what they were asked."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import ROOT, Splash

CMAKE = """\
#!/bin/bash
if [[ $1 == --version ]]; then echo "cmake version 3.31.0"; exit; fi
echo "cmake $2" >>"$STUBS/asked"
mkdir -p "build/$2"; touch "build/$2/build.ninja"
"""
NINJA = """\
#!/bin/bash
echo "ninja ${*: -1}" >>"$STUBS/asked"
[[ ${STUB_PIP:-} != hang || -z ${STUB_NINJA:-} ]] || until [[ -s $STUBS/pip ]]; do sleep 0.01; done
[[ -z ${STUB_NINJA:-} ]] || { echo "[0/1] x"; echo "$STUB_NINJA"; exit 1; }
mkdir -p "$2/bin"
{ echo "#!/bin/bash"; echo "preset=${2##*/}"; cat "$STUBS/program"; } >"$2/bin/splash"
chmod +x "$2/bin/splash"
"""
# Like the real program: without CUDA parts it hands its words back.
PROGRAM = """\
if [[ $1 == ceilings && $preset == cpu-quick && -n ${SPLASH_CUDA_BY:-} ]]; then
  SPLASH_PRESET=release SPLASH_CUDA_BY= exec "$SPLASH_CUDA_BY" "$@"
fi
echo "$preset $* python=${SPLASH_PYTHON:-none}"
exit 7
"""
PYTHON = """\
#!/bin/bash
case $1 in
  -c) exit 0 ;;
  -m) ;;
esac
echo "python ${*:2}" >>"$STUBS/asked"
if [[ $2 == venv ]]; then
  rm -rf "${4:?}"; mkdir -p "$4/bin"; cp "$STUBS/python3" "$4/bin/python"
elif [[ ${STUB_PIP:-} == hang ]]; then
  echo $$ >"$STUBS/pip"; exec sleep 60
elif [[ ${STUB_PIP:-} == fail ]]; then
  echo "ERROR: no such hash"; exit 1
fi
"""
SCRIPTS = {"cmake": CMAKE, "ninja": NINJA, "python3": PYTHON, "program": PROGRAM, "nvcc": "#!/bin/bash\n"}
SCRIPTS |= {"ctest": "#!/bin/bash\n", "apt-get": "#!/bin/bash\nexit 1\n", "sudo": "#!/bin/bash\nexit 1\n"}
SCRIPTS["dpkg-query"] = '#!/bin/bash\nfor package in "${@:3}"; do echo "$package installed"; done\n'


class Door:
    def __init__(self, folder: Path):
        self.root, self.stubs = folder / "project", folder / "stubs"
        self.state = self.root / "build" / ".front-door"
        for name, text in SCRIPTS.items():
            self.stub(name, text)
        (self.root / "python").mkdir(parents=True)
        (self.root / "data" / "captures").mkdir(parents=True)
        shutil.copy(ROOT / "splash", self.root)
        (self.root / "CMakePresets.json").write_text("{}")
        for name in ("python/requirements", "python/requirements-torch", "data/captures/requirements"):
            (self.root / f"{name}.lock").write_text(f"{name}==1\n")

    def stub(self, name: str, text: str) -> None:
        self.stubs.mkdir(exist_ok=True)
        (self.stubs / name).write_text(text)
        (self.stubs / name).chmod(0o755)

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPLASH_", "STUB"))}
        return kept | {"PATH": f"{self.stubs}:/usr/bin:/bin", "STUBS": str(self.stubs)} | changes

    def start(self, *words: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [self.root / "splash", *words], env=self.environment(**environment), text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, *words: str, code: int = 7, logged: tuple[str, ...] = (), **environment: str) -> tuple[str, str]:
        process = self.start(*words, **environment)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == code, (process.returncode, out, errors)
        assert all(line.startswith(("splash: ", *logged)) for line in errors.splitlines()), errors
        return out, errors

    def refused(self, *words: str, **environment: str) -> str:
        out, errors = self(*words, code=2, **environment)
        assert out == ""
        return errors.splitlines()[-1]

    def asked(self) -> list[str]:
        """What the scripts were asked since the last time."""
        path = self.stubs / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


def await_word(door: Door, name: str, process: subprocess.Popen, deadline: float) -> None:
    while not (door.stubs / name).exists() or not (door.stubs / name).read_text().strip():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)


def await_end(pip: int, deadline: float) -> None:
    while Path(f"/proc/{pip}").exists() and "Z" not in Path(f"/proc/{pip}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "pip goes on behind ./splash"
        time.sleep(0.01)


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def test_cuda_is_built_when_a_word_needs_it_and_serves_every_word_then(door: Door):
    out, errors = door("list", "kinds")
    assert out.startswith("cpu-quick list kinds ")
    assert "cmake cpu-quick" in door.asked()
    assert not (door.root / "build" / "release").exists()
    out, errors = door("ceilings", "--device", "1")
    assert out.startswith("release ceilings --device 1 ")
    assert "a first build with the CUDA parts: some" in errors
    assert "cmake release" in door.asked()
    assert door("list")[0].startswith("release list ")
    assert not any("cpu-quick" in line for line in door.asked())
    assert door("list", SPLASH_PRESET="debug")[0].startswith("debug list ")


def test_the_whole_is_built_for_build(door: Door):
    _, errors = door("build", code=0)
    assert "built (build/release)" in errors
    assert "ninja all" in door.asked()
    assert door("list")[0].startswith("release list ")


def test_a_first_build_says_how_long_it_takes_and_how_much_disk(door: Door):
    _, errors = door("reproduce")
    assert re.search(r"a first build and the study: some \d minutes on two cores, 1 GB of disk", errors)
    _, errors = door("reproduce")
    assert "minutes" not in errors
    (door.root / "build" / "release").mkdir()
    announced = re.search(r"and the tests: some (\d+) minutes on two cores, (\d) GB", door("test", code=0)[1])
    assert announced and int(announced[2]) >= 6


def test_too_little_room_is_told_before_anything_is_built(door: Door):
    door.stub("df", '#!/bin/bash\nprintf "Filesystem\\nx 1 1 300 1 /\\n"\n')
    assert "there are only 300 MB free in" in door.refused("reproduce")
    assert door.asked() == []


@pytest.mark.parametrize("file", ["build", "build/.front-door"])
def test_places_that_cannot_be_made(door: Door, file: str):
    (door.root / file).parent.mkdir(exist_ok=True)
    (door.root / file).write_text("a file")
    sentence = door.refused("list")
    assert sentence.startswith("splash: cannot make the folder build/.front-door: ")


def test_a_lock_that_cannot_be_opened(door: Door):
    (door.state / "lock").mkdir(parents=True)
    assert "cannot write build/.front-door/lock" in door.refused("list")


@pytest.mark.parametrize("name", ["packages-build", "unfinished", "pip-python.log", "configure-cpu-quick.log"])
def test_a_full_disk_is_one_sentence(door: Door, name: str):
    door.state.mkdir(parents=True)
    if not name.endswith(".log"):  # the log is read, too, and /dev/full never ends
        (door.state / name).symlink_to("/dev/full")
        assert f"cannot write build/.front-door/{name}: " in door("list", code=2)[1]
        (door.state / name).unlink()
    (door.state / name).mkdir()
    assert f"cannot write build/.front-door/{name}: " in door("list", code=2)[1]


def test_a_build_that_fills_the_disk(door: Door):
    assert "the build failed: the disk is full" in door.refused("list", STUB_NINJA="ld: No space left on device")
    assert "the build failed (all of it: build/.front-door/build-" in door.refused("list", STUB_NINJA="no")


def test_a_build_that_fails_ends_what_is_installed_beside_it_and_has_the_last_word(door: Door):
    assert "the build failed" in door.refused("list", STUB_NINJA="no", STUB_PIP="hang")
    await_end(int((door.stubs / "pip").read_text()), time.monotonic() + 30)


def test_requirements_are_installed_from_locks_with_hashes(door: Door):
    out, _ = door("list")
    assert out.endswith(f"python={door.root}/.venv/bin/python\n")
    door("test", code=0)
    installs = [line for line in door.asked() if " install " in line]
    assert len(installs) == 3 and all("--require-hashes" in line and line.endswith(".lock") for line in installs)
    door("test", code=0)
    assert not any(" install " in line for line in door.asked())
    (door.root / "python" / "requirements.lock").write_text("another==1\n")
    door("list")
    assert [line for line in door.asked() if " install " in line]


def test_docs_installs_its_own_lock_and_takes_no_words(door: Door):
    (door.root / "python" / "docs.lock").write_text("sphinx==1\n")
    door("docs", code=0)
    assert any("--require-hashes" in line and line.endswith("python/docs.lock") for line in door.asked())
    assert door.refused("docs", "more") == "splash: docs takes no words, not: more"


def test_a_failed_installation_does_not_keep_the_program_from_running(door: Door):
    out, errors = door("list", STUB_PIP="fail", logged=("ERROR: no such hash",))
    assert out.startswith("cpu-quick list") and "pip could not install python/requirements.lock" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_installation_is_done_again_from_the_beginning(door: Door, number: int):
    process = door.start("list", STUB_PIP="hang")
    deadline = time.monotonic() + 30
    await_word(door, "pip", process, deadline)
    pip = int((door.stubs / "pip").read_text())
    os.killpg(process.pid, number) if number == signal.SIGINT else os.kill(process.pid, number)
    process.wait(timeout=30)
    if number == signal.SIGKILL:  # cannot be handled, so pip still runs
        os.kill(pip, signal.SIGKILL)
    process.communicate()
    await_end(pip, deadline)
    door.asked()
    _, errors = door("list")
    assert "making the Python environment .venv anew: it is not whole" in errors
    asked = door.asked()
    assert any("venv --clear" in line for line in asked) and any(" install " in line for line in asked)
    assert "anew" not in door("list")[1]


@pytest.mark.parametrize("code", [0, 1])
def test_an_interrupt_ends_all_though_the_build_takes_it_and_ends_by_itself(door: Door, code: int):
    door.stub("ninja", f"#!/bin/bash\ntrap 'exit {code}' INT\necho yes >$STUBS/building\nwhile true; do sleep 0.01; done\n")
    process = door.start("list", STUB_PIP="hang")
    deadline = time.monotonic() + 30
    await_word(door, "pip", process, deadline)
    await_word(door, "building", process, deadline)
    pip = int((door.stubs / "pip").read_text())
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) == -signal.SIGINT
    process.communicate()
    await_end(pip, deadline)


def test_a_python_environment_that_does_not_start_is_made_anew(door: Door):
    (door.root / ".venv" / "bin").mkdir(parents=True)
    (door.root / ".venv" / "bin" / "python").symlink_to("/no/such/python")
    _, errors = door("list")
    assert "making the Python environment .venv anew" in errors
    assert "anew" not in door("list")[1]


# --- the other half: the program gives its words back ---


def test_the_program_gives_words_back_that_need_cuda(splash: Splash, tmp_path: Path):
    splash.write("door", '#!/bin/bash\necho "$SPLASH_PRESET:${SPLASH_CUDA_BY-unset}:$*"\n').chmod(0o755)
    door = {"SPLASH_CUDA_BY": str(tmp_path / "door")}
    if "no CUDA parts" not in splash("list", "variants").stdout:
        assert "wmma/" in splash("list", "variants", env=door).stdout  # a build with CUDA parts keeps its words
        return
    ladders = ROOT / "data" / "reports" / "ladders-h200.h5"
    for words in (
        ["ceilings", "--json"],
        ["list", "variants"],
        ["run", ROOT / "experiments" / "ladders", "--out", "with space.h5"],
        ["recount", ladders, "--out", "r.h5"],
        ["what-if", ladders, "wmma/9", "kv_len=4096"],
    ):
        done = splash(*words, env=door)
        assert done.stdout == f"release:unset:{' '.join(map(str, words))}\n", done.stderr
        assert done.returncode == 0 and done.stderr.count("\n") == 1
    for words in (["list"], ["list", "kinds"], ["doctor"], ["entmax", "1", "2"], ["analyze", ladders]):
        assert "release:" not in splash(*words, env=door).stdout
    assert "./splash ceilings builds them" in splash("doctor", env=door).stdout
    done = splash("ceilings", env={"SPLASH_CUDA_BY": "/no/door"})
    assert done.returncode == 3 and "/no/door could not be started" in done.stderr
