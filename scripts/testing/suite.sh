# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by scripts/test: one suite of tests, what of it was skipped or failed, and what is said of that at the end.
# SPDX-License-Identifier: Apache-2.0

# passes_again PRESET: whether the tests that failed may have another run, and all pass in it.
passes_again() {
  local folder=build/$1 failed
  failed=$(sed -n '/^The following tests FAILED:/,/^$/{/^\t/p}' "$folder/ctest.log")
  if (($(wc -l <<<"$failed") > 3)) || grep -qvE '\(Failed\)([[:space:]]|$)' <<<"$failed"; then return 1; fi
  [[ -z $(awk -v want=sanitizer -f scripts/junit.awk "$folder/junit.xml") ]] || return 1
  say "$1: another run, one at a time, of what failed:"
  echo "$failed"
  ctest --preset "$1" --rerun-failed -j 1 --no-tests=error --output-on-failure || return 1
  unstable+=("$(awk -v want=failed -v lines=40 -f scripts/junit.awk "$folder/junit.xml")")
  unstable_names+=($(sed -n 's/^---- \([^ ]*\) failed after.*/\1/p' <<<"${unstable[-1]}"))
}

# count_skips PRESET: of its report, one line each, into `listed` too.
count_skips() {
  [[ ! -e build/$1/junit.xml ]] || listed=$(awk -v want=skipped -f scripts/junit.awk "build/$1/junit.xml" | sed "s/^ */  $1: /")
  if [[ -n $listed ]]; then
    skips=$((skips + $(wc -l <<<"$listed")))
    skipped_lines+=("$listed")
  fi
}

# suite PRESET [CTEST ARGUMENTS...]: builds all of it and runs ctest, with these arguments instead of the caller's. With them
# what they select is built already. Counts failures; prints each skip with its reason.
suite() {
  local preset=$1 status=0 report=build/$1/junit.xml arguments=("${ctest_arguments[@]+"${ctest_arguments[@]}"}")
  if (($# > 1)); then
    arguments=("${@:2}")
  else
    [[ $preset == release ]] || say "$preset: building"
    build "$preset"
  fi
  say "$preset: running the tests"
  rm -f "$report" "build/$preset/ctest.log"
  # Many tests wait, for a silence or a timeout: three at a time keep two cores busy.
  ctest --preset "$preset" -j "$(($(nproc) * 3 / 2))" --no-tests=error --output-junit "$root/$report" \
    --output-log "$root/build/$preset/ctest.log" --test-output-size-passed 65536 --test-output-truncation middle "${arguments[@]}" || status=$?
  if [[ " ${arguments[*]} " == *' -LE ^nightly$ '* ]]; then
    left_out=$((left_out + $(ctest --preset "$preset" -N -L '^nightly$' | sed -n 's/^Total Tests: //p')))
  fi
  # 8: tests have failed.
  if ((status == 8)) && $again && passes_again "$preset"; then status=0; fi
  if ((status != 0)); then
    failures+=("the $preset suite (ctest exit code $status; report in $report)")
    failed_suites+=("$preset")
  fi
  local listed=
  count_skips "$preset"
  if $peers && [[ -n $listed ]]; then
    local test
    while read -r test; do
      if grep -q "^  $preset: $test: " <<<"$listed"; then
        failures+=("$test was skipped, which --peers does not allow")
      fi
    done < <(ctest --preset "$preset" -N -L '^peers$' | sed -n 's/^ *Test *#[0-9]*: //p')
  fi
}

# The last thing printed, also when a build failed after it: who shows only the end of this output sees what failed.
show_failures() {
  local status=$? preset
  trap - ERR
  set +e
  end_behind
  # An end by a signal: what is in front, a suite or a build, would continue without anybody.
  kill $(cat "/proc/$$/task/$$/children") 2>/dev/null
  for preset in "${failed_suites[@]+"${failed_suites[@]}"}"; do
    [[ -e build/$preset/junit.xml ]] || continue
    say "$preset: the failed tests, each with the end of its output:"
    awk -v want=failed -v lines=40 -f scripts/junit.awk "build/$preset/junit.xml"
  done
  for preset in "${failed_suites[@]+"${failed_suites[@]}"}"; do
    [[ -e build/$preset/ctest.log ]] || continue
    say "$preset: failed tests:"
    sed -n '/^The following tests FAILED:/,/^$/{/^\t/p}' "build/$preset/ctest.log"
  done
  exit "$status"
}
