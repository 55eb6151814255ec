# expect_check(NAME ROOT FRAGMENT): the script CHECK fails on the tree ROOT with FRAGMENT in its message, white space aside; empty: it
# passes.
# SPDX-License-Identifier: Apache-2.0
function(expect_check name root fragment)
  execute_process(COMMAND "${CMAKE_COMMAND}" -DROOT=${root} -P "${CHECK}" RESULT_VARIABLE code OUTPUT_VARIABLE out
                  ERROR_VARIABLE err)
  string(REGEX REPLACE "[ \n]+" " " err "${err}")
  string(FIND "${err}" "${fragment}" at)
  if(fragment STREQUAL "" AND NOT code EQUAL 0)
    message(SEND_ERROR "${name}: should pass, but: ${err}")
  elseif(NOT fragment STREQUAL "" AND (code EQUAL 0 OR at LESS 0))
    message(SEND_ERROR "${name}: should fail with '${fragment}', got code ${code}: ${err}")
  endif()
endfunction()
