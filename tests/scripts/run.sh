#!/usr/bin/env bash
# run.sh SOURCE WORK: the scripts' own behaviour, with an apt-get that only writes down what it was asked.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source=$1 work=$2
rm -rf "$work"
mkdir -p "$work/bin" "$work/clone"
# A clone of its own, so that build/ is not touched.
mkdir "$work/clone/tests"
cp -r "$source/scripts" "$work/clone/"
cp -r "$source/tests/extra" "$work/clone/tests/"

cat >"$work/bin/apt-get" <<FAKE
#!/bin/sh
echo "\$*" >>"$work/calls"
exit \${APT_CODE:-0}
FAKE
printf '#!/bin/sh\nexec "$@"\n' >"$work/bin/sudo"  # sudo env ... apt-get becomes env ... apt-get
chmod +x "$work/bin/apt-get" "$work/bin/sudo"
export PATH=$work/bin:$PATH

failed=0
# expect NAME WANTED_CODE PATTERN COMMAND...: exit code, and a line of its output.
expect() {
  local name=$1 wanted=$2 pattern=$3 code=0 out
  shift 3
  out=$("$@" 2>&1) || code=$?
  if ((code != wanted)) || ! grep -qE -- "$pattern" <<<"$out"; then
    printf '%s: wanted code %s and a line like "%s", got code %s and:\n%s\n' "$name" "$wanted" "$pattern" "$code" "$out"
    failed=1
  fi
}
# in_lib COMMANDS: runs them as a script beside lib.sh would.
in_lib() { bash -c "source '$work/clone/scripts/lib.sh'; $1"; }

# Nothing missing: nobody is asked, so that it works without network and without rights.
expect nothing_missing 0 '^done$' in_lib 'need_packages bash coreutils; echo done'
[[ ! -e $work/calls ]] || { echo "apt-get was called although nothing was missing"; failed=1; }

expect missing 0 'installing 1 packages.*: no-such-package$' in_lib 'need_packages bash no-such-package'
grep -q -- 'install --no-install-recommends no-such-package' "$work/calls" || { echo "calls:"; cat "$work/calls"; failed=1; }

APT_CODE=100 expect apt_fails 1 'apt-get install failed \(exit code 100.*By hand: apt-get install .*no-such-package$' \
  in_lib 'need_packages no-such-package'
expect logged_shows_the_end 1 '^the real reason$' in_lib 'logged log what remedy sh -c "echo the real reason; exit 3"'
# A remedy is for a cause that was seen.
told() { in_lib "logged log what '' sh -c 'echo \"$1\"; exit 1'"; }
expect cause_unknown 1 ' failed \(exit code 1; all of it in log\)\.$' told 'CMake Error: what nobody has seen'
expect cause_network 1 'No server was reached: is there a network' told 'Temporary failure resolving deb.debian.org'
expect cause_no_package 1 'do not have a package of that name' told 'E: Unable to locate package libfoo-dev'
expect cause_full_disk 1 'The disk is full' told 'write: No space left on device'
expect cause_no_right 1 'choose another place, or another user' told 'file cannot create directory: /usr/x. Permission denied'
expect cause_other_clone 1 'remove it and try again' told 'CMake Error: The source /a does not match the source /b used to generate cache'
expect errors_are_one_line 1 'failed at line [0-9]+ of .*: false$' in_lib 'false'

for script in quickstart install package release test-gpu; do
  expect "$script refuses" 1 "unknown argument '--bogus'; usage: scripts/$script" "$work/clone/scripts/$script" --bogus
done
for extra in "$work/clone/tests/extra/"*; do
  extra=$(basename "$extra")
  expect "extra $extra refuses" 1 "unknown (argument|option) '?--bogus.*scripts/test --extra $extra" \
    "$work/clone/scripts/test" --extra "$extra" --bogus
  expect "extra $extra helps" 0 "^scripts/test --extra $extra[ :]" env -C "$work" clone/scripts/test --extra "$extra" --help
  expect "extra $extra is listed" 0 "^$extra  " "$work/clone/scripts/test" --extra
done
expect extra_of_no_name 1 "--extra 'bogus': there are bare cuda" "$work/clone/scripts/test" --extra bogus
expect quick_and_sanitizers 1 'give one' "$work/clone/scripts/test" --quick --sanitizers
for script in quickstart install package release test test-gpu; do
  expect "$script helps" 0 "^scripts/$script \\[" "$work/clone/scripts/$script" --help
  expect "$script helps from elsewhere" 0 "^scripts/$script \\[" env -C "$work/clone/scripts" "./$script" --help
