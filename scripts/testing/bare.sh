# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by scripts/test: --bare, the suite in a bare root and then what that root can't run.
# SPDX-License-Identifier: Apache-2.0

# --bare: the suite in a bare root. What it leaves in build/bare says what else is to be run here.
bare_suite() {
  local listed=
  rm -rf build/bare/{junit.xml,ctest.log,test.out}
  if ! scripts/test --extra bare $($again && echo --again) "${given_arguments[@]+"${given_arguments[@]}"}"; then
    failures+=("the bare root")
    failed_suites+=(bare)
  fi
  count_skips bare
  [[ ! -e build/bare/test.out ]] || unstable_names+=($(sed -n 's/^.*: ONLY WHEN RUN AGAIN: //p' build/bare/test.out))
}

# outputs_of BUILD: all that its compilers and linkers write, but for the headers that a test compiles.
outputs_of() {
  ninja -C "$1" -t targets all | sed -nE 's/^([^:/][^:]*): (C|CXX)_[A-Z_]+__.*/\1/p' |
    grep -vE '_tests\.cmake$|check_(internal_)?headers' | sort
}

# --bare: what a build with all that is installed here has and one in a bare root has not. An installation goes first: in a
# clone in which nothing is built that is what a user does.
build_beyond() {
  local plugins=(--plugins)
  if $peers; then plugins+=(--libtorch); fi
  scripts/install "${plugins[@]}" "$root/build/bare/installed"
  configure_release
  logged build/bare/without.configure.log "cmake" "" cmake --preset release -B build/bare/without \
    -DLOCKSTEP_CUDA=OFF -DLOCKSTEP_LIBTORCH=OFF
  build release peer_programs $(comm -23 <(outputs_of build/release) <(outputs_of build/bare/without)) \
    $(ninja -C build/release -t targets all | sed -n 's/^\(install_[^:/]*_targets\): .*/\1/p')
}

# --bare: runs here what build_beyond built, and what else gave a reason there why it was skipped; but nothing that ran there,
# unless it is of the label whole, or of the label libtorch, which is another LibTorch here.
beyond_suite() {
  local number name skipped whole ran both numbers=
  if [[ ! -e build/bare/junit.xml ]]; then
    failures+=("what a bare root can't run: there is no report of what it ran")
    return
  fi
  build_beyond
  skipped=$(awk -v want=skipped -f scripts/junit.awk build/bare/junit.xml | sed 's/^ *\([^. ]*\)\..*/bin\/\1/' | sort -u)
  both=$(comm -12 <(outputs_of build/release) <(echo "$skipped"))
  # shellcheck disable=SC2086  # words
  [[ -z $both ]] || build release $both
  ran=$(awk -v want=ran -f scripts/junit.awk build/bare/junit.xml)
  whole=$(ctest --preset release -N -L '^(whole|libtorch)$' | sed -n 's/^ *Test *#[0-9]*: //p')
  while read -r number name; do
    if [[ $name != *_NOT_BUILT ]] && { ! grep -qxF -- "$name" <<<"$ran" || grep -qxF -- "$name" <<<"$whole"; }; then
      numbers+=,$number
    fi
  done < <(ctest --preset release -N "${ctest_arguments[@]}" | sed -n 's/^ *Test *#\([0-9]*\): /\1 /p')
  echo "0,0,0$numbers" >build/bare/numbers
  [[ -z $numbers ]] || suite release -I "$root/build/bare/numbers"
}
