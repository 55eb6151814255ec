#!/usr/bin/env bash
# example_idx.sh BIN WORK: examples/04_libtorch_mnist reads MNIST's four files, and says what is wrong with one.
# Every label is a 3, which two ranks learn at once; of the digits that the example renders itself they would not know all.
# Rank 0 alone prints: every number is of all ranks.
# SPDX-License-Identifier: Apache-2.0
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

"$bin/lockstep" run -n 2 -- "$bin/04_libtorch_mnist" "$work" 2>&1 | tee "$work/log"
grep -q '\[rank 0\] test loss 0.* accuracy 1.000' "$work/log"
! grep -q '\[rank 1\] epoch\|\[rank 1\] test' "$work/log" || { echo "rank 1 prints too" >&2; exit 1; }

# refused WORDS: the example ends with them.
refused() {
  if "$bin/04_libtorch_mnist" "$work" > "$work/log" 2>&1; then
    echo "taken, and should be refused: $1" >&2
    exit 1
  fi
  grep -qF -- "$1" "$work/log" || { cat "$work/log" >&2; echo "not said: $1" >&2; exit 1; }
}
images=$work/train-images-idx3-ubyte labels=$work/train-labels-idx1-ubyte
printf '\x0a' | dd of="$labels" bs=1 seek=15 conv=notrunc status=none
refused "train-labels-idx1-ubyte': label 7 is 10; digits are 0 to 9"
write train 1279
mv "$labels" "$work/fewer"
write train 1280
mv "$work/fewer" "$labels"
refused "has 1280 images, and '$labels' 1279 labels; they are not of one set"
truncate -s -1 "$images"
refused "train-images-idx3-ubyte' is not an IDX file of MNIST's: 1003535 bytes, and its header says 1003536 (1280 items)"
truncate -s 15 "$images"
refused "15 bytes are less than its header of 16"
cp "$work/t10k-labels-idx1-ubyte" "$images"
refused "it begins with 0x00000801, not with 0x00000803; is it still packed"
rm "$images"
refused "train-images-idx3-ubyte' can't be read; is it there, unpacked?"
