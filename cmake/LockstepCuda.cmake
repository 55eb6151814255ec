# The CUDA toolkit and NCCL's header, for the plug-in cuda and for the fake CUDA runtime of the tests.
#
# LOCKSTEP_HAS_CUDA: the plug-in is built: the toolkit is there with nvcc, and LOCKSTEP_CUDA does not say OFF (as of the
# other plug-ins: LockstepPlugins.cmake). LOCKSTEP_HAS_CUDA_HEADERS: so are the tests on the fake, which need no nvcc.
# LOCKSTEP_HAS_CUBLASLT_HEADER: so is the plug-in cuda_nn, or its tests: tensors on GPUs.
# LOCKSTEP_HAS_NCCL_HEADER: with the collectives. LOCKSTEP_HAS_NCCL_PROGRAMS: and with programs of several processes,
# which sanitizer builds leave out, as they do the plug-in: the tests on the fakes in one process go the same ways.
# SPDX-License-Identifier: Apache-2.0
set(oldest_cuda 12.4)
set(oldest_nccl 2.27)  # comm/nccl/api.h says why
set(wanted_architectures 70 75 80 90 100)

set(LOCKSTEP_HAS_CUDA_HEADERS FALSE)
set(LOCKSTEP_HAS_CUBLASLT_HEADER FALSE)
set(LOCKSTEP_HAS_NCCL_HEADER FALSE)
set(found FALSE)
set(what "")
if(NOT LOCKSTEP_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit ${oldest_cuda} QUIET)
endif()
if(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
  set(LOCKSTEP_HAS_CUDA_HEADERS TRUE)
  add_library(lockstep_cuda_headers INTERFACE)
  target_include_directories(lockstep_cuda_headers SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})

  foreach(folder ${CUDAToolkit_INCLUDE_DIRS})
    if(EXISTS "${folder}/cublasLt.h")
      set(LOCKSTEP_HAS_CUBLASLT_HEADER TRUE)
    endif()
  endforeach()

  # nccl.h comes with a package of its own: beside the toolkit, or where packages put headers.
  find_path(NCCL_INCLUDE_DIR NAMES nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  set(nccl_version 0)
  if(NCCL_INCLUDE_DIR)
    file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
    string(REGEX REPLACE "[^;0-9]*([0-9]+)[^;]*" "\\1" nccl_version "${lines}")
    list(JOIN nccl_version "." nccl_version)
  endif()
  if(nccl_version VERSION_GREATER_EQUAL oldest_nccl)
    set(LOCKSTEP_HAS_NCCL_HEADER TRUE)
    target_include_directories(lockstep_cuda_headers SYSTEM INTERFACE "${NCCL_INCLUDE_DIR}")
    set(nccl "NCCL's header ${nccl_version} from ${NCCL_INCLUDE_DIR}")
  else()
    set(nccl "and without backend nccl, for want of nccl.h ${oldest_nccl} or newer: install libnccl-dev")
  endif()

  if(CUDAToolkit_NVCC_EXECUTABLE AND NOT LOCKSTEP_SANITIZE)
    execute_process(COMMAND "${CUDAToolkit_NVCC_EXECUTABLE}" --list-gpu-arch OUTPUT_VARIABLE listed
                    ERROR_QUIET)
    set(cuda_architectures "")
    foreach(architecture ${wanted_architectures})
      if("${listed}" MATCHES "compute_${architecture}\n")
        list(APPEND cuda_architectures ${architecture})
      endif()
    endforeach()
    if(cuda_architectures)
      set(found TRUE)
      list(JOIN cuda_architectures " " names)
      set(what "CUDA ${CUDAToolkit_VERSION} from ${CUDAToolkit_BIN_DIR} for sm ${names}, ${nccl}")
      if(NOT LOCKSTEP_HAS_CUBLASLT_HEADER)
        string(APPEND what ", without tensors on GPUs, for want of cublasLt.h: install libcublas-dev")
      endif()
    endif()
  endif()
endif()
lockstep_plugin_choice(cuda "${found}" "${what}" "the CUDA toolkit (${oldest_cuda} or newer, with nvcc)")
if(LOCKSTEP_HAS_CUDA_HEADERS)
  set(LOCKSTEP_WHY_NO_CUDA_HEADERS "")
elseif(LOCKSTEP_CUDA STREQUAL "OFF")
  set(LOCKSTEP_WHY_NO_CUDA_HEADERS "it was switched off (LOCKSTEP_CUDA=OFF)")
else()
  set(LOCKSTEP_WHY_NO_CUDA_HEADERS "there is no CUDA toolkit of ${oldest_cuda} or newer")
endif()
set(LOCKSTEP_HAS_NCCL_PROGRAMS FALSE)
set(LOCKSTEP_WHY_NO_NCCL "there is no nccl.h of ${oldest_nccl} or newer")
set(LOCKSTEP_WHY_NO_CUBLASLT "there is no cublasLt.h")
if(NOT LOCKSTEP_HAS_CUDA_HEADERS)
  set(LOCKSTEP_WHY_NO_NCCL "${LOCKSTEP_WHY_NO_CUDA_HEADERS}")
  set(LOCKSTEP_WHY_NO_CUBLASLT "${LOCKSTEP_WHY_NO_CUDA_HEADERS}")
endif()
if(NOT LOCKSTEP_HAS_NCCL_HEADER)
  set(LOCKSTEP_WHY_NO_NCCL_PROGRAMS "${LOCKSTEP_WHY_NO_NCCL}")
elseif(LOCKSTEP_SANITIZE)
  set(LOCKSTEP_WHY_NO_NCCL_PROGRAMS "sanitizer builds test the plug-in cuda in one process")
else()
  set(LOCKSTEP_HAS_NCCL_PROGRAMS TRUE)
endif()

# lockstep_cuda_kernels(RESULT SOURCE [FOLDERS...]): with these folders for <includes>, the object file of a .cu, for the architectures above, with PTX of the newest for
# those to come. By nvcc itself: CMake 3.25 does not know how to ask it for C++20.
function(lockstep_cuda_kernels result source)
  list(GET cuda_architectures -1 newest)
  set(codes "-gencode=arch=compute_${newest},code=compute_${newest}")
  foreach(architecture ${cuda_architectures})
    list(APPEND codes "-gencode=arch=compute_${architecture},code=sm_${architecture}")
  endforeach()
  cmake_path(GET source STEM name)
  set(includes ${ARGN})
  list(TRANSFORM includes PREPEND "-I")
  set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.cu.o")
  add_custom_command(OUTPUT "${object}"
    COMMAND "${CUDAToolkit_NVCC_EXECUTABLE}" -std=c++20 -O3 -Xcompiler=-fPIC,-fvisibility=hidden ${codes} -I "${PROJECT_SOURCE_DIR}"
            -I "${PROJECT_SOURCE_DIR}/runtime/include" ${includes} -MD -MF
            "${object}.d" -c "${CMAKE_CURRENT_SOURCE_DIR}/${source}" -o "${object}"
    DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}" DEPFILE "${object}.d" VERBATIM
    COMMENT "nvcc ${source}")
  set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set(${result} "${object}" PARENT_SCOPE)
