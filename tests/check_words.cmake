# cmake -DROOT=... -P check_words.cmake: pages are as short as tests/words.txt says, and together at most 24,600 words.
#
# A line of tests/words.txt is "LIMIT PAGE", words counted as by wc -w. A page that users or contributors read has a line;
# what is generated or a record of its kind (`records` below) has none.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)

set(most 24600)
set(records CHANGELOG.md docs/ERRORS.md docs/PROMISES.md)

file(GLOB pages RELATIVE "${ROOT}" "${ROOT}/*.md" "${ROOT}/docs/*.md" "${ROOT}/examples/*.md" "${ROOT}/examples/*/README.md"
     "${ROOT}/benchmarks/README.md")
list(REMOVE_ITEM pages ${records})
file(STRINGS "${ROOT}/tests/words.txt" lines REGEX "^[0-9]+ [^ ]+$")
set(all 0)
foreach(line ${lines})
  string(REGEX MATCH "^([0-9]+) (.*)$" found "${line}")
  set(limit_of_${CMAKE_MATCH_2} ${CMAKE_MATCH_1})
  if(NOT CMAKE_MATCH_2 IN_LIST pages)
    message(SEND_ERROR "tests/words.txt: there is no page ${CMAKE_MATCH_2}")
  endif()
endforeach()
foreach(page ${pages})
  file(READ "${ROOT}/${page}" text)
  string(REGEX REPLACE "[^ \t\n]+" "w" text "${text}")
  string(REGEX REPLACE "[ \t\n]" "" text "${text}")
  string(LENGTH "${text}" words)
  math(EXPR all "${all} + ${words}")
  if(NOT DEFINED limit_of_${page})
    message(SEND_ERROR "${page}: has no line in tests/words.txt")
  elseif(words GREATER limit_of_${page})
    message(SEND_ERROR "${page}: has ${words} words, its limit is ${limit_of_${page}}; say less, or move what answers another question")
  endif()
endforeach()
if(all GREATER most)
  message(SEND_ERROR "the pages have ${all} words together, their limit is ${most}")
endif()
message(STATUS "check_words: ${all} words")
