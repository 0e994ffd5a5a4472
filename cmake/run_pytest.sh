#!/usr/bin/env bash
# run_pytest.sh ROOT TESTS [pytest's words]: ctest's way to pytest. Chooses the Python when the test runs, not when cmake did, and fails
# with one sentence where pytest or the tests are missing: a test that cannot run has not passed.
set -euo pipefail
root=$1 tests=$2
fail() {
  printf 'splash: %s\n' "$1"
  exit 1
}
python=$root/.venv/bin/python
if [[ ! -x $python ]]; then python=$(command -v python3) || fail "python3 is missing; ./splash test installs it"; fi
"$python" -c 'import pytest' 2>/dev/null || fail "$python has no pytest; ./splash test installs it into .venv"
[[ -e $tests ]] || fail "there are no tests $tests"
export PYTHONPATH=${SPLASH_PACKAGE:-$root/python}${PYTHONPATH:+:$PYTHONPATH}
# Tests start Python hundreds of times. Its compiled modules are kept, even where the environment says otherwise (a container's often
# does) and pip left them out: else each start compiles PyTorch's or matplotlib's anew, seconds of CPU.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=$root/build/.pycache
exec "$python" -m pytest -q -rs -p no:cacheprovider "$tests" "${@:3}" </dev/null
