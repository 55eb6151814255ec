# C files with what a program may bring of NCCL or CUDA's runtime: each of their functions, which says that it was
# called, and ends the process.
# SPDX-License-Identifier: Apache-2.0

# lockstep_foreign_functions(FILE FUNCTIONS... AT_LEAST count)
function(lockstep_foreign_functions file)
  cmake_parse_arguments(F "" "AT_LEAST" "TABLES" ${ARGN})
  set(names ${F_UNPARSED_ARGUMENTS})
  list(REMOVE_DUPLICATES names)
  list(LENGTH names count)
  if(count LESS F_AT_LEAST)
    message(FATAL_ERROR "${file}: ${count} functions are found; where they are declared has another form now")
  endif()
  set(text "#include <stdio.h>\n#include <stdlib.h>\n"
           "static void called(const char* name) { fprintf(stderr, \"%s of the program was called\\n\", name)\; abort()\; }\n")
  foreach(name ${names})
    list(APPEND text "void ${name}(void) { called(\"${name}\")\; }\n")
  endforeach()
  foreach(name ${F_TABLES})
    list(APPEND text "static void in_${name}(void) { called(\"${name}\")\; }\n"
                     "void (*${name}[64])(void) = {[0 ... 63] = in_${name}}\;\n")
  endforeach()
  list(JOIN text "" text)
  file(CONFIGURE OUTPUT "${file}" CONTENT "${text}" @ONLY)
endfunction()

# lockstep_foreign_names(FILE HEADER...): what the headers declare of NCCL's and CUDA's runtime.
function(lockstep_foreign_names file)
  set(names "")
  foreach(header ${ARGN})
    file(STRINGS "${header}" lines REGEX "(ncclResult_t|const char *\\*|CUDARTAPI) +p?(nccl|cuda)[A-Za-z0-9]+ *\\(")
    foreach(line ${lines})
      if(line MATCHES "((nccl|cuda)[A-Za-z0-9]+) *\\(")
        list(APPEND names "${CMAKE_MATCH_1}")
      endif()
    endforeach()
  endforeach()
  lockstep_foreign_functions("${file}" ${names} AT_LEAST 200)
endfunction()