done
expect install_wants_a_prefix 1 'where to' "$work/clone/scripts/install"
expect install_wants_one_prefix 1 "two prefixes, '.*' and 'b'; usage" "$work/clone/scripts/install" a b
# What is not on the list stays, and so does a folder that has something else, or was there before.
prefix=$work/prefix
mkdir -p "$prefix/bin" "$prefix/lib/lockstep/plugins" "$prefix/share/lockstep"
touch "$prefix/bin/lockstep" "$prefix/bin/other" "$prefix/lib/lockstep/plugins/one.so"
printf '%s\n' ./bin/lockstep ./lib/ ./lib/lockstep/ ./lib/lockstep/plugins/ ./lib/lockstep/plugins/one.so ./lib/gone.so \
  ./share/lockstep/ ./share/lockstep/install_manifest >"$prefix/share/lockstep/install_manifest"
expect uninstall 0 "removed 8 files and folders from $prefix\$" "$work/clone/scripts/install" --uninstall "$prefix"
left=$(cd "$prefix" && find . -mindepth 1 | sort | xargs)
[[ $left == "./bin ./bin/other ./share" ]] || { echo "uninstall left: $left"; failed=1; }
expect uninstall_of_nothing 1 "there is no $prefix/share/lockstep/install_manifest" "$work/clone/scripts/install" --uninstall "$prefix"
mkdir -p "$prefix/share/lockstep"
for line in ../other /etc/passwd ./bin/../../other other; do
  printf './bin/other\n%s\n' "$line" >"$prefix/share/lockstep/install_manifest"
  expect "uninstall of $line" 1 "install_manifest is damaged" "$work/clone/scripts/install" --uninstall "$prefix"
done
[[ -e $prefix/bin/other ]] || { echo "uninstall removed by a damaged list"; failed=1; }
expect package_wants_one_folder 1 "two folders, 'a' and 'b'; usage" "$work/clone/scripts/package" a b
expect release_wants_one_folder 1 "two folders, 'a' and 'b'; usage" "$work/clone/scripts/release" a b
expect bare_is_for_the_day 1 'neither --quick nor --nightly' "$work/clone/scripts/test" --bare --nightly
# What a bare root lacks here is told, with what to do about it.
why() { in_lib "source '$work/clone/scripts/bare_root.sh'; $1; why_no_root; exit 1"; }
expect bare_needs_debootstrap 1 'it takes root|debootstrap is not installed. Remedy: apt-get install debootstrap' why 'command() { return 1; }'
expect bare_needs_namespaces 1 'it takes root|can be made here \(unshare: not here\). Remedy: .*--privileged' why \
  'command() { return 0; }; unshare() { echo "unshare: not here"; return 1; }'
mkdir -p "$work/clone/examples/01_one" "$work/clone/examples/common"
for arguments in --with '--with 02_two'; do
  # shellcheck disable=SC2086  # words
  expect "install $arguments" 1 "no such example; there are: 01_one$" "$work/clone/scripts/install" $arguments
