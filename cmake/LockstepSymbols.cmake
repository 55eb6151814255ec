# What our shared libraries export, and under which symbol version. docs/adr says why; tests/abi holds it.
#
# All code is built with hidden visibility. LOCKSTEP_API (lockstep/base/api.h) exports what users call, under the version
# LOCKSTEP_x.y; LOCKSTEP_INTERNAL_API (runtime/base/internal_api.h) what our own libraries and plug-ins need of each
# other, under LOCKSTEP_PRIVATE_x.y.z: private_symbols.txt lists it, and the target update_private_symbols writes that.
# SPDX-License-Identifier: Apache-2.0
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

set(LOCKSTEP_PUBLIC_VERSION "LOCKSTEP_${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
set(LOCKSTEP_PRIVATE_VERSION "LOCKSTEP_PRIVATE_${PROJECT_VERSION}")
set(LOCKSTEP_PRIVATE_SYMBOLS "${CMAKE_CURRENT_LIST_DIR}/private_symbols.txt")

# lockstep_version_script(TARGET TEXT): links TARGET with a version script of TEXT.
function(lockstep_version_script target text)
  set(script "${PROJECT_BINARY_DIR}/CMakeFiles/${target}.map")
  file(CONFIGURE OUTPUT "${script}" CONTENT "${text}" @ONLY)
  target_link_options(${target} PRIVATE "LINKER:--version-script=${script}")
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${script}")
endfunction()

# lockstep_export_api(TARGET [PRIVATE_SYMBOLS file]): a library's symbols under their two versions. An exact name wins over
# a pattern. What is not in namespace lockstep stays inside: templates of the standard library and of packages.
function(lockstep_export_api target)
  cmake_parse_arguments(E "" "PRIVATE_SYMBOLS" "" ${ARGN})
  set(text "")
  if(E_PRIVATE_SYMBOLS)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${E_PRIVATE_SYMBOLS}")
    file(STRINGS "${E_PRIVATE_SYMBOLS}" names REGEX "^_Z")
    list(TRANSFORM names REPLACE " .*$" "")
    list(JOIN names ";\n    " names)
    set(text "${LOCKSTEP_PRIVATE_VERSION} {\n  global:\n    ${names};\n};\n")
  endif()
  # Functions, their own statics, and of classes typeinfo and its name, vtables and the thunks in them. Not lockstep::cpu:
  # g++ exports the dispatchers of its target_clones whatever their visibility.
  string(APPEND text "${LOCKSTEP_PUBLIC_VERSION} {\n  global:\n    _ZN8lockstep[!3]*;\n    _ZN8lockstep3[!c]*;\n"
         "    _ZN8lockstep3c[!p]*;\n    _ZNK8lockstep*;\n    _ZNKR8lockstep*;\n")
  foreach(kind _ZZN _ZZNK _ZGVN _ZGVZN _ZGVZNK _ZTIN _ZTSN _ZTVN _ZTTN _ZTh*_N _ZTh*_NK _ZTv*_N _ZTv*_NK)
    string(APPEND text "    ${kind}8lockstep*;\n")
  endforeach()
  string(APPEND text "  local:\n    *;\n};\n")
  lockstep_version_script(${target} "${text}")
endfunction()

# lockstep_export_plugin(TARGET): a plug-in's entry points, and nothing of what it is linked with.
function(lockstep_export_plugin target)
  lockstep_version_script(${target}
    "${LOCKSTEP_PRIVATE_VERSION} {\n  global:\n    lockstep_plugin_backend;\n    lockstep_plugin_device;\n    lockstep_plugin_kernels;\n  local:\n    *;\n};\n")
endfunction()