endfunction()

# The sources of the plug-in cuda_nn that are C++: the operations of tensors, and of the room cuda what they need.
function(lockstep_cuda_nn_sources result)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/runtime/tensor/cuda/*.cc")
  foreach(part check current_device foreign_library)
    list(APPEND sources "${PROJECT_SOURCE_DIR}/runtime/cuda/${part}.cc")
  endforeach()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# The sources of the plug-in that are C++: the device, and the collectives over NCCL, or a twin that says why there are
# none.
function(lockstep_cuda_sources result)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/runtime/cuda/*.cc")
  file(GLOB nccl CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/runtime/comm/nccl/*.cc")
  if(NOT nccl OR NOT LOCKSTEP_HAS_NCCL_HEADER)
    set(nccl "${PROJECT_SOURCE_DIR}/runtime/cuda/absent/no_nccl.cc")
  endif()
  set(${result} ${sources} ${nccl} PARENT_SCOPE)
endfunction()

# lockstep_host_kernels(TARGET SOURCES...): kernels of a target that the host's compiler translates, over the fake CUDA
# runtime of the tests.
function(lockstep_host_kernels target)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests/fakes/cudart/gpu")
  # __global__ and the like are nothing to it, and a product is rounded before it is added.
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX SKIP_UNITY_BUILD_INCLUSION ON
                              COMPILE_OPTIONS "-ffp-contract=off;-O1")
endfunction()
