#!/usr/bin/env bash
# backends.sh BIN WORK BACKEND: two ranks train a LibTorch model through BACKEND (tcp; mpi under mpirun) and through shm,
# with gradients as they are and as bfloat16. Sums of two ranks have one order, so that both end with the same bits.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
bin=$1 work=$2 backend=$3
rm -rf "$work" && mkdir -p "$work"
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
program=$bin/libtorch_ddp_program

# train FILE [bf16]
train() {
  "$bin/lockstep" run -n 2 -- "$program" --backend shm "$work/shm$1" "${@:2}"
  if [[ $backend == mpi ]]; then
    # As root, and on few cores, Open MPI wants to be told twice.
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
      PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe \
      mpirun --mca btl self,vader -n 2 "$program" --backend mpi "$work/mpi$1" "${@:2}" 2>&1 | tee "$work/log"
  else
    "$bin/lockstep" run -n 2 -- "$program" --backend "$backend" "$work/$backend$1" "${@:2}" 2>&1 | tee "$work/log"
  fi
  grep -q "rank 0/2 .*backend $backend" "$work/log"
  cmp "$work/shm$1" "$work/$backend$1"
}
train .safetensors
train -bf16.safetensors bf16
if cmp -s "$work/shm.safetensors" "$work/shm-bf16.safetensors"; then
  echo "the hook has rounded nothing" >&2
  exit 1
fi
# One rank has other batch norms: equal files would say that nothing was computed.
"$program" --backend single "$work/alone.safetensors"
if cmp -s "$work/shm.safetensors" "$work/alone.safetensors"; then
  echo "one rank and two end with the same bits: they did not train" >&2
  exit 1
fi
