# cmake -DROOT=... [-DARROWS=ON] -P check_layers.cmake: holds every #include of runtime/, proto/ and launcher/ to the
# include rule.
#
# A room may include itself and what cmake/LockstepRooms.cmake names for it; and a package only where this page says so.
# A folder is in no room above it. With ARROWS each room that a row names must be included, too.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)

include("${CMAKE_CURRENT_LIST_DIR}/../cmake/LockstepRooms.cmake")

# Packages and system headers that have one home: a pattern, then the rooms that may include it.
set(homes
    "^spdlog/|runtime/base"
    "^(openssl/|xxhash)|runtime/base"
    "^(oneapi/|dnnl)|runtime/tensor/cpu"
    "^nlohmann/|runtime/checkpoint runtime/checkpoint/snapshot runtime/rendezvous/identity launcher/placement launcher/observe
     launcher/live launcher/verdict launcher/client launcher/doctor launcher/snapshots launcher/bisect launcher/probe"
    "^CLI/|launcher/flags"
    # Sockets are made in net; the store's server and clients and comm/tcp send and receive on those they were given.
    "^sys/socket\\.h$|runtime/net runtime/store/server runtime/store/client runtime/membership runtime/comm/tcp"
    "^(sys/un|netdb)\\.h$|runtime/net"
    "^(netinet|arpa)/|runtime/net"
    "^mpi\\.h$|runtime/comm/mpi"
    "^(torch/|ATen/|c10/)|runtime/libtorch"
    "^cuda|runtime/cuda runtime/comm/nccl runtime/tensor/cuda"
    "^cublas|runtime/tensor/cuda"
    "^nccl|runtime/comm/nccl"
    "^(gtest|gmock)/|")

# The room of a path: its folder. A public header, lockstep/ddp/reducer.h below runtime/include, belongs to runtime/ddp.
# A part is a folder of the room above it.
set(parts runtime/cuda/absent)
function(room_of path result)
  string(REGEX REPLACE "^runtime/include/" "" path "${path}")
  if(DEFINED room_of_${path})
    set(${result} "${room_of_${path}}" PARENT_SCOPE)
    return()
  endif()
  string(REGEX REPLACE "^lockstep/" "runtime/" path "${path}")
  cmake_path(GET path PARENT_PATH folder)
  if(folder IN_LIST parts)
    cmake_path(GET folder PARENT_PATH folder)
  endif()
  if(NOT folder IN_LIST LOCKSTEP_ROOMS)
    set(folder "")
  endif()
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE files RELATIVE "${ROOT}" "${ROOT}/runtime/*.h" "${ROOT}/runtime/*.cc" "${ROOT}/proto/*.h"
     "${ROOT}/proto/*.cc" "${ROOT}/launcher/*.h" "${ROOT}/launcher/*.cc")
set(faults 0)
set(includes 0)
set(dnnl_files "")
foreach(file ${files})
  if(file MATCHES "^runtime/include/lockstep/(core|lockstep|libtorch)\\.h$")
    continue()  # the umbrellas name everything
  endif()
  room_of("${file}" room)
  if(NOT room)
    message(SEND_ERROR "${file}: in no room; put it in one, or add its folder to cmake/LockstepRooms.cmake")
    math(EXPR faults "${faults} + 1")
    continue()
  endif()
  file(STRINGS "${ROOT}/${file}" lines REGEX "^[ \t]*#[ \t]*include")
  foreach(line ${lines})
    math(EXPR includes "${includes} + 1")
    if(NOT line MATCHES "include[ \t]*[<\"]([^>\"]+)[>\"]")
      message(SEND_ERROR "${file}: can't read '${line}'")
      math(EXPR faults "${faults} + 1")
      continue()
    endif()
    set(target "${CMAKE_MATCH_1}")
    if(line MATCHES "\"")
      room_of("${target}" other)
      if(file MATCHES "^runtime/include/" AND NOT target MATCHES "^lockstep/")
        message(SEND_ERROR "${file}: is public and may include public headers only, \"lockstep/...\"; \"${target}\" is none")
        math(EXPR faults "${faults} + 1")
      endif()
      if(NOT other)
        message(SEND_ERROR "${file}: \"${target}\" is no path from the root into a room; use <...> for packages")
        math(EXPR faults "${faults} + 1")
      elseif(NOT other IN_LIST includes_${room})
        list(JOIN includes_${room} ", " allowed)
        message(SEND_ERROR "${file}: ${room} may not include ${other} (\"${target}\"); it may include ${allowed}")
        math(EXPR faults "${faults} + 1")
      endif()
      set(uses_${room}_${other} TRUE)
      continue()
    endif()
    foreach(home ${homes})
      string(REGEX MATCH "^(.*)\\|([^|]*)$" ignored "${home}")
      set(pattern "${CMAKE_MATCH_1}")
      set(place "${CMAKE_MATCH_2}")
      string(REGEX REPLACE "[ \n]+" ";" owners "${place}")
      if(target MATCHES "${pattern}" AND NOT room IN_LIST owners)
        message(SEND_ERROR "${file}: ${room} may not include <${target}>; its place: ${place}")
        math(EXPR faults "${faults} + 1")
      endif()
    endforeach()
    if(target MATCHES "^(oneapi/|dnnl)")
      list(APPEND dnnl_files "${file}")
    endif()
  endforeach()
endforeach()
foreach(room ${LOCKSTEP_ROOMS})
  foreach(other ${may_include_${room}})
    if(ARROWS AND NOT uses_${room}_${other} AND NOT other MATCHES "^runtime/(base|job)$")
      message(SEND_ERROR "cmake/LockstepRooms.cmake: ${room} may include ${other}, and no file does; take it out of the row")
      math(EXPR faults "${faults} + 1")
    endif()
  endforeach()
endforeach()
# Examples are what users write.
file(GLOB_RECURSE shown RELATIVE "${ROOT}" "${ROOT}/examples/*.h" "${ROOT}/examples/*.cc" "${ROOT}/examples/*.cu")
foreach(file ${shown})
  file(STRINGS "${ROOT}/${file}" lines REGEX "#[ \t]*include[ \t]*[<\"](runtime|proto|launcher)/")
  foreach(line ${lines})
    message(SEND_ERROR "${file}: shows what users include, which is <lockstep/...>; '${line}' is none of it")
    math(EXPR faults "${faults} + 1")
  endforeach()
endforeach()
list(REMOVE_DUPLICATES dnnl_files)
list(LENGTH dnnl_files count)
if(count GREATER 1)
  message(SEND_ERROR "one file holds every oneDNN call, but these include it: ${dnnl_files}")
  math(EXPR faults "${faults} + 1")
endif()
if(includes EQUAL 0)
  message(FATAL_ERROR "check_layers: no #include found below '${ROOT}'; is ROOT right?")
endif()
if(faults EQUAL 0)
  message(STATUS "check_layers: ${includes} includes follow the rule")
endif()
