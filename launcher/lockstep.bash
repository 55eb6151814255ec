# shellcheck shell=bash
# Completion of lockstep's command line for bash. The test e2e_launcher holds the flags to those of --help.
# SPDX-License-Identifier: Apache-2.0
_lockstep() {
  local word=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} words='' i value=false
  [[ $word != [=:@] ]] || word=
  [[ $flag != = ]] || flag=${COMP_WORDS[COMP_CWORD - 2]}
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    words="run ps top inspect trace logs stop report doctor snapshots bisect-step store --help --version"
  elif [[ $command == run ]]; then
    for ((i = 2; i < COMP_CWORD; i++)); do  # what follows the program is the program's
      case ${COMP_WORDS[i]} in
        = | : | @) value=true ;;  # bash splits words at these
        --) return ;;
        --oversubscribe-gpu | --torch-store | --standalone | --*=* | -[nHxt]?* | -t | --tee) value=false ;;
        -*) value=true ;;
        *)
          $value || [[ ${COMP_WORDS[i]} == [0-3] && ${COMP_WORDS[i - 1]} =~ ^(-t|--tee)$ ]] || return
          value=false
          ;;
      esac
    done
  fi
  case $command:$flag in
    run:--nproc-per-node) words="auto cpu gpu" ;;
    run:--bind) words="core numa none" ;;
    run:--backend) words="auto shm tcp mpi nccl single" ;;
    run:--liveness) words="on off" ;;
    run:--hang-timeout) words=off ;;
    run:-t | run:--tee) [[ $word == -* ]] || words="1 2 3" ;;
    run:--rdzv-backend) words="static c10d" ;;
    store:--store-auth) words="on off" ;;
    store:store) words=serve ;;
    snapshots:snapshots) [[ $word == -* ]] || words="diff export" ;;
    top:--interval | trace:--steps | trace:-o | trace:--output | logs:-n | logs:--lines) return ;;
  esac
  if [[ -z $words && $word == -* ]]; then
    case $command in
      run)
        words="--help --help-all -n --nproc-per-node --devices --oversubscribe-gpu --bind --backend
          --log-dir -t --tee --ranks --trace --metrics-port
          --max-restarts --timeout --hang-timeout --liveness --grace --stop-timeout --requeue-exit-code --health-check
          -H --host --hostfile --rsh -x
          --nnodes --node-rank --rdzv-endpoint --rdzv-id --rdzv-timeout --rdzv-wait --rdzv-conf --rdzv-backend --standalone
          --torch-store --master-addr --master-port"
        ;;
      ps) words="--help --json" ;;
      top) words="--help --json --once --interval" ;;
      trace) words="--help --steps -o --output" ;;
      logs) words="--help -f --follow -n --lines" ;;
      doctor) words="--help --json --gpus --probe-timeout -H --host --hostfile --rsh -x --rdzv-endpoint" ;;
      snapshots) words="--help --verify --json" ;;
      store)
        words="--help --host --port --secret-file --store-auth --max-clients --max-memory --max-keys --max-key --max-value
          --max-count --max-waited-keys --max-greeting-clients --max-client-memory --max-held-memory --greeting-timeout"
        ;;
      report) words="--help -o --output" ;;
      inspect | stop | bisect-step) words=--help ;;
    esac
  elif [[ -z $words && " top inspect trace logs stop " == *" $command "* ]]; then
    # compgen expands words as a command line is expanded, and another user may have chosen these.
    words=$("${COMP_WORDS[0]}" ps 2>/dev/null | awk 'NR > 1 && $1 ~ /^[A-Za-z0-9._-]+$/ {print $1}')
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o bashdefault -o default -F _lockstep lockstep
