#!/usr/bin/env bash
# run_gpu_pytest.sh ROOT FILE [pytest's words]: run_pytest.sh for tests of a GPU. Where none can run it says how many it skips: without a GPU
# at once, else when pytest has found out (a build without CUDA, no PyTorch).
set -euo pipefail
skip() {
  printf 'GPU tests skipped: %d (%s)\n' "$(grep -c '^def test_' "$file")" "$1"
  exit 0
}
file=$2
if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && [[ ! -e /dev/dxg ]]; then skip "no NVIDIA GPU here"; fi # dxg: WSL's
status=0
"$(dirname -- "${BASH_SOURCE[0]}")/run_pytest.sh" "$@" || status=$?
if ((status == 5)); then skip "pytest says above why"; fi # it ran none
exit "$status"
