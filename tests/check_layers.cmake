# cmake -DROOT=... -P check_layers.cmake: holds every #include of runtime/, proto/ and launcher/ to the include rule.
#
# A room may include itself and the rooms it names here, transitively; and a package only where this page says so.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)

set(rooms proto runtime/base runtime/trace runtime/net runtime/store runtime/store/server runtime/store/client
          runtime/membership runtime/rendezvous runtime/device runtime/comm runtime/comm/failure runtime/comm/shm
          runtime/comm/wire runtime/comm/hosts runtime/comm/tcp runtime/comm/mpi runtime/comm/init runtime/data runtime/ddp
          runtime/metrics runtime/progress
          runtime/checkpoint runtime/checkpoint/snapshot runtime/snapshot
          runtime/tensor runtime/tensor/cpu runtime/autograd runtime/data/tensor runtime/nn runtime/optim runtime/train
          runtime/libtorch runtime/cuda runtime/comm/nccl runtime/tensor/cuda launcher launcher/probe)
# In the order above: a room's line names only rooms before it, so one pass makes the rule transitive.
set(may_include_proto "")
set(may_include_runtime/base "")
set(may_include_runtime/trace runtime/base)
set(may_include_runtime/net runtime/base)
set(may_include_runtime/store runtime/net proto)
set(may_include_runtime/store/server runtime/store)
set(may_include_runtime/store/client runtime/store)
set(may_include_runtime/membership runtime/store/server runtime/store/client)
set(may_include_runtime/rendezvous runtime/membership)
set(may_include_runtime/device runtime/base)
set(may_include_runtime/comm runtime/device runtime/rendezvous runtime/trace)
set(may_include_runtime/comm/failure runtime/comm)
set(may_include_runtime/comm/shm runtime/comm/failure runtime/net)
set(may_include_runtime/comm/wire runtime/comm/failure)
set(may_include_runtime/comm/hosts runtime/comm/shm runtime/comm/wire)
set(may_include_runtime/comm/tcp runtime/comm/hosts runtime/net)
set(may_include_runtime/comm/mpi runtime/comm/wire)
set(may_include_runtime/comm/init runtime/comm runtime/comm/shm runtime/comm/tcp)
set(may_include_runtime/data runtime/trace)
set(may_include_runtime/ddp runtime/comm runtime/data)
set(may_include_runtime/metrics runtime/comm runtime/trace)
set(may_include_runtime/progress runtime/ddp)
set(may_include_runtime/checkpoint runtime/device)
set(may_include_runtime/checkpoint/snapshot runtime/checkpoint)
set(may_include_runtime/snapshot runtime/ddp runtime/metrics runtime/data runtime/checkpoint/snapshot)
set(may_include_runtime/tensor runtime/device)
set(may_include_runtime/tensor/cpu runtime/tensor)
set(may_include_runtime/autograd runtime/tensor)
set(may_include_runtime/data/tensor runtime/data runtime/tensor)
set(may_include_runtime/nn runtime/autograd)
set(may_include_runtime/optim runtime/tensor runtime/trace)
set(may_include_runtime/train runtime/comm/init runtime/snapshot runtime/data/tensor runtime/nn runtime/optim)
set(may_include_runtime/libtorch runtime/snapshot)
# The plug-in's core is the device; it says to the core what it brings, collectives among it.
set(may_include_runtime/cuda runtime/comm)
set(may_include_runtime/comm/nccl runtime/comm/failure runtime/cuda)
set(may_include_runtime/tensor/cuda runtime/tensor runtime/cuda)
# Of the library's upper half it reads what a job has left on disk, which is bytes and JSON.
set(may_include_launcher runtime/rendezvous runtime/checkpoint/snapshot runtime/trace)
# A program beside the launcher, which must not load what this one is there to load.
set(may_include_launcher/probe runtime/comm/init runtime/tensor)

# Packages and system headers that have one home: a pattern, then the rooms that may include it.
set(homes
    "^spdlog/|runtime/base"
    "^(openssl/|xxhash)|runtime/base"
    "^(oneapi/|dnnl)|runtime/tensor/cpu"
    "^nlohmann/|runtime/checkpoint runtime/checkpoint/snapshot runtime/rendezvous launcher launcher/probe"
    "^CLI/|launcher"
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

foreach(room ${rooms})
  set(reach_${room} ${room})
  foreach(other ${may_include_${room}})
    if(NOT DEFINED reach_${other})
      message(FATAL_ERROR "check_layers: '${room}' names '${other}', which is not a room before it")
    endif()
    list(APPEND reach_${room} ${reach_${other}})
  endforeach()
  list(REMOVE_DUPLICATES reach_${room})
endforeach()

# The room of a path: the longest room name that is a folder of it. A public header, lockstep/ddp/reducer.h below
# runtime/include, belongs to runtime/ddp.
function(room_of path result)
  string(REGEX REPLACE "^(runtime/include/)?lockstep/" "runtime/" path "${path}")
  set(best "")
  foreach(room ${rooms})
    string(LENGTH "${room}/" length)
    string(LENGTH "${best}" best_length)
    string(FIND "${path}" "${room}/" at)
    if(at EQUAL 0 AND length GREATER best_length)
      set(best "${room}")
    endif()
  endforeach()
  set(${result} "${best}" PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE files RELATIVE "${ROOT}" "${ROOT}/runtime/*.h" "${ROOT}/runtime/*.cc" "${ROOT}/proto/*.h"
     "${ROOT}/proto/*.cc" "${ROOT}/launcher/*.h" "${ROOT}/launcher/*.cc")
set(faults 0)
set(includes 0)
set(dnnl_files "")
foreach(file ${files})
  if(file MATCHES "^runtime/include/lockstep/(lockstep|libtorch)\\.h$")
    continue()  # the umbrellas name everything
  endif()
  room_of("${file}" room)
  if(NOT room)
    message(SEND_ERROR "${file}: in no room; put it in one, or add its folder to tests/check_layers.cmake")
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
      elseif(NOT other IN_LIST reach_${room})
        list(JOIN reach_${room} ", " allowed)
        message(SEND_ERROR "${file}: ${room} may not include ${other} (\"${target}\"); it may include ${allowed}")
        math(EXPR faults "${faults} + 1")
      endif()
      continue()
    endif()
    foreach(home ${homes})
      string(REGEX MATCH "^(.*)\\|([^|]*)$" ignored "${home}")
      set(pattern "${CMAKE_MATCH_1}")
      set(place "${CMAKE_MATCH_2}")
      string(REPLACE " " ";" owners "${place}")
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
