# Plug-ins: shared libraries that the core loads when they are asked for, so that it links none of what they bring.
#
# Each is chosen by LOCKSTEP_NAME: AUTO builds it if its packages are there, ON demands them, OFF, which it is within another
# project, leaves it out. What was found is said at configure time. Under sanitizers AUTO leaves it out too: the foreign library is built without them,
# and what they then report is its locking and its memory. comm/wire, all but the bytes' way, runs under them without it.
# SPDX-License-Identifier: Apache-2.0

foreach(name mpi cuda)
  string(TOUPPER "${name}" upper)
  set(LOCKSTEP_${upper} ${LOCKSTEP_PACKAGES_DEFAULT} CACHE STRING
      "Build the plug-in ${name}: AUTO (if its packages are there), ON or OFF")
  set_property(CACHE LOCKSTEP_${upper} PROPERTY STRINGS AUTO ON OFF)
endforeach()

# The stamp by which the core knows a plug-in of its own build: version, compiler, machine, sanitizers, and the headers
# whose objects pass between them.
set(plugin_headers
    runtime/include/lockstep/job/cause.h runtime/include/lockstep/base/deadline.h
    runtime/include/lockstep/base/error.h runtime/base/mutex.h runtime/base/observed_clock.h
    runtime/include/lockstep/base/owner_process.h runtime/base/unwind_guard.h runtime/comm/arguments.h
    runtime/comm/backend.h runtime/comm/inline_scalars.h runtime/comm/subgroups.h runtime/store/secret.h
    runtime/comm/group_internals.h runtime/comm/progress.h runtime/comm/op_record.h
    runtime/include/lockstep/comm/process_group.h runtime/comm/reduction.h runtime/comm/process_group_base.h
    runtime/comm/transfer.h runtime/include/lockstep/comm/work.h runtime/include/lockstep/device/buffer_view.h
    runtime/include/lockstep/device/device.h runtime/include/lockstep/device/device_runtime.h
    runtime/include/lockstep/device/dtype.h runtime/include/lockstep/device/stream.h runtime/rendezvous/consensus.h
    runtime/rendezvous/identity/identity.h runtime/include/lockstep/rendezvous/roster.h runtime/include/lockstep/store/store.h
    runtime/include/lockstep/base/random.h runtime/tensor/kernels.h)
file(GLOB wire_headers RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/runtime/comm/failure/*.h"
     "${PROJECT_SOURCE_DIR}/runtime/comm/wire/*.h" "${PROJECT_SOURCE_DIR}/runtime/comm/hosts/*.h")
list(APPEND plugin_headers ${wire_headers})
set(stamp_text "${CMAKE_CXX_FLAGS} ${LOCKSTEP_SANITIZE} ${CMAKE_CXX_STANDARD}")
foreach(header ${plugin_headers})
  file(SHA256 "${PROJECT_SOURCE_DIR}/${header}" hash)
  string(APPEND stamp_text " ${hash}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${header}")
endforeach()
string(SHA256 stamp_hash "${stamp_text}")
string(SUBSTRING "${stamp_hash}" 0 16 stamp_hash)
set(LOCKSTEP_BUILD_STAMP "${PROJECT_VERSION} ${CMAKE_CXX_COMPILER_ID}-${CMAKE_CXX_COMPILER_VERSION} \
${CMAKE_SYSTEM_PROCESSOR} ${stamp_hash}")

# lockstep_plugin(NAME mpi DIR comm/mpi LIBS packages...): liblockstep_NAME.so of every .cc in the folder, or of SOURCES.
function(lockstep_plugin)
  cmake_parse_arguments(P "" "NAME;DIR" "SOURCES;LIBS" ${ARGN})
  if(P_DIR)
    file(GLOB P_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${P_DIR}/*.cc")
  endif()
  add_library(lockstep_plugin_${P_NAME} MODULE ${P_SOURCES})
  target_link_libraries(lockstep_plugin_${P_NAME} PRIVATE lockstep_flags lockstep_shared_core spdlog::spdlog ${P_LIBS})
  target_include_directories(lockstep_plugin_${P_NAME} PRIVATE "${PROJECT_SOURCE_DIR}")
  lockstep_use_pch(lockstep_plugin_${P_NAME} lockstep_pch_rooms)
  lockstep_unity(lockstep_plugin_${P_NAME})
  target_compile_definitions(lockstep_plugin_${P_NAME} PRIVATE "LOCKSTEP_BUILD_STAMP=\"${LOCKSTEP_BUILD_STAMP}\"")
  set_target_properties(lockstep_plugin_${P_NAME} PROPERTIES OUTPUT_NAME lockstep_${P_NAME} INSTALL_RPATH "$ORIGIN")
  lockstep_export_plugin(lockstep_plugin_${P_NAME})
endfunction()

# lockstep_plugin_choice(NAME found "what was found" "what to install"): sets LOCKSTEP_HAS_NAME, and where that is false
# LOCKSTEP_WHY_NO_NAME.
function(lockstep_plugin_choice name found what remedy)
  string(TOUPPER "${name}" upper)
  set(has FALSE)
  set(why "")
  if(LOCKSTEP_${upper} STREQUAL "OFF")
    set(why "it was switched off (LOCKSTEP_${upper}=OFF)")
  elseif(LOCKSTEP_SANITIZE AND LOCKSTEP_${upper} STREQUAL "AUTO")
    set(why "its library is built without sanitizers")
    if(NOT name STREQUAL "cuda")
      string(APPEND why "; LOCKSTEP_${upper}=ON builds it all the same")
    endif()
  elseif(found)
    message(STATUS "lockstep: plug-in ${name}: with ${what}")
    set(has TRUE)
  elseif(LOCKSTEP_${upper} STREQUAL "AUTO")
    set(why "its package was not found; install ${remedy}")
  elseif(LOCKSTEP_${upper})
    message(FATAL_ERROR "LOCKSTEP_${upper}=ON and its package was not found: install ${remedy}")
  endif()
  if(NOT has)
    message(STATUS "lockstep: plug-in ${name}: left out, ${why}")
  endif()
  set(LOCKSTEP_HAS_${upper} ${has} PARENT_SCOPE)
  set(LOCKSTEP_WHY_NO_${upper} "${why}" PARENT_SCOPE)
endfunction()
