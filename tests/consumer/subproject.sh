#!/usr/bin/env bash
# subproject.sh SOURCE WORK CMAKE GENERATOR compile|run: lockstep as a part of another project, with docs/INSTALL.md's own words.
#
# Makes a repository of the sources that such a project needs, and the project in both ways: FetchContent, which clones it
# without a network, and add_subdirectory. compile: configures both, holds each to unchanged.cmake, and compiles its program.
# run: builds them and runs the program on 2 ranks.
# SPDX-License-Identifier: Apache-2.0
set -Eeuo pipefail
trap 'echo "subproject: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
source=$1 work=$2 cmake=$3 generator=$4 what=$5
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "${!LOCKSTEP_@}" "${!GIT_@}"
source "$source/tests/consumer/blocks.sh"

rm -rf "$work"
mkdir -p "$work"/{home,origin,fetched,folder}
export HOME=$work/home
cp -r "$source"/{CMakeLists.txt,LICENSE,cmake,proto,runtime,launcher} "$work/origin"
git=(git -C "$work/origin" -c user.name=n -c user.email=e -c init.defaultBranch=main -c commit.gpgSign=false)
"${git[@]}" init -q
"${git[@]}" add . && "${git[@]}" commit -qm sources
"${git[@]}" tag "$(block FetchContent | sed -n 's/.*GIT_TAG \([^ )]*\)).*/\1/p')"
git config --global "url.$work/origin.insteadOf" "$(block FetchContent | sed -n 's/.*GIT_REPOSITORY \([^ ]*\) .*/\1/p')"
git config --global protocol.file.allow always

block FetchContent >"$work/fetched/CMakeLists.txt"
block add_subdirectory >"$work/folder/CMakeLists.txt"
block train.cc | tee "$work/fetched/train.cc" >"$work/folder/train.cc"
cp -r "$work/origin" "$work/folder/lockstep"

# in_project NAME BIN: in the folder of one of the two; BIN is where it has the launcher.
in_project() {
  cd "$work/$1"
  # -Wall: unused.h's warning is shown, and must not be an error.
  "$cmake" -S . -B build -G "$generator" -DCMAKE_CXX_FLAGS="-Wall -include $source/tests/consumer/unused.h" \
    -DCMAKE_PROJECT_train_INCLUDE="$source/tests/consumer/unchanged.cmake" >"$work/$1.configure.log" 2>&1 ||
    { cat "$work/$1.configure.log"; return 1; }
  if [[ $what == compile ]]; then
    # Its own object alone: nothing of lockstep must be built for its headers.
    "$cmake" --build build --target CMakeFiles/train.dir/train.cc.o >"$work/$1.log" 2>&1 || { cat "$work/$1.log"; return 1; }
    grep -q 'unused variable' "$work/$1.log"
    [[ ! -e build/$2/bin/lockstep ]]
    return
  fi
  block cmake of add_subdirectory | tail -n 1 | bash -euo pipefail -s >"$work/$1.log" 2>&1 || { tail -n 30 "$work/$1.log"; return 1; }
  "build/$2/bin/lockstep" run -n 2 build/train 2>&1 </dev/null | tee "$work/$1.run.log"
  grep -q 'rank 0/2' "$work/$1.run.log"
}
in_project fetched _deps/lockstep-build
in_project folder lockstep
if [[ $what == run ]]; then exit 0; fi
# What is off within another project, asked for, where its packages are.
"$cmake" -S "$work/folder" -B "$work/asked" -G "$generator" -DLOCKSTEP_MPI=AUTO -DLOCKSTEP_LIBTORCH=AUTO \
  -DCMAKE_PROJECT_train_INCLUDE="$source/tests/consumer/asked.cmake" >"$work/asked.log" 2>&1 || { cat "$work/asked.log"; exit 1; }
