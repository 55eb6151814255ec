# shellcheck shell=bash
# Completion of lockstep's command line for bash. The flags, and the words that a value may be, are those of --help.
# SPDX-License-Identifier: Apache-2.0
_lockstep() {
  local word=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} words='' i value=false
  local line name names help=("$command" --help) LC_ALL=C
  local -A forms=()  # "core|numa|none" of --bind; empty for a flag without a value
  [[ $word != [=:@] ]] || word=
  [[ $flag != = ]] || flag=${COMP_WORDS[COMP_CWORD - 2]}
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    words="run ps top inspect trace logs stop report doctor snapshots bisect-step replay store --help --version"
  else
    case $command in
      run) help=(run --help-all) ;;
      store) help=(store serve --help) ;;
    esac
    while IFS= read -r line; do
      [[ $line =~ ^\ \ (-[^ ]+)(\ ([^ ]+))?(\ |$) ]] || continue
      IFS=, read -ra names <<<"${BASH_REMATCH[1]}"
      for name in "${names[@]}"; do forms[$name]=${BASH_REMATCH[3]}; done
    done < <("${COMP_WORDS[0]}" "${help[@]}" 2>/dev/null)
    unset 'forms[-h]'
  fi
  if [[ $command == run ]]; then
    for ((i = 2; i < COMP_CWORD; i++)); do  # what follows the program is the program's
      case ${COMP_WORDS[i]} in
        = | : | @) value=true ;;  # bash splits words at these
        --) return ;;
        --*=* | -[!-]?* | -t | --tee) value=false ;;
        -*) if [[ ${forms[${COMP_WORDS[i]//_/-}]-unknown} ]]; then value=true; else value=false; fi ;;
        *)
          $value || [[ ${COMP_WORDS[i]} == [0-3] && ${COMP_WORDS[i - 1]} =~ ^(-t|--tee)$ ]] || return
          value=false
          ;;
      esac
    done
  fi
  case $command:$flag in
    run:--backend) words="auto shm tcp mpi nccl single" ;;
    store:store) words=serve ;;
    snapshots:snapshots) [[ $word == -* ]] || words="diff export" ;;
    *:-*)
      if [[ ${forms[${flag//_/-}]-} && $word != -* ]]; then
        IFS='|' read -ra names <<<"${forms[${flag//_/-}]}"
        for name in "${names[@]}"; do [[ ! $name =~ ^[a-z0-9]+$ ]] || words+=" $name"; done
        [[ $words ]] || return
      fi
      ;;
  esac
  if [[ -z $words && $word == -* ]]; then
    words=${!forms[*]}
  elif [[ -z $words && " top inspect trace logs stop " == *" $command "* ]]; then
    # compgen expands words as a command line is expanded, and another user may have chosen these.
    words=$("${COMP_WORDS[0]}" ps 2>/dev/null | awk 'NR > 1 && $1 ~ /^[A-Za-z0-9._-]+$/ {print $1}')
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o bashdefault -o default -F _lockstep lockstep
