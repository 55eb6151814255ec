#!/usr/bin/env bash
# subproject.sh SOURCE WORK CMAKE GENERATOR compile|run: lockstep as a part of another project, with docs/INSTALL.md's own words.
#
# Packs the sources as scripts/release does, and makes the project in both ways: FetchContent of that file, and
# add_subdirectory. compile: configures both, holds each to unchanged.cmake, and compiles its program.
# run: builds them and runs the program on 2 ranks; and once more with what is installed of the file, by find_package.
# SPDX-License-Identifier: Apache-2.0
set -Eeuo pipefail
trap 'echo "subproject: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
source=$1 work=$2 cmake=$3 generator=$4 what=$5
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "${!LOCKSTEP_@}" "${!GIT_@}"
source "$source/tests/consumer/blocks.sh"

rm -rf "$work"
mkdir -p "$work"/{home,origin,fetched,folder,installed}
export HOME=$work/home
(cd "$source" && cp -r CMakeLists.txt CMakePresets.json CHANGELOG.md README.md LICENSE cmake docs proto runtime launcher scripts "$work/origin")
git=(git -C "$work/origin" -c user.name=n -c user.email=e -c init.defaultBranch=main -c commit.gpgSign=false)
"${git[@]}" init -q
"${git[@]}" add . && "${git[@]}" commit -qm sources

# The release: every file of the commit, each time the same bytes, and no other commit by the name of a tag.
"$work/origin/scripts/release" "$work/fetched" >"$work/release.log"
"$work/origin/scripts/release" --commit HEAD "$work/again" >>"$work/release.log"
cmp "$work/fetched/SHA256SUMS" "$work/again/SHA256SUMS"
(cd "$work/fetched" && sha256sum --quiet -c SHA256SUMS)
tarball=$(echo "$work/fetched"/lockstep-*.tar.gz)
diff <(tar -tzf "$tarball" | grep -v '/$' | cut -d/ -f2- | sort) <("${git[@]}" ls-files | sort)
"${git[@]}" tag "v$(basename "$tarball" .tar.gz | cut -d- -f2)"
"${git[@]}" commit -q --allow-empty -m later
if "$work/origin/scripts/release" "$work/again" >"$work/refused.log" 2>&1; then
  echo "subproject: scripts/release packs another commit than the tag's" >&2
  exit 1
fi
grep -q -- '--commit v.* packs that one' "$work/refused.log"

block FetchContent >"$work/fetched/CMakeLists.txt"
block add_subdirectory >"$work/folder/CMakeLists.txt"
block train.cc | tee "$work/fetched/train.cc" >"$work/folder/train.cc"
mkdir "$work/folder/lockstep"
tar -xzf "$tarball" -C "$work/folder/lockstep" --strip-components=1

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
if [[ $what == run ]]; then
  # Built from the file alone and installed, for find_package.
  off=(-DLOCKSTEP_MPI=OFF -DLOCKSTEP_CUDA=OFF -DLOCKSTEP_LIBTORCH=OFF -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_EXAMPLES=OFF
       -DLOCKSTEP_BUILD_BENCHMARKS=OFF)
  (cd "$work/folder/lockstep" && "$cmake" --preset release -DCMAKE_INSTALL_PREFIX="$HOME/.local" "${off[@]}" &&
    "$cmake" --build build/release --target install) >"$work/installed.log" 2>&1 || { tail -n 30 "$work/installed.log"; exit 1; }
  cd "$work/installed"
  block train.cc >train.cc
  block CMakeLists.txt >CMakeLists.txt
  block cmake | bash -euo pipefail -s
  bash -euo pipefail -c "$(block run)" 2>&1 </dev/null | tee "$work/installed.run.log"
  grep -q 'rank 0/2' "$work/installed.run.log"
  exit 0
fi
# What is off within another project, asked for, where its packages are.
"$cmake" -S "$work/folder" -B "$work/asked" -G "$generator" -DLOCKSTEP_MPI=AUTO -DLOCKSTEP_LIBTORCH=AUTO \
  -DCMAKE_PROJECT_train_INCLUDE="$source/tests/consumer/asked.cmake" >"$work/asked.log" 2>&1 || { cat "$work/asked.log"; exit 1; }
