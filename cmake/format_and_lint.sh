# ./splash format and ./splash lint: sourced by the front door, whose functions and settings they use.

format_packages=(clang-format:clang-format) # package:command, as those of the build

source_files() { # of our own, NUL-separated
  local folder folders=()
  for folder in core report cpu_ref gpu analysis experiments python cmake examples; do
    if [[ -d $root/$folder ]]; then folders+=("$root/$folder"); fi
  done
  find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu' \) -print0
}

run_format() {
  local options=(-i)
  [[ $# == 0 || ($# == 1 && $1 == --check) ]] || die "format takes nothing or --check, not: $*"
  if (($# == 1)); then options=(--dry-run --Werror); fi
  lock
  ensure_packages format "${format_packages[@]}"
  unlock
  local tool version
  tool=$(command -v clang-format-14 || command -v clang-format) || die "there is no clang-format"
  version=$("$tool" --version)
  [[ $version == *"version 14."* ]] || say "the sources are formatted by clang-format 14; other versions may differ (here: $version)"
  local output
  if ! output=$(source_files | xargs -0 -r "$tool" --style=file "${options[@]}" 2>&1); then
    printf '%s\n' "$output" | sed -n "s|^$root/\(.*\):[0-9]*:[0-9]*: error: code should be.*|not formatted: \1|p" | sort -u
    say "some files are not formatted; ./splash format mends them"
    exit 1
  fi
}

# The project's files that a compilation is of: FILE itself, or, where a preset compiles several as one, those it includes.
compiled_files() { # FILE
  if [[ $1 == */Unity/*.cxx ]]; then sed -n 's/^#include "\(.*\.cpp\)"$/\1/p' "$1"; else printf '%s\n' "$1"; fi |
    grep "^$root/" | grep -v "^$root/\(build\|\.venv\)/"
}

lint_one() { # FILE, under xargs
  local key stamp=$LINT_STAMPS/${1//[^A-Za-z0-9.]/_} output unity=
  key="$LINT_KEY $(compiled_files "$1" | tr '\n' '\0' | xargs -0 cat -- | cksum)"
  if [[ -f $stamp && $(<"$stamp") == "$key" ]]; then return; fi
  # Where several are one, including a .cpp is no mistake; where it is one, the compiler finds a second definition.
  if [[ $1 == */Unity/*.cxx ]]; then unity=--checks=-bugprone-suspicious-include; fi
  # -Wno-…: warning flags that g++ knows and clang does not. -idirafter: omp.h, which clang-tidy comes without.
  if output=$("$LINT_TIDY" --quiet -p "$LINT_BUILD" --warnings-as-errors='*' --extra-arg=-Wno-unknown-warning-option \
    --extra-arg="-idirafter$LINT_OMP" ${unity:+"$unity"} "$1" 2>&1); then
    printf '%s' "$key" >"$stamp"
  else
    printf '%s\n' "$output" | grep -v 'warnings\{0,1\} generated\.$\|warnings\{0,1\} treated as error'
    return 1
  fi
}

run_lint() {
  local part files=() file members chosen count=0
  lock
  prepare
  ensure_requirements lint "$root/python/requirements-lint.lock"
  ensure_configured
  build_targets splash_build_info # for its generated header
  unlock
  export LINT_TIDY=$venv/bin/clang-tidy
  [[ -x $LINT_TIDY ]] || die "there is no clang-tidy in .venv"
  local with_tests=1
  if [[ ${1:-} == --sources ]]; then
    with_tests=
    shift
  fi
  while IFS= read -r file; do
    members=$(compiled_files "$file") || continue
    if [[ -z $with_tests && $members == */tests/* ]]; then continue; fi
    if [[ $members == *simt* ]]; then continue; fi # kernels, which are linted nowhere else either
    chosen=$((1 - ($# > 0)))
    for part in "$@"; do if [[ ${members//"$root"\//} == *"$part"* ]]; then chosen=1; fi; done
    if ((chosen)); then
      files+=("$file")
      count=$((count + $(wc -l <<<"$members")))
    fi
  done < <(sed -n 's/^ *"file": "\(.*\.c\(pp\|xx\)\)",\{0,1\}$/\1/p' "$build/compile_commands.json" | sort -u)
  ((count > 0)) || die "no .cpp file of the build matches: $*"
  say "clang-tidy over $count files, skipping those that were clean and have not changed"
  # What a file's verdict depends on, besides itself. A changed header asks about every file again.
  LINT_KEY=$({ source_files | grep -z '\.h$\|\.cuh$' | sort -z | xargs -0 cat -- && cat -- "$root/.clang-tidy" && "$LINT_TIDY" --version; } | cksum)
  LINT_OMP=$(dirname -- "$(g++ -print-file-name=include/omp.h)")
  export LINT_KEY LINT_OMP LINT_BUILD=$build LINT_STAMPS=$state/lint-$preset
  mkdir -p -- "$LINT_STAMPS"
  printf '%s\0' "${files[@]}" | xargs -0 -P "${SPLASH_JOBS:-2}" -n 1 "$BASH" "$self" --lint-one || {
    say "clang-tidy found something"
    exit 1
  }
  say "clang-tidy found nothing"
}
