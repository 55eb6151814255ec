#!/usr/bin/env bash
# components.sh SOURCE WORK CMAKE: for each component, that what its install rules copy out of the build is built by the target
# install_COMPONENT_targets, which is what scripts/install builds. By configurations alone: nothing is built.
# SPDX-License-Identifier: Apache-2.0
set -Eeuo pipefail
trap 'echo "components: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
source=$1 work=$2 cmake=$3
rm -rf "$work"
mkdir -p "$work"
failed=0

# words_of BUILD TARGETS...: the words of all commands that build these, into BUILD.words.
words_of() { ninja -C "$1" -t commands "${@:2}" | sed "s|$source/||g; s|$1/||g" | tr ' ' '\n' | sort -u >"$1.words"; }

# try NAME "COMPONENTS" OPTIONS...: these components at least.
try() {
  local name=$1 wanted=$2 build=$work/$1 component file
  shift 2
  "$cmake" -S "$source" -B "$build" -G Ninja -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_BENCHMARKS=OFF "$@" >"$build.log" 2>&1 ||
    { tail -n 20 "$build.log"; return 1; }
  # Lines "COMPONENT FILE", of what is not there yet.
  find "$build" -name cmake_install.cmake -exec awk -v build="$build/" '
    match($0, /CMAKE_INSTALL_COMPONENT STREQUAL "[^"]*"/) { split(substr($0, RSTART, RLENGTH), words, "\""); component = words[2] }
    { while (match($0, /"[^"]*"/)) {
        file = substr($0, RSTART + 1, RLENGTH - 2)
        $0 = substr($0, RSTART + RLENGTH)
        # No path to search, and not the list that CMake 3.31 writes for an installation of one folder.
        if (index(file, build) == 1 && file !~ /[:$]|install_local_manifest\.txt$/) print component, substr(file, length(build) + 1)
      } }' {} + | sort -u | while read -r component file; do [[ -e $build/$file ]] || echo "$component $file"; done >"$build.files"
  for component in $(cut -d' ' -f1 "$build.files" | sort -u); do
    words_of "$build" "install_${component}_targets"
    while read -r file; do
      grep -qxF -- "$file" "$build.words" || { echo "$name: component $component installs $file, which its target does not build"; failed=1; }
    done < <(sed -n "s/^$component //p" "$build.files")
  done
  for component in $wanted; do
    grep -q "^$component " "$build.files" || { echo "$name: nothing of component $component is installed: $(cat "$build.files")"; failed=1; }
  done
  # The quickstart builds no plug-in, and nothing of LibTorch, wherever they are.
  words_of "$build" bin/lockstep bin/02_char_gpt
  if grep -E 'torch|\.cu$|cuda|comm/mpi' "$build.words"; then
    echo "$name: the quickstart builds these"
    failed=1
  fi
}
try all "runtime devel 02_char_gpt"
grep -q 'plug-in cuda: with' "$work/all.log" && grep -q '^cuda lib/liblockstep_cuda_nn.so' "$work/all.files" || grep -q 'plug-in cuda: left out' "$work/all.log"
grep -q 'lockstep::libtorch: LibTorch' "$work/all.log" && grep -q '^libtorch ' "$work/all.files" || grep -q 'lockstep::libtorch is not built' "$work/all.log"
try none "runtime devel 02_char_gpt" -DLOCKSTEP_MPI=OFF -DLOCKSTEP_CUDA=OFF -DLOCKSTEP_LIBTORCH=OFF
! grep -E '^(mpi|cuda|libtorch) ' "$work/none.files"
# A compiler wrapper without headers, as of Debian 13's openmpi-bin without libopenmpi-dev.
mkdir "$work/wrapper.bin"
cat >"$work/wrapper.bin/mpicc" <<'WRAPPER'
#!/bin/sh
case $1 in
  *showme:compile) echo "-I/no/headers/of/mpi" ;;
  *showme:link) echo "-lmpi" ;;
  *showme:incdirs) echo "/no/headers/of/mpi" ;;
  *) exit 1 ;;
esac
WRAPPER
chmod +x "$work/wrapper.bin/mpicc"
PATH=$work/wrapper.bin:$PATH try wrapper "runtime devel 02_char_gpt" -DLOCKSTEP_CUDA=OFF -DLOCKSTEP_LIBTORCH=OFF
grep -q 'wrapper.bin/mpicc finds no mpi.h' "$work/wrapper.log" && grep -q 'plug-in mpi: left out' "$work/wrapper.log"
exit $failed
