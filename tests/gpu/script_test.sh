#!/usr/bin/env bash
# script_test.sh SOURCE BUILD WORK: scripts/test-gpu over programs that are there, on a machine whose GPUs are hidden, and
# over the fakes of CUDA and NCCL where they were built.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source=$1 build=$2 work=$3
rm -rf "$work"
mkdir -p "$work/bin" "$work/elsewhere"
# Whatever would build or download something writes that down and fails.
for tool in apt-get cmake ninja make g++ c++ nvcc curl wget git pip sudo; do
  printf '#!/bin/sh\necho "%s $*" >>"%s"\nexit 1\n' "$tool" "$work/calls" >"$work/bin/$tool"
done
chmod +x "$work"/bin/*
export PATH=$work/bin:$PATH CUDA_VISIBLE_DEVICES=-1
cd "$work/elsewhere"

failed=0
complain() {
  printf '%s\n' "$*"
  failed=1
}
# expect NAME WANTED_CODE PATTERN ARGUMENTS...: exit code, and a line of its output, which is left in $out.
expect() {
  local name=$1 wanted=$2 pattern=$3 code=0
  shift 3
  out=$("$source/scripts/test-gpu" "$@" 2>&1) || code=$?
  if ((code != wanted)) || ! grep -qE -- "$pattern" <<<"$out"; then
    complain "$name: wanted code $wanted and a line like '$pattern', got code $code and:"$'\n'"$out"
  fi
}
# Every test of the list is counted as skipped, and has a line with its reason.
all_skipped() {
  local name=$1 suite=$2 reason=$3 tests
  tests=$("$suite" --gtest_list_tests | grep -c '^  ')
  grep -q "^scripts/test-gpu: $tests tests were skipped:$" <<<"$out" || complain "$name: not all $tests are counted: $out"
  (($(grep -cE "^  [^ ]+: .*($reason)" <<<"$out") == tests)) || complain "$name: not $tests reasons like '$reason': $out"
}

expect help 0 '^scripts/test-gpu \[--prebuilt DIR\]' --help
expect unknown 1 "unknown argument '--bogus'; usage: scripts/test-gpu" --bogus
expect first_of_nothing 1 '--first wants --pack DIR, or on a machine with a GPU --prebuilt DIR' --first
expect no_folder 1 '--prebuilt wants a folder' --prebuilt
expect not_there 1 'there is no .*/nowhere/bin/gpu_suite' --prebuilt nowhere
expect no_such_test 1 "no test is called 'Nothing" --prebuilt "$build" --filter 'Nothing.*'

# A GPU is listed, and what would use it is not here: each thing that lacks is named, and nothing is built.
printf '#!/bin/sh\n[ "$1" = -L ] && echo "GPU 0: NVIDIA H200 (UUID: GPU-5f2c)" || echo 580.65.06\n' >"$work/bin/nvidia-smi"
chmod +x "$work/bin/nvidia-smi"
LOCKSTEP_NCCL_LIB=/nowhere/libnccl.so expect gpu_without_nccl 1 'FAILED: a GPU is here and can.t be used' --prebuilt "$build"
for line in 'GPUs: GPU 0: NVIDIA H200' 'NCCL: LOCKSTEP_NCCL_LIB=/nowhere/libnccl.so is not a file'; do
  grep -qF "$line" <<<"$out" || complain "gpu_without_nccl: does not say '$line': $out"
done
rm "$work/bin/nvidia-smi"

# A machine without a GPU, or whose GPUs are hidden; or a build without the toolkit.
nothing='no NVIDIA driver|leaves no GPU of this machine'
[[ -f $build/lib/liblockstep_cuda.so ]] || nothing="device 'cuda' can't be used"
expect no_gpu 77 'NOTHING WAS TESTED: no GPU can be used here' --prebuilt "$build"
all_skipped no_gpu "$build/bin/gpu_suite" "$nothing"
if [[ -x $build/bin/gpu_rank && -x $build/bin/03_raw_gradients ]]; then
  expect pack 0 'packed .* into .*/elsewhere/packed$' --prebuilt "$build" --pack packed
  expect packed 77 'NOTHING WAS TESTED' --prebuilt packed
  all_skipped packed packed/bin/gpu_suite "$nothing"
  for line in 'NCCL is not in it' 'it wants GLIBC_2\.[0-9]*, GLIBCXX_3\.4\.[0-9]* and a driver for CUDA [0-9.]* '; do
    (cd "$work/elsewhere" && "$source/scripts/test-gpu" --prebuilt "$build" --pack packed 2>&1) >said
    grep -q "$line" said || complain "pack: does not say '$line': $(cat said)"
  done
  newest=$(readelf -VW packed/bin/* packed/lib/* 2>/dev/null | grep -oE 'GLIBC_2\.[0-9]+' | sort -uV | tail -n 1)
  [[ $(printf '%s\nGLIBC_2.34\n' "$newest" | sort -V | tail -n 1) == GLIBC_2.34 ]] || complain "the pack wants $newest"
  (($(tar -cz packed | wc -c) < 64 << 20)) || complain "the pack is too large: $(du -sh packed)"
  (source=$PWD/packed && expect packed_script 77 'NOTHING WAS TESTED' --prebuilt packed && exit "$failed") || failed=1
  outside=$(LD_LIBRARY_PATH=$PWD/packed/lib ldd $(ls packed/bin/* | grep -v libtorch) packed/lib/liblockstep_cuda.so |
    grep -E '=> |not found' | grep -vE "$PWD/packed/lib|/(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s)\.so" || true)
  [[ -z $outside ]] || complain "what --pack made needs more: $outside"
else
  expect pack_without 1 'the programs for GPUs were not built' --prebuilt "$work/elsewhere" --pack packed
fi

if [[ -x $build/bin/nccl_gpu_suite ]]; then
  unset CUDA_VISIBLE_DEVICES
  LOCKSTEP_FAKE_GPUS=0 expect fake_without_gpu 77 'NOTHING WAS TESTED' --fake --prebuilt "$build"
  all_skipped fake_without_gpu "$build/bin/nccl_gpu_suite" 'the NVIDIA driver shows no GPU'
  LOCKSTEP_NCCL_LIB=/nowhere/libnccl.so expect without_nccl 77 'install libnccl2' --fake --prebuilt "$build"
  LOCKSTEP_FAKE_GPU_MEMORY=1000 expect fails 1 'FAILED: 1 tests failed, 1 passed, 0 skipped' \
    --fake --prebuilt "$build" --filter 'Gpu.IsNamed:*Tell*/ranks_1'
  expect the_list 0 'passed: 9 tests passed, 0 skipped' --fake --prebuilt "$build" \
    --filter 'Gpu.*:*HurtRank*/ranks_2:*Conformance*/ranks_1:*Train*/ranks_1:*Tell*/ranks_2'
  for line in 'kill -9 of one of 2 ranks' 'SIGSTOP of one of 2 ranks' 'all_reduce of 4 KiB, 2 ranks' 'all_reduce of 25 MiB, 2 ranks'; do
    grep -q "^measured: $line" <<<"$out" || complain "the_list: does not tell of $line: $out"
  done
  grep -q 'say nothing of a GPU' <<<"$out" || complain "the_list: passes the fakes' times for a GPU's: $out"
fi

[[ ! -e $work/calls ]] || complain "it has called: $(cat "$work/calls")"
exit $failed
