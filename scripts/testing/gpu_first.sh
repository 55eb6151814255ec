# shellcheck shell=bash disable=SC2154
# Sourced by scripts/test-gpu --first: the archives for a machine with one GPU that is lent for minutes, and the steps there,
# the newest code first. Each step has a time limit and a log of its own, so that one which fails or hangs hides no other.
# SPDX-License-Identifier: Apache-2.0
first_torch=2.11.0  # that machine's LibTorch, with whose headers the programs are built
first_nccl=2.32.3   # runs several ranks on one GPU (NCCL_MULTI_RANK_GPU_ENABLE)
first_arch=90       # that GPU's compute capability, of which NCCL's code is packed
first_seconds=540   # for all steps

# pack_first DIR: builds, and makes DIR/programs.tar.xz and DIR/nccl.tar.xz.
pack_first() {
  local target=$1 folder=$root/build/gpu-first made
  need_packages "${build_packages[@]}" "${gtest_packages[@]}" xz-utils
  need_torch "$first_torch"
  logged build/gpu-first.configure.log cmake "" cmake --preset release -B "$folder" "${launcher[@]+"${launcher[@]}"}" \
    -DTorch_DIR="$Torch_DIR" -DLOCKSTEP_LIBTORCH=ON -DLOCKSTEP_BUILD_TESTS=ON -DLOCKSTEP_BUILD_EXAMPLES=ON \
    -DLOCKSTEP_BUILD_BENCHMARKS=ON
  ninja -C "$folder" -j "$(jobs)" --quiet gpu_programs || die "the build of $folder failed; the first error is above"
  made=$(mktemp -d)
  "$self" --prebuilt "$folder" --pack "$made/programs"
  logged build/nccl.log "pip install nvidia-nccl-cu13" "" \
    "$torch_python" -m pip install --no-cache-dir --no-deps --target "$made/wheel" "nvidia-nccl-cu13==$first_nccl"
  mkdir -p "$made/nccl/nccl" "$target"
  strip --strip-unneeded -o "$made/libnccl.so.2" "$made/wheel/nvidia/nccl/lib/libnccl.so.2"
  keep_arch "$first_arch" "$made/libnccl.so.2" "$made/nccl/nccl/libnccl.so.2"
  for name in programs nccl; do
    tar -C "$made/$name" -c . | xz -6 -T0 >"$target/$name.tar.xz"
    say "$target/$name.tar.xz: $(du -h "$target/$name.tar.xz" | cut -f1)"
  done
  rm -rf "$made"
  (($(stat -c %s "$target/programs.tar.xz") < 20 << 20)) || die "$target/programs.tar.xz is not below 20 MiB"
}

# keep_arch ARCH FROM TO: fills the device code of other compute capabilities with zeros, which xz makes small. The code is
# compressed: with all of it no archive is below 150 MiB. In a fat binary an 8-byte head and a size come before entries, each
# of a kind, the sizes of its head and payload, and at byte 28 the capability.
keep_arch() {
  python3 - "$@" <<'CODE'
import re, struct, sys
arch, source, target = sys.argv[1:]
data = bytearray(open(source, "rb").read())
for head in [match.end() for match in re.finditer(b"\x50\xed\x55\xba\x01\x00\x10\x00", data)]:
    at = head + 8
    end = at + struct.unpack_from("<Q", data, head)[0]
    while at < end:
        header, payload = struct.unpack_from("<IQ", data, at + 4)
        if struct.unpack_from("<I", data, at + 28)[0] != int(arch):
            data[at + header:at + header + payload] = bytes(payload)
        at += header + payload
open(target, "wb").write(data)
CODE
}

# step SECONDS NAME COMMAND...
step() {
  local limit=$1 name=$2 code=0 begin=$SECONDS result=passed
  shift 2
  ((limit <= first_seconds - SECONDS)) || limit=$((first_seconds - SECONDS))
  if ((limit < 5)); then
    result="NOT RUN, the time is over"
  else
    timeout --kill-after 5 "$limit" "$@" >"$logs/$name.log" 2>&1 || code=$?
    if ((code != 0)); then
      result="FAILED (exit code $code)"
    elif grep -q '^\[=*\] Running 0 tests' "$logs/$name.log"; then
      result="FAILED, no test has this name"
    elif grep -q '^\[ *SKIPPED *\]' "$logs/$name.log"; then
      result="passed, with tests SKIPPED"
    fi
  fi
  [[ $result == passed* ]] || not_passed+=("$name")
  say "$name: $result, $((SECONDS - begin)) s of $limit"
}

