#!/usr/bin/env bash
# consumer.sh SOURCE BUILD WORK CMAKE: a user's project against the install tree, with the lines that docs/LIBTORCH.md shows.
# SPDX-License-Identifier: Apache-2.0
set -Eeuo pipefail
trap 'echo "libtorch consumer: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
source=$1 build=$2 work=$3 cmake=$4
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "${!LOCKSTEP_@}"

# block LANGUAGE: the first fenced block of that language in docs/LIBTORCH.md.
block() {
  local text
  text=$(awk -v mark="\`\`\`$1" '$0 == mark { inside = 1; next } inside && /^```/ { exit } inside { print }' "$source/docs/LIBTORCH.md")
  [[ -n $text ]] || { echo "libtorch consumer: docs/LIBTORCH.md has no block of $1" >&2; return 1; }
  printf '%s\n' "$text"
}

rm -rf "$work"
mkdir -p "$work/project"
for component in runtime devel libtorch; do
  "$cmake" --install "$build" --prefix "$work/first" --component "$component" >>"$work/install.log"
done
mv "$work/first" "$work/prefix"  # the tree must not remember where it was made

cd "$work/project"
block cpp >train.cc
block cmake >CMakeLists.txt
"$cmake" -S . -B build -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_FLAGS_RELEASE= >configure.log  # LibTorch's headers take minutes to optimise
"$cmake" --build build >build.log || { tail -30 build.log >&2; exit 1; }
"$build/bin/lockstep" run -n 2 build/train 2>&1 | tee run.log
grep -q 'rank 0/2' run.log
[[ -s model.safetensors ]]

# By pkg-config, with a step that is captured on a GPU, beside the headers of a CUDA toolkit where there is one. Programs start
# without a word of where libraries are, and the library itself must not call libtorch_cuda.so, whatever headers it saw.
unset LD_LIBRARY_PATH
for toolkit in /usr/local/cuda/include /usr/include; do
  if [[ -e $toolkit/cuda_runtime_api.h ]]; then export CPATH=$toolkit; break; fi
done
cat >captured.cc <<'PROGRAM'
#include <lockstep/libtorch.h>
#include <lockstep/libtorch/captured_step.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  auto group = lockstep::init_process_group();
  torch::nn::Linear model(4, 1);
  lockstep::libtorch::DistributedDataParallel ddp(model, group);
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  lockstep::libtorch::CapturedStep step(ddp, optimizer, [&](const torch::Tensor& x) { return ddp(x).square().mean(); });
  for (int i = 0; i < 5; ++i) step(torch::ones({8, 4}));
  std::printf("rank %d of %d: %d parameters\n", group->rank(), group->size(), static_cast<int>(model->parameters().size()));
}
PROGRAM
export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
# shellcheck disable=SC2046  # words
"${CXX:-g++}" -O0 captured.cc -o captured $(pkg-config --cflags --libs lockstep-libtorch)
"$build/bin/lockstep" run -n 2 ./captured 2>&1 | tee captured.log
grep -q 'rank 1 of 2: 2 parameters' captured.log
if [[ -n ${CPATH-} ]]; then
  # shellcheck disable=SC2046
  "${CXX:-g++}" -O2 -fPIC -c -I "$source" -I "$source/runtime/include" $(pkg-config --cflags lockstep-libtorch) \
    "$source/runtime/libtorch/step_capture.cc" -o step_capture.o
  ! nm -C -u step_capture.o | grep 'at::cuda::' || { echo "libtorch consumer: lockstep's library calls libtorch_cuda.so" >&2; exit 1; }
fi
unset CPATH

# A LibTorch of another version in the same project: refused, with both named.
other=$work/other/share/cmake/Torch
mkdir -p "$other"
echo 'add_library(torch INTERFACE IMPORTED)' >"$other/TorchConfig.cmake"
echo 'set(PACKAGE_VERSION 99.1.0)
set(PACKAGE_VERSION_COMPATIBLE TRUE)' >"$other/TorchConfigVersion.cmake"
if "$cmake" -S . -B refused -DCMAKE_PREFIX_PATH="$work/prefix" -DTorch_DIR="$other" >refused.log 2>&1; then
  echo "libtorch consumer: a LibTorch of another version was taken" >&2
  exit 1
fi
tr -s ' \n' ' ' <refused.log | grep -q "built with LibTorch [0-9.]* of [^ ]*, and the program takes LibTorch 99.1.0 of $other" || {
  cat refused.log >&2
  exit 1
}
