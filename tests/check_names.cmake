# cmake -DROOT=... -P check_names.cmake: what users type has one name, in the namespace where they look for it.
#
# A public header opens the namespace of its room and no other: lockstep for the rooms that nearly every program uses,
# lockstep::ROOM for the others. Names that a release took away are in no source, example or page but CHANGELOG.md.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)

set(plain base job device comm ddp metrics progress snapshot tensor autograd train)
set(of_their_own checkpoint data libtorch nn optim rendezvous store trace)

# As regular expressions. Of a name that went to another namespace, the qualified one.
set(gone
    "WeightsMetadata"
    "(lockstep|ls)::(TensorDataset|Batch|Sample|Collated|collate)[^A-Za-z_]"
    "(lockstep|ls)::(LoadOptions|Loaded)[^A-Za-z_]"
    "(lockstep|ls)::autograd::(backward|ready_order|grad_enabled|NoGrad|BackwardOptions)"
    "nn::(cross_entropy|mse_loss|CrossEntropyOptions)"
    "DdpBackwardOptions"
    "ddp\\.(step|model)\\(\\)"
    "lockstep/(base/cause|train/(batch|progress)|nn/loss|libtorch/distributed_sampler)\\.h"
    "lockstep/(base/(mutex|thread_annotations)|checkpoint/load_options|comm/note|device/half|metrics/log_scalar)\\.h"
    "lockstep/(data/(dataset|epoch_order|prefetch|micro_batches)|optim/(adamw|clip|sgd)|snapshot/item)\\.h"
    "lockstep/(nn/(activation|embedding|init|layer_norm|linear|sequential|transformer)|tensor/(shape|storage))\\.h")

set(checked 0)
file(GLOB_RECURSE headers RELATIVE "${ROOT}/runtime/include/lockstep" "${ROOT}/runtime/include/lockstep/*/*.h")
# A header that is installed can't be taken back: a new one merges with its neighbour. With lockstep.h 60, beside LibTorch's.
set(installed ${headers})
list(FILTER installed EXCLUDE REGEX "^libtorch/")
list(LENGTH installed installed_count)
if(installed_count GREATER 59)
  message(SEND_ERROR "runtime/include/lockstep: ${installed_count} headers; at most 59 and lockstep.h are installed")
endif()
foreach(header ${headers})
  string(REGEX REPLACE "/.*" "" room "${header}")
  if(room IN_LIST plain)
    set(own "lockstep")
  elseif(room IN_LIST of_their_own)
    set(own "lockstep::${room}")
  else()
    message(SEND_ERROR "${header}: tests/check_names.cmake doesn't say which namespace the room ${room} has")
    continue()
  endif()
  file(READ "${ROOT}/runtime/include/lockstep/${header}" text)
  # Names that are only declared ahead may be of another room.
  string(REGEX REPLACE "\nnamespace [a-z_:]+ {\n((class|struct) [A-Za-z]+\;\n)+}" "" text "${text}")
  string(REGEX MATCHALL "\nnamespace [^\n{]*{" opened "${text}")
  foreach(line ${opened})
    string(REGEX REPLACE "^\nnamespace (.*) {$" "\\1" name "${line}")
    math(EXPR checked "${checked} + 1")
    if(NOT name STREQUAL own AND NOT name STREQUAL "detail")
      message(SEND_ERROR "${header}: opens the namespace ${name}; what is public in ${room} is in ${own}")
    endif()
  endforeach()
endforeach()

file(GLOB_RECURSE files RELATIVE "${ROOT}" "${ROOT}/runtime/*.h" "${ROOT}/runtime/*.cc" "${ROOT}/runtime/*.cu"
     "${ROOT}/launcher/*.h" "${ROOT}/launcher/*.cc" "${ROOT}/examples/*" "${ROOT}/benchmarks/*" "${ROOT}/tests/*.h"
     "${ROOT}/tests/*.cc" "${ROOT}/docs/*.md" "${ROOT}/README.md")
foreach(file ${files})
  file(READ "${ROOT}/${file}" text)
  foreach(name ${gone})
    if(text MATCHES "${name}")
      message(SEND_ERROR "${file}: '${CMAKE_MATCH_0}' is gone; CHANGELOG.md says what it is called now")
    endif()
  endforeach()
  math(EXPR checked "${checked} + 1")
endforeach()
if(checked LESS 2)
  message(FATAL_ERROR "check_names: nothing found below '${ROOT}'; is ROOT right?")
endif()
message(STATUS "check_names: ${checked} namespaces and files")
