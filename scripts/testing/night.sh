# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by scripts/test: --nightly, its parts and their table.
# SPDX-License-Identifier: Apache-2.0

# part NAME COMMAND...: a part of the night. Its line in build/nightly.md says how it ended, and after how long.
part() {
  local name=$1 began=$SECONDS status=0
  shift
  is_wanted "$name" || return 0
  if [[ $1 == scripts/test ]]; then need_release; fi
  say "$name"
  ("$@") || status=$?
  if ((status != 0)); then failures+=("$name"); fi
  night_line "$name" "$( ((status == 0)) && echo passed || echo "FAILED, exit code $status")" $((SECONDS - began))
}
night_line() { printf '| %s | %s | %s | %d s |\n' "$1" "$version" "$2" "$3" >>build/nightly.md; }
is_wanted() { [[ -z $parts || $1 =~ $parts ]]; }

clang_build() {
  configure clang -DLOCKSTEP_PCH=OFF -DLOCKSTEP_UNITY=OFF
  build clang
}

# Each of tests/extra that one machine without a GPU can run, for minutes.
run_extras() {
  local engine=''
  part "soak store, 10 minutes" scripts/test --extra soak store --seconds 600
  part "soak job, 50 kills" scripts/test --extra soak job --kills 50
  part "soak hosts, 100 kills" scripts/test --extra soak hosts --kills 100
  part "soak attribution, 50 runs of each" scripts/test --extra soak attribution --runs 50
  part "soak libtorch, 10,000 steps" scripts/test --extra soak libtorch
  part "seams, 5,000 programs of each engine" scripts/test --extra seams --count 5000
  part "fuzz, 5 minutes each" scripts/test --extra fuzz --seconds 300
  part "libtorch under sanitizers" scripts/test --extra libtorch-sanitizers
  part "cuda: names and architectures of the plug-in" scripts/test --extra cuda
  part "launchers: Slurm, Open MPI, MPICH, Intel MPI" scripts/test --extra launchers
  part "ssh: jobs over OpenSSH" scripts/test --extra ssh
  part "torch-failures: PyTorch on gloo in the failure matrix" scripts/test --extra torch-failures
  part "the same bits on other processors" scripts/test --extra processors
  part "views: Chromium and TensorBoard" scripts/test --extra views
  part "torch: the newest PyTorch" scripts/test --extra torch
  part "torch: this Debian's PyTorch" scripts/test --extra torch --torch debian
  part "packages in a bare root" scripts/package --test
  part "bare: Debian 13" scripts/test --extra bare
  part "bare: Debian 12" scripts/test --extra bare --debian bookworm
  for engine in podman docker; do
    if ! is_wanted "image, by $engine"; then
      continue
    elif ! command -v $engine >/dev/null; then
      night_line "image, by $engine" "not run: $engine is not installed" 0
    elif ! $engine info >/dev/null 2>&1; then
      night_line "image, by $engine" "not run: $engine does not answer" 0
    else
      part "image, by $engine" scripts/test --extra image --engine $engine
    fi
  done
}
