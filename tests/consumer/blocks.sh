# shellcheck shell=bash disable=SC2154
# Sourced by the scripts beside it, which set `source`, the folder of the sources.
# SPDX-License-Identifier: Apache-2.0

pages=(README.md docs/{INSTALL,ENGINE,FIRST_PROGRAM,OWN_GRADIENTS}.md)
# block NAME: the fenced block after "<!-- consumer: NAME -->" in one of these pages.
block() {
  local text
  text=$(awk -v mark="<!-- consumer: $* -->" '
    index($0, mark) { found = 1; next }
    found && /^```/ { if (inside) exit; inside = 1; next }
    inside { print }' "${pages[@]/#/$source/}")
  [[ -n $text ]] || { echo "consumer: ${pages[*]} have no block '$*'" >&2; return 1; }
  printf '%s\n' "$text"
}
