#!/usr/bin/env bash
# run.sh SOURCE BUILD WORK CMAKE CXX: does what README.md and docs/INSTALL.md tell a user to do, with the pages' own words.
#
# Takes the program out of README.md, the CMakeLists.txt and the command lines out of docs/INSTALL.md (each follows a comment
# "consumer: NAME"), installs BUILD into a prefix, moves it, builds the program in each of the ways and runs it on 2 ranks.
# SPDX-License-Identifier: Apache-2.0
set -Eeuo pipefail
trap 'echo "consumer: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
source=$1 build=$2 work=$3 cmake=$4
export CXX=$5
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "${!LOCKSTEP_@}"

source "$source/tests/consumer/blocks.sh"

rm -rf "$work"
mkdir -p "$work/home" "$work/by_cmake"
export HOME=$work/home
# Moved after the installation: the tree must not remember where it was made.
"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$HOME/.local"
export PATH=$HOME/.local/bin:$PATH

check_run() {
  local out
  out=$(bash -euo pipefail -c "$(block run)" 2>&1 </dev/null) || { echo "$out"; return 1; }
  echo "$out" | tee run.log
  grep -q 'rank 0/2' <<<"$out"
  [[ -s model.safetensors ]]
}

# Which libraries a file may need, by names without versions and but for the compiler's own. What came along unseen is not
# everywhere, and programs would not start.
while read -r file; do
  case ${file#"$HOME/.local/"} in
    bin/lockstep) may='crypto fmt spdlog xxhash' ;;
    bin/lockstep-probe) may='fmt lockstep lockstep_nn' ;;
    */liblockstep.so*) may='crypto fmt spdlog xxhash' ;;
    */liblockstep_nn.so*) may='dnnl gomp lockstep' ;;
    */liblockstep_libtorch.so*) may='c10 fmt lockstep torch torch_cpu' ;;
    */liblockstep_mpi.so) may='fmt lockstep mpi' ;;
    */liblockstep_cuda.so | */liblockstep_cuda_nn.so) may='fmt lockstep lockstep_nn' ;;
    bin/0[45]_libtorch* | bin/06_*) may='c10 fmt lockstep lockstep_libtorch lockstep_nn torch torch_cpu' ;;
    bin/0*) may='fmt lockstep lockstep_nn' ;;
    *) may='' ;;
  esac
  while read -r name; do
    [[ " c m gcc_s stdc++ ld-linux-x86-64 ld-linux-aarch64 pthread dl rt $may " == *" $name "* ]] ||
      { echo "consumer: ${file#"$HOME/.local/"} needs lib$name, and may need: $may" >&2; exit 1; }
  done < <(readelf -d "$file" 2>/dev/null | sed -nE 's/.*\(NEEDED\).*\[(lib)?([^]]*)\.so.*/\2/p')
  if ldd "$file" 2>/dev/null | grep 'not found'; then
    echo "consumer: ${file#"$HOME/.local/"} does not find these libraries where it is installed" >&2
    exit 1
  fi
done < <(find "$HOME/.local/bin" "$HOME/.local/lib" -type f)

# The launcher finds its probe, and that its library, wherever the tree went.
lockstep doctor >"$work/doctor.log" || { cat "$work/doctor.log"; exit 1; }
grep -q 'shm .*works, tried with 2 ranks' "$work/doctor.log"

cd "$work/by_cmake"
block train.cc >train.cc
block CMakeLists.txt >CMakeLists.txt
(($(grep -c . CMakeLists.txt) <= 8))
block cmake | bash -euo pipefail -s
check_run

# Components by their names, and one that there is not.
mkdir "$work/components"
cd "$work/components"
printf 'cmake_minimum_required(VERSION 3.25)\nproject(components CXX)\nfind_package(lockstep REQUIRED COMPONENTS ${WANTED})\n' >CMakeLists.txt
"$cmake" -S . -B build -D CMAKE_PREFIX_PATH="$HOME/.local" -D 'WANTED=core;lockstep' >configure.log
if "$cmake" -S . -B build -D 'WANTED=core;nccl' >refused.log 2>&1; then
  echo "consumer: find_package took a component that there is not" >&2
  exit 1
fi
tr -s ' \n' ' ' <refused.log | grep -q "lockstep has no component 'nccl'; there are core, lockstep and libtorch"

for way in pkg-config g++; do
  mkdir "$work/by_$way"
  cd "$work/by_$way"
  block train.cc >train.cc
  block "$way" | bash -euo pipefail -s
  mkdir build && mv train build/train
  check_run
done

# The program of docs/ENGINE.md tests each sample on one rank, and learns.
mkdir "$work/engine"
cd "$work/engine"
block engine.cc >train.cc
block pkg-config | bash -euo pipefail -s
mkdir build && mv train build/train
check_run
[[ $(grep -c 'epoch .: accuracy' run.log) == 3 ]]
grep -q 'epoch 2: accuracy 0\.9' run.log

# Nothing of where it was built or first installed, and what needs the core alone loads no other library of lockstep's.
export PKG_CONFIG_PATH=$HOME/.local/lib/pkgconfig
[[ $(pkg-config --libs lockstep-core) != *lockstep_nn* ]]
for module in "$PKG_CONFIG_PATH"/lockstep*.pc; do
  module=$(basename "$module" .pc)
  pkg-config --print-errors --exists "$module"
  words=$(pkg-config --cflags --libs "$module")
  words=${words//$HOME/}  # the tree is below the build here
  [[ $words != *"$build"* && $words != *"$work/first"* ]]
done

# What they linked runs where only the component runtime is.
rm -r "$HOME/.local"
"$cmake" --install "$build" --prefix "$HOME/.local" --component runtime >>"$work/install.log"
[[ ! -e $HOME/.local/include ]]
for way in cmake pkg-config g++; do
  cd "$work/by_$way"
  check_run
done
