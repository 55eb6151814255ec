#!/usr/bin/env bash
# run.sh SOURCE WORK CMAKE GENERATOR: each of these texts reaches a program, and the report of a skipped test, as it is.
# SPDX-License-Identifier: Apache-2.0
set -Eeuo pipefail
trap 'echo "texts: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
source=$1 work=$2 cmake=$3 generator=$4
rm -rf "$work"
mkdir -p "$work"
failed=0
try() {
  printf '%s' "$1" >"$work/text"
  "$cmake" -S "$source/tests/cmake/texts" -B "$work/build" -G "$generator" -DTEXT="$work/text" >"$work/log" 2>&1 &&
    "$cmake" --build "$work/build" >>"$work/log" 2>&1 || { tail -n 20 "$work/log"; failed=1; return 0; }
  [[ $("$work/build/print") == "$1" ]] || { echo "wanted '$1', the program has '$("$work/build/print")'"; failed=1; }
  (cd "$work/build" && ctest --output-junit report.xml) >>"$work/log" 2>&1
  reason=$(awk -v want=skipped -f "$source/scripts/junit.awk" "$work/build/report.xml")
  [[ $reason == "  skipped: $1" ]] || { echo "wanted the reason '$1', the report has '$reason'"; failed=1; }
}
try "LibTorch was not found; install libtorch-dev, or pass -DTorch_DIR= with a folder"
try "a; \"b\" 'c' \\d \\073 \$e \${f} \$<g> #h %i &j <k> (l) m=n; o\\\\ [p;q] @r@ \`s\`"
exit $failed