# run_first: in $folder, which the archives were unpacked into.
run_first() {
  local logs=$folder/logs not_passed=() bin=$folder/bin count run sanitizer
  mkdir -p "$logs"
  suite() { step "$1" "$2" "$bin/gpu_suite" "--gtest_filter=$3"; }
  # modules SECONDS NAME RANKS FILTER: tests of LibTorch.
  modules() {
    run=("$bin/lockstep" run --devices 0 --oversubscribe-gpu -n "$3" --)
    step "$1" "$2-$3" env CUBLAS_WORKSPACE_CONFIG=:4096:8 "${run[@]}" "$bin/gpu_libtorch_rank" "--gtest_filter=$4"
  }
  step 10 nvidia-smi nvidia-smi
  suite 20 named 'Gpu.IsNamed'
  suite 45 sums '*AddUpInTheOrderThatTheHostHas*'
  sanitizer=$(command -v compute-sanitizer || found_in compute-sanitizer "${cuda_homes[@]/%//bin}" || echo compute-sanitizer)
  run=("$bin/lockstep" run --devices 0 -n 1 -- "$sanitizer" --error-exitcode 9)
  step 45 memcheck "${run[@]}" --tool memcheck --report-api-errors no "$bin/gpu_rank" sums  # NCCL gets errors on purpose
  step 45 racecheck "${run[@]}" --tool racecheck "$bin/gpu_rank" sums
  for count in 1 2; do modules 40 captured "$count" 'Device.*Captured*:Device.ACollectiveWithin*'; done
  for count in 1 2; do modules 40 scaler "$count" 'Device.*Scaler*:Device.GradientsGoThrough*'; done
  suite 60 same-bits 'Gpu.TrainsModulesOfLibTorchToTheSameBits*:Gpu.HasTheSameBits*'
  modules 60 libtorch 2 '*'
  suite 90 passed-before '*PassTheConformanceSuite*/ranks_2:*TrainTensors*/ranks_2:Gpu.ComputesOnTensors*:*GroupsOfAllAndOfSome*/ranks_3'
  suite 90 harmed '*HarmedRank*_ranks_2:*HurtRank*/ranks_2'
  suite 80 training '*Training*/ranks_2:*Overlap*/ranks_2:Gpu.TrainsGpt2*'
  step 90 captured-step env LOCKSTEP_BIN="$bin" "$folder/benchmarks/run_libtorch_ddp" --device cuda --worlds 1 --models gpt \
    --contenders local,lockstep,captured --blocks 5 --minutes 1
  # Over sockets between ranks that seem to be on hosts of their own, and as NCCL has it. The logs name NCCL's transports.
  for count in 2 4 8; do
    run=(env NCCL_DEBUG=INFO "$bin/lockstep" run --devices 0 --oversubscribe-gpu -n "$count" --)
    step 30 "sockets-$count" "${run[@]}" "$bin/gpu_rank" times
    step 30 "one-gpu-$count" env LOCKSTEP_NCCL_LIB="$folder/nccl/libnccl.so.2" "${run[@]}" env -u NCCL_HOSTID -u NCCL_NET \
      -u NCCL_P2P_DISABLE -u NCCL_SHM_DISABLE -u NCCL_ALGO -u NCCL_PROTO -u NCCL_MAX_CTAS NCCL_MULTI_RANK_GPU_ENABLE=1 \
      "$bin/gpu_rank" times
  done
  (cd "$logs" && grep -o 'measured: .*' ./*.log) || true
  ((${#not_passed[@]} == 0)) || die "FAILED or not run: ${not_passed[*]}; $logs has a log of each step"
  say "passed; $logs has a log of each step"
}
