# cmake -DCHECK=check_promises.cmake -DWORK=folder -P check_promises_test.cmake: the check finds what it is there to find.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/expect_check.cmake")

# expect(NAME PROMISES FRAGMENT): a page of the row below, with a test that is there, and then other PROMISES.
function(expect name promises fragment)
  set(root "${WORK}/${name}")
  file(REMOVE_RECURSE "${root}")
  file(WRITE "${root}/tests/a_test.cc" "TEST_P(Rank, IsNamed) {\n")
  file(WRITE "${root}/tests/promises.txt" "# A rank\nKilled: named | Rank.IsNamed\n")
  execute_process(COMMAND "${CMAKE_COMMAND}" -DROOT=${root} -DWRITE=ON -P "${CHECK}" OUTPUT_QUIET)
  file(WRITE "${root}/tests/promises.txt" "${promises}")
  expect_check("${name}" "${root}" "${fragment}")
endfunction()

expect(as_written "# A rank\nKilled: named | Rank.IsNamed\n" "")
expect(changed "# A rank\nStopped: named | Rank.IsNamed\n" "docs/PROMISES.md is not what tests/promises.txt says")
expect(renamed "# A rank\nKilled: named | Rank.IsKnown\n" "no source below tests/ defines 'Rank.IsKnown'")
