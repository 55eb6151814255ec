#!/usr/bin/env bash
# recipes.sh ROOT: every listing of docs/RECIPES.md is the text between its marks in a test, tests/libtorch/recipes_test.cc or
# tests/multirank/recipes_test.cc; every one there is on the page, and has at most 20 lines.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
page=$1/docs/RECIPES.md
sources=("$1"/tests/{libtorch,multirank}/recipes_test.cc)

in_page() { awk -v mark="<!-- recipe $1 -->" '$0 == mark {on = 1; next} on && /^```cpp$/ {text = 1; next} text && /^```$/ {exit} text' "$page"; }
# Without the indentation of the mark.
in_source() {
  awk -v mark="// recipe $1" '{line = $0; sub(/^ */, "", line)}
    line == mark {indent = index($0, "/") - 1; on = 1; next} on && line == "// end" {exit} on {print substr($0, indent + 1)}' "${sources[@]}"
}

mapfile -t on_page < <(sed -n 's/^<!-- recipe \(.*\) -->$/\1/p' "$page" | sort)
for source in "${sources[@]}"; do
  grep -q '^ *// recipe ' "$source" || { echo "no recipe found in $source"; exit 1; }
done
mapfile -t in_test < <(sed -n 's|^ *// recipe \([a-z]*\)$|\1|p' "${sources[@]}" | sort)
((${#on_page[@]} > 0)) || { echo "no recipe found in $page"; exit 1; }
[[ ${on_page[*]} == "${in_test[*]}" ]] || { echo "on the page: ${on_page[*]}; in the tests: ${in_test[*]}"; exit 1; }
failed=0
for name in "${on_page[@]}"; do
  lines=$(in_source "$name" | wc -l)
  ((lines > 0 && lines <= 20)) || { echo "recipe $name has $lines lines; 1 to 20 are wanted"; failed=1; }
  diff <(in_page "$name") <(in_source "$name") || { echo "docs/RECIPES.md: recipe $name is not that of a test"; failed=1; }
done
exit "$failed"
