#!/usr/bin/env bash
# bare_root.sh SOURCE WORK PACKAGES: installs the packages in a bare root of this machine's Debian, as root, and runs jobs of two
# ranks there as another user: the doctor's, and README.md's program, compiled there by the g++ line of docs/INSTALL.md.
# SPDX-License-Identifier: Apache-2.0
set -Eeuo pipefail
trap 'echo "bare root: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
source=$1 work=$2 packages=$3
source "$source/tests/consumer/blocks.sh"
source "$source/scripts/bare_root.sh"
bare_suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)  # packages fit the Debian that made them
program="scripts/package --test"
why=$(why_no_root)
[[ -z $why ]] || { echo "bare root: $why" >&2; exit 1; }
root=$work/root
rm -rf --one-file-system "$work"
mkdir -p "$work"
make_root "$root"
mkdir "$root/packages" "$root/job"
cp "$packages"/lockstep*.deb "$root/packages"
block train.cc >"$root/job/train.cc"
block pkg-config | tail -n 1 >"$root/job/compile.sh"
chmod 777 "$root/job"

# step NAME PATTERN WORDS: what they print has the pattern.
step() {
  local log=$work/$1.log
  in_root "$root" "$3" >"$log" 2>&1 </dev/null || { tail -n 30 "$log" >&2; echo "bare root: $1 failed" >&2; return 1; }
  grep -qE -- "$2" "$log" || { cat "$log" >&2; echo "bare root: $1: no line is like '$2'" >&2; return 1; }
  echo "bare root: ok: $1"
}
install='apt-get install -q -y --no-install-recommends'
user="su -s /bin/bash nobody -c"
step runtime 'shm .*works, tried with 2 ranks' "$install /packages/lockstep_*.deb && $user 'lockstep doctor'"
step plugins 'mpi .*liblockstep_mpi\.so' "$install /packages/lockstep-plugin-*.deb && $user 'lockstep doctor'"
step devel 'rank 0/2' "$install g++ pkg-config /packages/lockstep-dev_*.deb &&
  cd /job && $user 'bash compile.sh && lockstep run -n 2 ./train' && test -s model.safetensors"
if compgen -G "$root/packages/lockstep-libtorch_*.deb" >/dev/null; then
  # The whole of LibTorch is half a gigabyte; that its packages can be had is what the package says.
  step libtorch '^Inst lockstep-libtorch ' "apt-get install --simulate -q -y /packages/lockstep-libtorch_*.deb"
fi
step removed 'Removing lockstep' "apt-get purge -q -y 'lockstep*' && ! find /usr /etc -name '*lockstep*' | grep ."
rm -rf --one-file-system "$root"
echo "bare root: passed"
