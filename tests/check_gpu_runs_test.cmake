# cmake -DCHECK=check_gpu_runs.cmake -DWORK=folder -P check_gpu_runs_test.cmake: the check finds what it is there to find.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/expect_check.cmake")

# expect(NAME CHANGED TEXT FRAGMENT): a row that was written when a file had "one", and that file with TEXT.
function(expect name changed text fragment)
  set(root "${WORK}/${name}")
  file(REMOVE_RECURSE "${root}")
  file(WRITE "${root}/runtime/cuda/a.cc" "one")
  execute_process(COMMAND "${CMAKE_COMMAND}" -DROOT=${root} -DDIGEST=runtime/cuda -P "${CHECK}" ERROR_VARIABLE digest)
  string(STRIP "${digest}" digest)
  file(WRITE "${root}/docs/LIMITS.md" "| code | run | digest | changed |\n| `runtime/cuda` | a card | `${digest}` | ${changed} |\n")
  file(WRITE "${root}/runtime/cuda/a.cc" "${text}")
  expect_check("${name}" "${root}" "${fragment}")
endfunction()

expect(as_it_ran no one "")
expect(changed yes two "")
expect(silent no two "has `runtime/cuda` changed since a card ran it? It says 'no', its files say 'yes'")
expect(forgotten yes one "It says 'yes', its files say 'no'")
expect(unsaid "" two "It says '', its files say 'yes'")
