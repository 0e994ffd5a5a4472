#!/usr/bin/env bash
# gpu_bench.sh SPLASH [FOLDER]: on a GPU, with nvcc and a Python that has PyTorch and Triton (SPLASH_PEER_PYTHON). Benches the
# examples of known cause and the cheats, and says of each whether it ended as it must. 90 s; exit code 1 if one did not.
set -uo pipefail
splash=$1 folder=${2:-out/bench} failed=0
mkdir -p "$folder"
SECONDS=0

# the verdict, or what was found against the kernel, of each case
say() {
  python3 -c '
import json, sys
for case in json.load(sys.stdin)["cases"]:
    if case["believed"]:
        print(case["findings"][0]["cause"])
    else:
        print("; ".join(found["kind"] for found in case["against"]))'
}
expect() { # NAME EXPECTED FOUND
  local verdict=ok
  [[ $3 =~ ^($2)$ ]] || { verdict=WRONG failed=1; }
  printf '%-5s %3ds  %-28s %s (expected: %s)\n' "$verdict" "$SECONDS" "$1" "${3:-nothing}" "$2"
}

"$splash" ceilings --out "$folder/ceilings.h5" >"$folder/ceilings.txt"
words=(--ceilings "$folder/ceilings.h5" --samples 8 --seconds 2)
while read -r file cause; do
  name=$(basename "${file%.*}")
  found=$("$splash" bench "examples/bench/$file" "${words[@]}" --out "$folder/$name.h5" --json 2>"$folder/$name.log" | tee "$folder/$name.json" | say)
  expect "$file" "$cause" "$found"
  "$splash" diagnose "$folder/$name.h5" | sed '1,2d'
done <<'EXAMPLES'
saxpy.cu DRAM
transpose.cu shared memory
gemm.cu too little parallelism
softmax.cu latency
polynomial_triton.py products
EXAMPLES

cheats() { # FILE WORDS...
  "$splash" bench experiments/tests/bench_cheats.cu "${words[@]}" --no-counts "${@:2}" --json 2>"$folder/$1.log" | tee "$folder/$1.json" | say
}
expect "no cheat" "[a-zA-Z ]+" "$(cheats honest)"
mapfile -t found < <(echo; cheats cheats --set cheat=1,2,3,4,5)
expect "a no-op" "not written" "${found[1]:-}"
expect "another stream" "contradicts the clock outside(; below the floor)?|below the floor|not written|wrong" "${found[2]:-}"
expect "a cached result" "wrong" "${found[3]:-}"
expect "a thread" "not written|wrong|contradicts the clock outside(; below the floor)?" "${found[4]:-}"
expect "a timer overwritten" "contradicts the clock outside(; below the floor)?" "${found[5]:-}"
cat "$folder"/*.log
exit $failed
