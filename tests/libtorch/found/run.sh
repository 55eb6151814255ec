#!/usr/bin/env bash
# run.sh WORK CMAKE GENERATOR: which LibTorch a configuration takes, and what it says where it takes none.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
work=$1 cmake=$2 generator=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
rm -rf "$work" && mkdir -p "$work"
unset Torch_DIR LOCKSTEP_LIBTORCH
export CMAKE_GENERATOR="of somebody else's"  # nothing may depend on it

# fails WORDS ARGUMENT...: the configuration ends with these words.
fails() {
  local words=$1
  shift
  if "$cmake" -S "$here" -B "$work/failing" -G "$generator" "$@" >"$work/log" 2>&1; then
    echo "cmake $* ended well; wanted: $words" >&2
    return 1
  fi
  # CMake breaks its lines where it likes.
  if ! tr -s ' \n' ' ' <"$work/log" | grep -qF -- "$words"; then
    cat "$work/log" >&2
    echo "cmake $*: not said: $words" >&2
    return 1
  fi
}

"$cmake" -S "$here" -B "$work/auto" -G "$generator" -DLOCKSTEP_LIBTORCH=AUTO | tee "$work/auto.log"
grep -q 'lockstep::libtorch: LibTorch 2.1.0 of ' "$work/auto.log"
grep -q 'lockstep::libtorch: LibTorch 2.11.0 for GPUs of ' "$work/auto.log"

# takes FOLDER ARGUMENT...: demanded, it is the one in FOLDER that is taken.
takes() {
  local folder=$1
  shift
  rm -rf "$work/taking"
  "$cmake" -S "$here" -B "$work/taking" -G "$generator" -DLOCKSTEP_LIBTORCH=ON "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }
  grep -qE "LibTorch [0-9.]+( for GPUs)? of $folder\$" "$work/log" || { cat "$work/log" >&2; return 1; }
}
auto=$work/auto
takes "$auto/good/share/cmake/Torch" -DCMAKE_PREFIX_PATH="$auto/good"
takes "$auto/good/share/cmake/Torch" -DCMAKE_PREFIX_PATH="$auto/good/share/cmake"
takes "$auto/gpus/share/cmake/Torch" -DCMAKE_PREFIX_PATH="$auto/gpus/share/cmake"
fails "the LibTorch of $auto/gpus_abi/share/cmake/Torch has the C++ ABI of before 2015" -DLOCKSTEP_LIBTORCH=ON \
  -DTorch_DIR="$auto/gpus_abi/share/cmake"
fails "LOCKSTEP_LIBTORCH=ON, but Torch_DIR is '/nowhere', which has no TorchConfig.cmake" -DLOCKSTEP_LIBTORCH=ON -DTorch_DIR=/nowhere
fails "LOCKSTEP_LIBTORCH is 'YES'; give AUTO, ON or OFF" -DLOCKSTEP_LIBTORCH=YES
