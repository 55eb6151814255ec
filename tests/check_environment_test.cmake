# cmake -DCHECK=check_environment.cmake -DWORK=folder -P check_environment_test.cmake: the check finds what it is there to find.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/expect_check.cmake")

set(row "| `LOCKSTEP_A` | what |")
set(code "environment.get(\"LOCKSTEP_A\")\;")
set(help "{\"run\", \"run [FLAGS]\", R\"(LOCKSTEP_A says)\"},\n{\"serve\", \"serve [FLAGS]\", R\"(LOCKSTEP_S)\"},\n")
set(doctor "constexpr names = {\"LOCKSTEP_A\"}\;\n")

# expect(NAME FRAGMENT [VARIABLE TEXT]...): a tree of the texts above, with those of VARIABLE replaced, fails with FRAGMENT in its
# message; empty: it passes.
function(expect name fragment)
  set(rows "${row}")
  set(other "LOCKSTEP_A and LOCKSTEP_MPI")
  while(ARGN)
    list(POP_FRONT ARGN variable text)
    set(${variable} "${text}")
  endwhile()
  set(root "${WORK}/${name}")
  file(REMOVE_RECURSE "${root}")
  file(WRITE "${root}/docs/ENVIRONMENT.md" "# Variables\n\n| variable | |\n| --- | --- |\n${rows}\n")
  file(WRITE "${root}/README.md" "${other}\n")
  file(WRITE "${root}/runtime/a.cc" "${code}\n")
  file(WRITE "${root}/launcher/flags/help_text.cc" "${help}")
  file(WRITE "${root}/runtime/base/variables.cc" "${doctor}")
  file(WRITE "${root}/CMakeLists.txt" "option(LOCKSTEP_MPI)\n")
  file(WRITE "${root}/runtime/CMakeLists.txt" "\n")
  file(WRITE "${root}/tests/CMakeLists.txt" "\n")
  expect_check("${name}" "${root}" "${fragment}")
endfunction()

expect(right "")
expect(no_row "no row for LOCKSTEP_B" code "${code} get_int(\"LOCKSTEP_B\")")
expect(no_reader "a row for LOCKSTEP_A, which no source reads" code "int main()")
expect(in_a_comment "a row for LOCKSTEP_A, which no source reads" code "int a // \"LOCKSTEP_A\"")
expect(only_set "a row for LOCKSTEP_A, which no source reads" code "result.set(\"LOCKSTEP_A\", \"1\")")
expect(only_paired "a row for LOCKSTEP_A, which no source reads" code "return {{\"LOCKSTEP_A\", \"1\"}}")
expect(in_a_message "a row for LOCKSTEP_A, which no source reads" code "throw Error(\"set LOCKSTEP_A to 1\")")
expect(no_help "`lockstep run --help` does not name LOCKSTEP_A" help
       "{\"run\", \"run [FLAGS]\", R\"(LOCKSTEP_AB)\"},\n{\"serve\", \"serve [FLAGS]\", R\"(LOCKSTEP_A)\"},\n")
expect(other_help "`lockstep store serve --help` does not name LOCKSTEP_RUN_ID" rows "| `LOCKSTEP_RUN_ID` | what |"
       code "get(\"LOCKSTEP_RUN_ID\")" other "LOCKSTEP_MPI" doctor "names = {\"LOCKSTEP_RUN_ID\"}"
       help "{\"run\", \"run [FLAGS]\", R\"(LOCKSTEP_RUN_ID)\"},\n{\"serve\", \"serve [FLAGS]\", R\"(LOCKSTEP_S)\"},\n")
expect(no_help_wanted "" rows "| `LOCKSTEP_NVML_LIB` | what |" code "get(\"LOCKSTEP_NVML_LIB\")" other "LOCKSTEP_MPI"
       doctor "names = {\"LOCKSTEP_NVML_LIB\"}")
expect(doctor "variables.cc knows" doctor "constexpr names = {\"LOCKSTEP_B\"}\;\n")
expect(renamed "nothing has the name LOCKSTEP_OLD" other "set LOCKSTEP_OLD")
