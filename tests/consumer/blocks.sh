# shellcheck shell=bash disable=SC2154
# Sourced by the scripts beside it, which set `source`, the folder of the sources.
# SPDX-License-Identifier: Apache-2.0

# block NAME: the fenced block after "<!-- consumer: NAME -->" in README.md, docs/INSTALL.md or docs/ENGINE.md.
block() {
  local text
  text=$(awk -v mark="<!-- consumer: $* -->" '
    index($0, mark) { found = 1; next }
    found && /^```/ { if (inside) exit; inside = 1; next }
    inside { print }' "$source/README.md" "$source/docs/INSTALL.md" "$source/docs/ENGINE.md")
  [[ -n $text ]] || { echo "consumer: README.md, docs/INSTALL.md and docs/ENGINE.md have no block '$*'" >&2; return 1; }
  printf '%s\n' "$text"
}
