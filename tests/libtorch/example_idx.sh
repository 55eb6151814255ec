#!/usr/bin/env bash
# example_idx.sh BIN WORK: examples/06_libtorch_mnist reads MNIST's four files, and says what is wrong with one.
# Every label is a 3, which two ranks learn at once; of the digits that the example renders itself they would not know all.
set -euo pipefail
bin=$1 work=$2
rm -rf "$work" && mkdir -p "$work"
export OMP_NUM_THREADS=1

# write PART COUNT: images of noise, and as many labels. Numbers are big-endian.
write() {
  local count
  count=$(printf '\\x%02x\\x%02x' $(($2 / 256)) $(($2 % 256)))
  { printf '\0\0\x08\x03\0\0'"$count"'\0\0\0\x1c\0\0\0\x1c'; head -c $(($2 * 28 * 28)) /dev/urandom; } > "$work/$1-images-idx3-ubyte"
  { printf '\0\0\x08\x01\0\0'"$count"; head -c "$2" /dev/zero | tr '\0' '\3'; } > "$work/$1-labels-idx1-ubyte"
}
write train 1280
write t10k 100

"$bin/lockstep" run -n 2 -- "$bin/06_libtorch_mnist" "$work" 2>&1 | tee "$work/log"
for rank in 0 1; do grep -q "\[rank $rank\] test loss 0.* accuracy 1.000" "$work/log"; done

truncate -s -1 "$work/train-images-idx3-ubyte"
if "$bin/06_libtorch_mnist" "$work" > "$work/log" 2>&1; then
  echo "a file that is cut off was taken" >&2
  exit 1
fi
grep -q "train-images-idx3-ubyte' is no IDX file of MNIST's: 1003535 bytes" "$work/log"
