# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by scripts/test: what is built behind a suite that is running.
# SPDX-License-Identifier: Apache-2.0

# What the suites leave of the cores builds the rest ahead, and then reads the sources by clang-tidy: a task of the class idle
# runs where nobody else wants to.
begin_behind() {
  rm -rf build/behind
  mkdir -p build/behind
  set -m  # a process group of its own, so that an early end of this script ends all of it
  (
    trap - ERR
    set +e
    chrt --idle --pid 0 "$BASHPID"
    if $bare; then
      (set -e; if $peers; then use_torch; fi; build_beyond) >build/behind/beyond.out 2>&1
      touch build/behind/beyond
    fi
    $sanitizers || exit 0
    for preset in asan tsan; do
      (configure "$preset" -DLOCKSTEP_SANITIZE_ALL=OFF && build "$preset") >"build/behind/$preset.out" 2>&1
      touch "build/behind/$preset"  # built or not: suite() tries again, and says why not
    done
    exec scripts/tidy >build/tidy.out 2>&1
  ) &
  behind=$!
  set +m
}
end_behind() { [[ -z $behind ]] || kill -- "-$behind" 2>/dev/null; }

# scheduling_class CLASS: of all that runs behind; --other or --idle.
scheduling_class() {
  local round pid
  for round in 1 2; do  # what one of them starts meanwhile has the class that it had
    for pid in $(cat /proc/[0-9]*/stat 2>/dev/null | awk -v group="$behind" '{pid = $1; sub(/.*\) /, "")} $3 == group {print pid}' || true); do
      chrt "$1" --pid 0 "$pid" 2>/dev/null || true
    done
  done
}

# await_behind PRESET: from here on somebody wants it.
await_behind() {
  [[ -n $behind ]] || return 0
  [[ -e build/behind/$1 ]] || say "$1: building the rest of what was built behind the suite"
  scheduling_class --other
  while [[ ! -e build/behind/$1 ]] && kill -0 "$behind" 2>/dev/null; do sleep 1; done
  scheduling_class --idle
}
