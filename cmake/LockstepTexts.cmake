# Texts with any character in them, where CMake, a shell and the compiler each read some of them as syntax.
# SPDX-License-Identifier: Apache-2.0

# lockstep_text_definition(TARGET NAME "text"): in the target's sources NAME is the text as a string literal.
function(lockstep_text_definition target name text)
  # By number: a semicolon would cut CMake's list of definitions in two, and '$<' begins an expression.
  foreach(pair "\\=134" "\"=042" "$=044" "#=043" "\n=012")
    string(SUBSTRING "${pair}" 0 1 character)
    string(SUBSTRING "${pair}" 2 3 number)
    string(REPLACE "${character}" "\\${number}" text "${text}")
  endforeach()
  string(REPLACE ";" "\\073" text "${text}")
  target_compile_definitions(${target} PRIVATE "${name}=\"${text}\"")
endfunction()

# lockstep_skipped_test(name "reason"): what is not built here is counted as skipped, with its reason.
function(lockstep_skipped_test name reason)
  string(REPLACE "$<" "$<1:$><" reason "${reason}")  # no expression of CMake's
  add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" -E echo "SKIPPED: ${reason}")
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED" TIMEOUT 60)
endfunction()
