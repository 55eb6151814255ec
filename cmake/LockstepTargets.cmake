# lockstep_room(FOLDER LIBS ...): one folder of LockstepRooms, one target.
#
# A room is a static, position-independent library `lockstep_NAME`, alias `lockstep::NAME`, of every .cc in its folder;
# lockstep_room_name() says NAME. It links the rooms that it may include, and LIBS, which are packages. Unit tests and the
# launcher link rooms.
# PCH is the precompiled header it takes, lockstep_pch_rooms unless said otherwise; NONE is none, and no unity build.
# SPDX-License-Identifier: Apache-2.0
function(lockstep_room FOLDER)
  cmake_parse_arguments(ROOM "" "PCH" "LIBS" ${ARGN})
  lockstep_room_name(${FOLDER} name)
  if(NOT ROOM_PCH)
    set(ROOM_PCH lockstep_pch_rooms)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${FOLDER}/*.cc")
  set(deps "")
  foreach(other ${may_include_${FOLDER}})
    lockstep_room_name(${other} other)
    list(APPEND deps lockstep_${other})
  endforeach()
  if(sources)
    add_library(lockstep_${name} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(lockstep_${name} PRIVATE $<BUILD_INTERFACE:lockstep_flags>)
    if(NOT ROOM_PCH STREQUAL "NONE")
      lockstep_use_pch(lockstep_${name} ${ROOM_PCH})
      lockstep_unity(lockstep_${name})
    endif()
  else()
    add_library(lockstep_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(lockstep_${name} ${scope} "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/runtime/include")
  target_link_libraries(lockstep_${name} ${scope} ${deps} ${ROOM_LIBS})
  set_property(TARGET lockstep_${name} PROPERTY LOCKSTEP_LIBS "${ROOM_LIBS}")
  add_library(lockstep::${name} ALIAS lockstep_${name})
endfunction()

# lockstep_room_name(runtime/comm/shm VARIABLE): comm_shm. Of runtime/libtorch it is torch: lockstep::libtorch is the library.
function(lockstep_room_name FOLDER VARIABLE)
  string(REGEX REPLACE "^runtime/(lib)?" "" name "${FOLDER}")
  string(REPLACE "/" "_" name "${name}")
  set(${VARIABLE} "${name}" PARENT_SCOPE)
endfunction()

# lockstep_install("targets" words of install(TARGETS) behind them, with COMPONENT): installs them, and lets the target
# install_COMPONENT_targets build them. scripts/install builds that one, so that it builds all that a component installs.
function(lockstep_install targets)
  install(TARGETS ${targets} ${ARGN})
  cmake_parse_arguments(I "" "COMPONENT;NAMELINK_COMPONENT" "" ${ARGN})
  foreach(component ${I_COMPONENT} ${I_NAMELINK_COMPONENT})
    if(NOT TARGET install_${component}_targets)
      add_custom_target(install_${component}_targets)
    endif()
    add_dependencies(install_${component}_targets ${targets})
  endforeach()
endfunction()

# lockstep_shared(TARGET t OUTPUT lockstep EXPORT core ROOMS runtime/snapshot ... [LINK other] [PRIVATE_SYMBOLS file]): a shared
# library of whole rooms: ROOMS and all that they may include, but for what is in LINK. PRIVATE_SYMBOLS lists what it exports
# for our own libraries alone (LockstepSymbols.cmake).
#
# It takes the rooms' objects, not their archives, so that nothing is left out and nothing is compiled twice. What
# links it must not link a room too: a process that holds a room twice has two registries and two logs.
function(lockstep_shared)
  cmake_parse_arguments(S "" "TARGET;OUTPUT;EXPORT;LINK;PRIVATE_SYMBOLS" "ROOMS" ${ARGN})
  add_library(${S_TARGET} SHARED)
  set(folders "")
  foreach(folder ${S_ROOMS})
    list(APPEND folders ${reach_${folder}})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  set_property(TARGET ${S_TARGET} PROPERTY LOCKSTEP_FOLDERS "${folders}")
  if(S_LINK)
    get_target_property(others ${S_LINK} LOCKSTEP_FOLDERS)
    list(REMOVE_ITEM folders ${others})
  endif()
  foreach(folder ${folders})
    lockstep_room_name(${folder} room)
    get_target_property(type lockstep_${room} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      target_sources(${S_TARGET} PRIVATE $<TARGET_OBJECTS:lockstep_${room}>)
    endif()
    get_target_property(libs lockstep_${room} LOCKSTEP_LIBS)
    target_link_libraries(${S_TARGET} PRIVATE ${libs})
  endforeach()
  target_link_libraries(${S_TARGET} PUBLIC ${S_LINK} PRIVATE $<BUILD_INTERFACE:lockstep_flags>)
  target_include_directories(${S_TARGET} INTERFACE
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/runtime/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_compile_features(${S_TARGET} INTERFACE cxx_std_20)
  set_target_properties(${S_TARGET} PROPERTIES OUTPUT_NAME ${S_OUTPUT} EXPORT_NAME ${S_EXPORT} LINKER_LANGUAGE CXX
                        VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
                        INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON)
  lockstep_export_api(${S_TARGET} PRIVATE_SYMBOLS "${S_PRIVATE_SYMBOLS}")
  add_library(lockstep::${S_EXPORT} ALIAS ${S_TARGET})
endfunction()