done
expect runtime_packages_wants_a_prefix 1 'usage: scripts/runtime-packages' "$work/clone/scripts/runtime-packages"
expect runtime_packages_of_nothing 1 'no-such-folder has no bin and lib' "$work/clone/scripts/runtime-packages" no-such-folder
# The report that scripts/test reads, from a real ctest over tests that fail in each of the ways there are.
mkdir "$work/suite"
cat >"$work/suite/CTestTestfile.cmake" <<'SUITE'
add_test(passes true)
add_test(fails sh -c "seq 60; echo '<last> & \"line\"'; exit 3")
add_test(crashes sh -c "kill -SEGV \$\$")
add_test(absent /no/such/program)
add_test(skips sh -c "echo 'SKIPPED: no <such> thing'; exit 77")
set_tests_properties(skips PROPERTIES SKIP_RETURN_CODE 77)
add_test(skips_as_gtest sh -c "echo 'a_test.cc:7: Skipped'; echo 'no namespaces'; echo '[  SKIPPED ] a (0 ms)'")
set_tests_properties(skips_as_gtest PROPERTIES SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
add_test(runs_several sh -c "echo 'a_test.cc:7: Skipped'; echo 'no disk'; echo; echo 'b_test.cc:9: Skipped'; echo 'no mount'")
SUITE
(cd "$work/suite" && ctest --output-junit "$work/suite/junit.xml" >/dev/null 2>&1) || true
report() { awk "-vwant=$1" -vlines=40 -f "$source/scripts/junit.awk" "$work/suite/junit.xml"; }
expect skip_reason 0 '^  skips: no <such> thing$' report skipped
expect skip_reason_of_gtest 0 '^  skips_as_gtest: no namespaces$' report skipped
expect skips_within_a_process 0 '^  runs_several: no disk$' report skipped
expect the_process_ran 0 '^runs_several$' report ran
expect failed_is_named 0 '^---- fails failed after' report failed
expect failed_shows_the_end 0 '^<last> & "line"$' report failed
expect crashed_is_named 0 '^---- crashes failed after' report failed
expect not_run_has_failed 0 '^---- absent failed .*: Unable to find executable$' report failed
lines=$(report failed | grep -c '^[0-9]*$')
((lines == 39)) || { echo "report failed: wanted 39 of the 60 numbers before the last line, got $lines"; failed=1; }
lines=$(report skipped | wc -l)
((lines == 4)) || { echo "report skipped: wanted 4 lines, got $lines"; failed=1; }

# scripts/test itself, over a project whose tests fail only in their first run, and always, and as nothing may fail.
mkdir "$work/project"
cp -r "$source/scripts" "$source/CMakePresets.json" "$work/project/"
cat >"$work/project/CMakeLists.txt" <<'PROJECT'
cmake_minimum_required(VERSION 3.25)
project(tests_only NONE)
enable_testing()
add_test(NAME passes COMMAND true)
foreach(test IN ITEMS first second third fourth)
  add_test(NAME ${test} COMMAND sh -c "test -e ${test} || { touch ${test}; echo cause of ${test}; exit 1; }")
endforeach()
add_test(NAME always COMMAND sh -c "exit 1")
add_test(NAME crashes_first COMMAND sh -c "test -e c || { touch c; kill -SEGV $$; }")
add_test(NAME races_first COMMAND sh -c "test -e r || { touch r; echo 'WARNING: ThreadSanitizer: data race'; exit 66; }")
add_test(NAME commit COMMAND true)
set_tests_properties(commit PROPERTIES LABELS unit)
add_test(NAME night COMMAND true)
set_tests_properties(night PROPERTIES LABELS "unit;nightly")
if(LACKS)
  add_test(NAME lacking COMMAND sh -c "echo 'SKIPPED: no toolkit'; exit 77")
  set_tests_properties(lacking PROPERTIES SKIP_RETURN_CODE 77)
else()
  add_test(NAME lacking.as_two COMMAND true)
  add_test(NAME lacking COMMAND true)
endif()
add_test(NAME of_all COMMAND true)
set_tests_properties(of_all PROPERTIES LABELS whole)
add_custom_target(peer_programs)
PROJECT
# The bare root of this project: a build without what its test wants.
mkdir -p "$work/project/tests/extra"
cat >"$work/project/tests/extra/bare" <<'BARE'
#!/bin/sh
mkdir -p build/bare && cd "$(dirname "$0")/../.." && cmake -S . -B build/bare/there -DLACKS=ON >build/bare/log || exit
touch build/bare/test.out
exec ctest --test-dir build/bare/there --output-junit "$PWD/build/bare/junit.xml" "$@"
BARE
printf '#!/bin/sh\necho "install $*" >>"%s"\n' "$work/calls" >"$work/project/scripts/install"
chmod +x "$work/project/tests/extra/bare" "$work/project/scripts/install"
# test_script TESTS ARGUMENTS...: with those that fail in their first run about to do so.
test_script() {
  local tests=$1
  shift
  rm -rf "$work/project/build"
  "$work/project/scripts/test" "$@" -R "$tests"
}
expect plain_leaves_the_night_out 1 'tests failed out of 12$' "$work/project/scripts/test"
expect the_night_is_counted 1 '1 tests of the label nightly were left to' "$work/project/scripts/test"
expect plain_with_options 1 'tests failed out of 12$' "$work/project/scripts/test" -j 2
expect quick_is_for_commits 0 'tests passed, 0 tests failed out of 1$' "$work/project/scripts/test" --quick
expect night_by_name 0 'tests passed, 0 tests failed out of 1$' "$work/project/scripts/test" -R '^night$'
expect fails_once 1 'FAILED: the release suite' test_script '^(passes|first)$'
expect again_passes 0 '^scripts/test: passed$' test_script '^(passes|first|second|third)$' --again
expect again_is_told 0 'passed when run again, alone; the cause is owed' test_script '^first$' --again
expect again_is_loud 0 '^scripts/test: ONLY WHEN RUN AGAIN: first second$' test_script '^(first|second)$' --again
expect again_shows_why 0 '^cause of first$' test_script '^first$' --again
expect again_for_three 1 'FAILED: the release suite' test_script '^(first|second|third|fourth)$' --again
expect again_fails 1 'FAILED: the release suite' test_script '^(first|always)$' --again
expect again_no_crash 1 'FAILED: the release suite' test_script '^crashes_first$' --again
expect again_no_race 1 'FAILED: the release suite' test_script '^races_first$' --again

# --bare: here only what was skipped there, what is only here, and what looks at the whole.
cd "$work/project"
expect bare_here 0 'tests passed, 0 tests failed out of 3$' test_script '^(passes|lacking|lacking[.]as_two|of_all)$' --bare
expect bare_there 0 '^  bare: lacking: no toolkit$' test_script '^(passes|lacking)$' --bare
expect bare_fails_there 1 'FAILED: the bare root' test_script '^(lacking|always)$' --bare
expect bare_names_its_parts 0 "^  [0-9]* s: what a bare root can't run$" test_script '^lacking$' --bare
grep -qx "install --plugins $work/project/build/bare/installed" "$work/calls" || { echo "--bare installs nothing: $(cat "$work/calls")"; failed=1; }

# scripts/tidy over a database of its own making, by a clang-tidy that only says what it reads, and that one unit is wrong.
lint=$work/lint
mkdir -p "$lint"
cp -r "$source/scripts" "$lint/"
cat >"$work/bin/cmake" <<FAKE
#!/bin/sh
[ "\$1" = --version ] && exec echo "cmake version 3.25.1"
echo "cmake \$*" >>"$work/calls"
mkdir -p build/tidy
for unit in build/tidy/runtime/CMakeFiles/lockstep_net.dir/Unity/unity_0.cxx runtime/base/alone.cc tests/unit/net/net_test.cc; do
  printf '  "file": "%s/%s"\n' "$lint" "\$unit"
done >build/tidy/compile_commands.json
FAKE
cat >"$work/bin/clang-tidy" <<FAKE
#!/bin/sh
for last; do :; done
echo "\$last" >>"$work/read"
case \$last in *alone.cc) echo "\$last:3:1: error: alone is wrong"; exit 1 ;; esac
FAKE
chmod +x "$work/bin/cmake" "$work/bin/clang-tidy"
# reads PATHS CODE ARGUMENTS...: what scripts/tidy reads, in order, and how it ends.
reads() {
  local wanted=$1 code=$2 got=0
  shift 2
  rm -f "$work/read"
  "$lint/scripts/tidy" "$@" >"$work/tidy.out" 2>&1 || got=$?
  touch "$work/read"
  [[ $(sort "$work/read" | sed "s|^$lint/||" | xargs) == "$wanted" && $got == "$code" ]] && return
  echo "tidy $*: wanted it to read '$wanted' and end with $code, got $got: $(cat "$work/read" "$work/tidy.out")"
  failed=1
}
unity=build/tidy/runtime/CMakeFiles/lockstep_net.dir/Unity/unity_0.cxx
reads "$unity runtime/base/alone.cc" 1
grep -q 'alone.cc:3:1: error: alone is wrong' "$work/tidy.out" || { echo "tidy hides the error: $(cat "$work/tidy.out")"; failed=1; }
reads "$unity" 0 lockstep_net
reads '' 1 no_such_room
grep -q "no source of ours with 'no_such_room'" "$work/tidy.out" || { echo "tidy: $(cat "$work/tidy.out")"; failed=1; }
expect tidy_takes_one_pattern 1 "one pattern, not 'a' and 'b'" "$lint/scripts/tidy" a b
expect tidy_refuses 1 "unknown argument '--all'; usage: scripts/tidy" "$lint/scripts/tidy" --all
# That cmake makes no build/release: the installation ends after it was asked for one.
expect install_without_cuda 1 'the build of build/release failed' "$lint/scripts/install" --without-cuda "$work/prefix"
grep -q '^cmake --preset release .*-DLOCKSTEP_CUDA=OFF' "$work/calls" ||
  { echo "install --without-cuda: $(grep ^cmake "$work/calls")"; failed=1; }
exit $failed
