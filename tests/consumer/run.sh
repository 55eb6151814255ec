#!/usr/bin/env bash
# run.sh SOURCE BUILD WORK CMAKE CXX: does what README.md and docs/INSTALL.md tell a user to do, with the pages' own words.
#
# Takes the program out of README.md, the CMakeLists.txt and the command lines out of docs/INSTALL.md (each follows a comment
# "consumer: NAME"), installs BUILD into a prefix, moves it, builds the program both ways and runs it on 2 ranks.
set -Eeuo pipefail
trap 'echo "consumer: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
source=$1 build=$2 work=$3 cmake=$4
export CXX=$5
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "${!LOCKSTEP_@}"

# block NAME: the fenced block after "<!-- consumer: NAME -->" in README.md or docs/INSTALL.md.
block() {
  local text
  text=$(awk -v mark="<!-- consumer: $1 -->" '
    index($0, mark) { found = 1; next }
    found && /^```/ { if (inside) exit; inside = 1; next }
    inside { print }' "$source/README.md" "$source/docs/INSTALL.md")
  [[ -n $text ]] || { echo "consumer: README.md and docs/INSTALL.md have no block '$1'" >&2; return 1; }
  printf '%s\n' "$text"
}

rm -rf "$work"
mkdir -p "$work/home" "$work/by_cmake" "$work/by_hand"
export HOME=$work/home
# Moved after the installation: the tree must not remember where it was made.
"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$HOME/.local"
export PATH=$HOME/.local/bin:$PATH

check_run() {
  local out
  out=$(bash -euo pipefail -c "$(block run)" 2>&1 </dev/null) || { echo "$out"; return 1; }
  echo "$out"
  grep -q 'rank 0/2' <<<"$out"
  [[ -s model.safetensors ]]
}

# The launcher finds its probe, and that its library, wherever the tree went.
lockstep doctor >"$work/doctor.log" || { cat "$work/doctor.log"; exit 1; }
grep -q 'shm .*works, tried with 2 ranks' "$work/doctor.log"

cd "$work/by_cmake"
block train.cc >train.cc
block CMakeLists.txt >CMakeLists.txt
(($(grep -c . CMakeLists.txt) <= 8))
block cmake | bash -euo pipefail -s
check_run

cd "$work/by_hand"
block train.cc >train.cc
block g++ | bash -euo pipefail -s
mkdir build && mv train build/train
check_run
