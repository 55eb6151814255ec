#!/usr/bin/env bash
# first_program.sh SOURCE BUILD WORK CMAKE CXX NAME: the program NAME of docs/FIRST_PROGRAM.md or docs/OWN_GRADIENTS.md, built and
# run with the page's own lines against the installed tree.
#
# On 1, 2 and 3 ranks it prints the same validation losses but for rounding. Stopped by SIGTERM after some epochs and started
# again it ends with the bits of the undisturbed run.
# SPDX-License-Identifier: Apache-2.0
set -Eeuo pipefail
trap 'echo "first_program: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
source=$1 build=$2 work=$3 cmake=$4 name=$6
export CXX=$5
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "${!LOCKSTEP_@}"
source "$source/tests/consumer/blocks.sh"

rm -rf "$work"
mkdir -p "$work/home"
export HOME=$work/home
components=(runtime devel)
[[ $name != first_torch ]] || components+=(libtorch)
for component in "${components[@]}"; do
  "$cmake" --install "$build" --prefix "$HOME/.local" --component "$component" >>"$work/install.log"
done
export PATH=$HOME/.local/bin:$PATH

cd "$work"
block data.csv | bash -euo pipefail -s
(($(wc -l <data.csv) == 20001))
block "$name.cc" >"$name.cc"
(($(wc -l <"$name.cc") <= 72)) || { echo "first_program: $name.cc has more than 72 lines"; exit 1; }
epochs=$(sed -n 's/.*kEpochs = \([0-9]*\).*/\1/p' "$name.cc")
# LibTorch's headers take minutes to optimise.
[[ $name != first_torch ]] && level=-O2 || level=-O0
block "build $name" | sed "s/g++ -O2/\$CXX $level/" | bash -euo pipefail -s
run=$(block "run $name")
[[ $run == "lockstep run -n 2 ./$name" ]] || { echo "first_program: the page runs $name as '$run'"; exit 1; }

# train RANKS FOLDER: one start of the job in that folder. Its lines go to FOLDER/log, after those of earlier starts.
train() {
  mkdir -p "$2"
  cp "$work/data.csv" "$work/$name" "$2"
  cd "$2"
  bash -c "echo \$\$ >pid; exec ${run/-n 2/-n $1}" </dev/null >>log 2>&1
}
losses() { sed -n 's/.*epoch \([0-9]*\): validation loss \([0-9.e+-]*\)$/\1 \2/p' "$1/log"; }

for ranks in 1 2 3; do
  undisturbed=$work/undisturbed_$ranks stopped=$work/stopped_$ranks
  (train $ranks "$undisturbed") || { tail -n 30 "$undisturbed/log"; exit 1; }
  losses "$undisturbed" >"$work/losses_$ranks"
  (($(wc -l <"$work/losses_$ranks") == epochs)) || { tail -n 30 "$undisturbed/log"; exit 1; }
  # It learns, and as on one rank.
  paste -d ' ' "$work/losses_1" "$work/losses_$ranks" | awk -v ranks="$ranks" '
    NR == 1 { first = $2 }
    { apart = $4 - $2; if (apart < 0) apart = -apart; if (apart > 2e-6 + 0.02 * $2) wrong = $0; last = $4 }
    END { printf "%d ranks: validation loss %s, %s on one rank\n", ranks, last, $2
      if (wrong) print "differs from one rank: " wrong
      exit wrong || !(last < first / 4) }'

  # Once more if it came to its end before the signal.
  for try in 1 2 3 4 5; do
    rm -rf "$stopped"
    (trap - ERR; train $ranks "$stopped") &
    job=$!
    until [[ -e $stopped/log ]] && losses "$stopped" | grep -q '^1 '; do
      kill -0 $job 2>/dev/null || break
      sleep 0.01
    done
    kill -TERM "$(<"$stopped/pid")" || true
    code=0
    wait $job || code=$?
    ((code != 0)) && break
    echo "$ranks ranks: try $try was over before the signal"
  done
  ((code == 75)) || { echo "first_program: stopped, it ended with $code; 75 was expected"; tail -n 30 "$stopped/log"; exit 1; }
  (train $ranks "$stopped") || { tail -n 30 "$stopped/log"; exit 1; }
  [[ $(losses "$stopped" | tail -n 1) == "$(tail -n 1 "$work/losses_$ranks")" ]]
  cmp "$undisturbed/$name.safetensors" "$stopped/$name.safetensors"
  echo "$ranks ranks: stopped and resumed, the weights have the same bits"
done
