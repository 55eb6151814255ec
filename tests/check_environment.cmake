# cmake -DROOT=... -P check_environment.cmake: docs/ENVIRONMENT.md has the variables LOCKSTEP_* that are read, and no others.
#
# What is read is what the sources name in a literal of its own, "LOCKSTEP_TIMEOUT", unless they only set it. `lockstep run
# --help` (launcher/flags/help_text.cc) names each variable but those of `in_no_help`; --help of `store serve` names those of
# `in_help_of_serve`. The doctor's list of variables (runtime/base/variables.cc) is the table's. A LOCKSTEP_ name on any other
# page is one that something has.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)

# names_in(RESULT TEXT REGEX): the LOCKSTEP_ names in all that REGEX matches, each once, sorted.
function(names_in result text regex)
  string(REGEX MATCHALL "${regex}" found "${text}")
  string(REGEX MATCHALL "LOCKSTEP_[A-Z0-9_]*[A-Z0-9]" found "${found}")
  list(REMOVE_DUPLICATES found)
  list(SORT found)
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# read_all(RESULT FILE...): their texts, without what would cut CMake's lists.
function(read_all result)
  set(all "")
  foreach(file ${ARGN})
    file(READ "${file}" text)
    string(REGEX REPLACE "[][;]" " " text "${text}")
    string(APPEND all "${text}\n")
  endforeach()
  set(${result} "${all}" PARENT_SCOPE)
endfunction()

set(doctors_list "${ROOT}/runtime/base/variables.cc")
set(page "${ROOT}/docs/ENVIRONMENT.md")
set(in_no_help LOCKSTEP_NVML_LIB LOCKSTEP_LAUNCHER_PID LOCKSTEP_MEMBERSHIP LOCKSTEP_LAUNCHER_FD LOCKSTEP_REPLAY)
set(in_help_of_serve LOCKSTEP_LOG_LEVEL LOCKSTEP_STORE LOCKSTEP_STORE_SECRET LOCKSTEP_STORE_SECRET_FILE LOCKSTEP_RUN_ID
                     LOCKSTEP_PORT_RANGE)

set(globs "")
foreach(folder runtime launcher proto examples)
  foreach(ending cc h cu)
    list(APPEND globs "${ROOT}/${folder}/*.${ending}")
  endforeach()
endforeach()
file(GLOB_RECURSE sources ${globs})
list(REMOVE_ITEM sources "${doctors_list}")
read_all(code ${sources})
string(REGEX REPLACE "(^|[ \t\n])//[^\n]*" "\\1" reading "${code}")
string(REGEX REPLACE "(set|setenv)\\(\"LOCKSTEP_[A-Z0-9_]+\"" "" reading "${reading}")
string(REGEX REPLACE "{\"LOCKSTEP_[A-Z0-9_]+\", \"[^\"]*\"}" "" reading "${reading}")
names_in(read "${reading}" "\"LOCKSTEP_[A-Z0-9_]+\"")

read_all(table "${page}")
names_in(listed "${table}" "\n\\| `LOCKSTEP_[A-Z0-9_]+` \\|")
foreach(name ${read})
  if(NOT name IN_LIST listed)
    message(SEND_ERROR "docs/ENVIRONMENT.md: no row for ${name}, which the sources read")
  endif()
endforeach()
foreach(name ${listed})
  if(NOT name IN_LIST read)
    message(SEND_ERROR "docs/ENVIRONMENT.md: a row for ${name}, which no source reads")
  endif()
endforeach()
if(listed STREQUAL "")
  message(FATAL_ERROR "check_environment: no rows found in ${page}; is ROOT right?")
endif()

# --help: of each command the text in its row of the table.
read_all(help "${ROOT}/launcher/flags/help_text.cc")
foreach(command run "store serve")
  string(REGEX REPLACE "^.* " "" function "${command}")
  string(FIND "${help}" "{\"${function}\", " at)
  if(at LESS 0)
    message(FATAL_ERROR "launcher/flags/help_text.cc: no row of ${function}")
  endif()
  string(SUBSTRING "${help}" ${at} -1 text)
  string(FIND "${text}" ")\"" end)
  string(SUBSTRING "${text}" 0 ${end} help_of_${function})
endforeach()
foreach(name ${listed})
  if(NOT name IN_LIST in_no_help AND NOT help_of_run MATCHES "[^A-Z_]${name}[^A-Z_]")
    message(SEND_ERROR "docs/ENVIRONMENT.md: `lockstep run --help` does not name ${name}")
  endif()
  if(name IN_LIST in_help_of_serve AND NOT help_of_serve MATCHES "[^A-Z_]${name}[^A-Z_]")
    message(SEND_ERROR "docs/ENVIRONMENT.md: `lockstep store serve --help` does not name ${name}")
  endif()
endforeach()

read_all(doctor "${doctors_list}")
names_in(known "${doctor}" "\"LOCKSTEP_[A-Z0-9_]+\"")
if(NOT known STREQUAL listed)
  message(SEND_ERROR "runtime/base/variables.cc knows ${known}, and docs/ENVIRONMENT.md has ${listed}")
endif()

# On the other pages: a name that nothing has is one that was renamed.
file(GLOB_RECURSE others "${ROOT}/cmake/*.cmake" "${ROOT}/tests/*.cc" "${ROOT}/tests/*.h" "${ROOT}/tests/*.py" "${ROOT}/tests/*.sh"
     "${ROOT}/runtime/CMakeLists.txt" "${ROOT}/tests/CMakeLists.txt")
file(GLOB scripts LIST_DIRECTORIES FALSE "${ROOT}/scripts/*")
read_all(has ${others} ${scripts} "${ROOT}/CMakeLists.txt")
names_in(had "${code}${has}" "LOCKSTEP_[A-Z0-9_]+")
file(GLOB pages "${ROOT}/*.md" "${ROOT}/docs/*.md" "${ROOT}/docs/adr/*.md" "${ROOT}/docs/deploy/*.md" "${ROOT}/examples/*.md" "${ROOT}/examples/*/README.md"
     "${ROOT}/benchmarks/*.md" "${ROOT}/proto/*.md")
set(checked 0)
foreach(other ${pages})
  read_all(text "${other}")
  names_in(named "${text}" "LOCKSTEP_[A-Z0-9_]+")
  list(FILTER named EXCLUDE REGEX "^LOCKSTEP_(PRIVATE_)?[0-9]")  # a symbol's version
  foreach(name ${named})
    math(EXPR checked "${checked} + 1")
    if(NOT name IN_LIST had)
      message(SEND_ERROR "${other}: nothing has the name ${name}")
    endif()
  endforeach()
endforeach()
list(LENGTH listed rows)
message(STATUS "check_environment: ${rows} variables, ${checked} mentions on pages")
