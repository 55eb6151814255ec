#!/usr/bin/env bash
# run.sh WORK CMAKE GENERATOR: which LibTorch a configuration takes, and what it says where it takes none.
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

"$cmake" -S "$here" -B "$work/auto" -G "$generator" -DLOCKSTEP_LIBTORCH=AUTO
fails "LOCKSTEP_LIBTORCH=ON, but Torch_DIR is '/nowhere', which has no TorchConfig.cmake" -DLOCKSTEP_LIBTORCH=ON -DTorch_DIR=/nowhere
fails "LOCKSTEP_LIBTORCH is 'YES'; give AUTO, ON or OFF" -DLOCKSTEP_LIBTORCH=YES
