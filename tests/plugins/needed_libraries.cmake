# cmake -DREADELF=... -DCORE=... -DNN=... -DLAUNCHER=... [-DMPI=... -DCUDA=...] -P needed_libraries.cmake
#
# The libraries and the launcher need none of what the plug-ins bring; each plug-in needs its own, which shows that this
# looks at the right thing.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)
if(NOT READELF)
  message(FATAL_ERROR "readelf was not found: install binutils")
endif()
set(foreign "libmpi|libopen-rte|libopen-pal|libhiredis|libibverbs|libnccl|libcuda|libcublas")

function(needed_of file result)
  execute_process(COMMAND "${READELF}" -d "${file}" OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "\\(NEEDED\\)[^\n]*" lines "${text}")
  if(NOT lines)
    message(FATAL_ERROR "${file}: readelf lists no needed library")
  endif()
  set(${result} "${lines}" PARENT_SCOPE)
endfunction()

foreach(file "${CORE}" "${NN}" "${LAUNCHER}")
  needed_of("${file}" needed)
  if("${needed}" MATCHES "${foreign}")
    message(FATAL_ERROR "${file} links what only a plug-in may: ${needed}")
  endif()
  message(STATUS "${file}: ${needed}")
endforeach()
# cudart is inside, the driver, NCCL and cuBLASLt are looked for when they are wanted: without them they load all the same.
foreach(file ${CUDA} ${CUDA_NN})
  needed_of("${file}" needed)
  if("${needed}" MATCHES "libcuda|libnccl|libcublas|libnvidia" OR NOT "${needed}" MATCHES "liblockstep\\.so")
    message(FATAL_ERROR "${file} should need liblockstep.so, and nothing of NVIDIA's: ${needed}")
  endif()
endforeach()
if(MPI)
  needed_of("${MPI}" needed)
  if(NOT "${needed}" MATCHES "libmpi" OR NOT "${needed}" MATCHES "liblockstep\\.so")
    message(FATAL_ERROR "${MPI} should need libmpi and liblockstep.so: ${needed}")
  endif()
endif()
