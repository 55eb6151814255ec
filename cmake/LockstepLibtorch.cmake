# LOCKSTEP_LIBTORCH: whether lockstep::libtorch is built, DistributedDataParallel for a torch::nn::Module.
#
#   AUTO  if a LibTorch is found that fits, and no sanitizer is on; else the configuration says in one line why not
#   ON    the same, and an error if not
#   OFF   never; nothing is looked for: so it is within another project
#
# Found: the one that Torch_DIR names, and no other. Without it, in this order: where CMAKE_PREFIX_PATH points (the zip
# from pytorch.org, unpacked; what `python3 -c "import torch; print(torch.utils.cmake_prefix_path)"` prints, which Torch_DIR
# may be too), the system's (Debian's libtorch-dev), the C++ files inside the torch package of the python3 on the PATH.
#
# Sets LOCKSTEP_HAVE_LIBTORCH, and LOCKSTEP_LIBTORCH_REASON where it is false.
# SPDX-License-Identifier: Apache-2.0
include(LockstepTorchTarget)
set(LOCKSTEP_LIBTORCH ${LOCKSTEP_PACKAGES_DEFAULT} CACHE STRING "Build lockstep::libtorch: AUTO, ON or OFF")
set_property(CACHE LOCKSTEP_LIBTORCH PROPERTY STRINGS AUTO ON OFF)
if(NOT LOCKSTEP_LIBTORCH MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "LOCKSTEP_LIBTORCH is '${LOCKSTEP_LIBTORCH}'; give AUTO, ON or OFF")
endif()
set(LOCKSTEP_LIBTORCH_OLDEST 1.13)
set(LOCKSTEP_HAVE_LIBTORCH FALSE)
set(LOCKSTEP_LIBTORCH_REASON "")

# The folder of the torch package of python3, or empty. Nothing is imported: that would take seconds.
function(lockstep_python_torch result)
  set(${result} "" PARENT_SCOPE)
  find_program(LOCKSTEP_PYTHON3 NAMES python3)
  mark_as_advanced(LOCKSTEP_PYTHON3)
  if(LOCKSTEP_PYTHON3)
    execute_process(COMMAND "${LOCKSTEP_PYTHON3}" -c "import importlib.util as u; s = u.find_spec('torch'); \
print(s.submodule_search_locations[0] if s else '', end='')"
                    OUTPUT_VARIABLE folder ERROR_QUIET RESULT_VARIABLE status)
    if(status EQUAL 0)
      set(${result} "${folder}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# The compiler's and the linker's arguments for the target torch, for those who build without CMake.
function(lockstep_torch_flags cflags libs)
  get_target_property(folders torch INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM folders PREPEND "-I")
  list(JOIN folders " " folders)
  lockstep_torch_prefix("${Torch_DIR}" prefix)
  find_library(LOCKSTEP_TORCH_CPU NAMES torch_cpu PATHS "${prefix}/lib" "${prefix}/${CMAKE_LIBRARY_ARCHITECTURE}"
               NO_DEFAULT_PATH NO_CACHE REQUIRED)
  cmake_path(GET LOCKSTEP_TORCH_CPU PARENT_PATH at)
  set(${cflags} "${folders}" PARENT_SCOPE)
  # libtorch.so itself holds nothing: it brings a GPU's kernels. A CapturedStep calls libtorch_cuda.so itself.
  lockstep_torch_is_for_gpus("${Torch_DIR}" for_gpus)
  set(for_captured_steps "")
  if(for_gpus)
    set(for_captured_steps " -Wl,--push-state,--as-needed -ltorch_cuda -lc10_cuda -Wl,--pop-state")
  endif()
  set(${libs} "-L${at} -Wl,-rpath,${at} -Wl,--push-state,--no-as-needed -ltorch -Wl,--pop-state -ltorch_cpu -lc10\
${for_captured_steps}" PARENT_SCOPE)
endfunction()

# PyTorch's packages have an fmt among their headers, of another version than the system's, which spdlog and all rooms are
# compiled with. A folder that holds the system's fmt alone is searched first: by our own sources, not by programs.
function(lockstep_fmt_before_torch)
  lockstep_torch_prefix("${Torch_DIR}" prefix)
  get_target_property(folder fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  if(EXISTS "${prefix}/include/fmt" AND NOT "${prefix}/include" STREQUAL "${folder}")
    set(first "${PROJECT_BINARY_DIR}/CMakeFiles/fmt_first")
    file(MAKE_DIRECTORY "${first}")
    file(CREATE_LINK "${folder}/fmt" "${first}/fmt" SYMBOLIC)
    target_include_directories(lockstep_flags BEFORE INTERFACE "${first}")
  endif()
endfunction()

# Torch's own configuration may end the whole run (CUDA files that are not there), so a process of its own tries it.
function(lockstep_probe_libtorch folder result)
  lockstep_torch_prefix("${folder}" prefix)
  # All else that is linked here (spdlog, GoogleTest) has the new ABI.
  file(READ "${folder}/TorchConfig.cmake" config)
  if(config MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
    set(${result} "the LibTorch of ${folder} has the C++ ABI of before 2015 (_GLIBCXX_USE_CXX11_ABI=0), this build the \
one since; pass -DTorch_DIR= with a zip's whose name says cxx11-abi, or with a Python package's of PyTorch 2.7.0 or newer" PARENT_SCOPE)
    return()
  endif()
  lockstep_torch_is_for_gpus("${folder}" for_gpus)
  if(for_gpus)
    set(${result} "" PARENT_SCOPE)
    return()
  endif()
  set(work "${PROJECT_BINARY_DIR}/CMakeFiles/lockstep_libtorch_probe")
  file(REMOVE_RECURSE "${work}")
  file(WRITE "${work}/CMakeLists.txt" "cmake_minimum_required(VERSION 3.25)\nproject(probe C CXX)\n"
       "find_package(Torch CONFIG REQUIRED)\n"
       "file(WRITE \"\${CMAKE_BINARY_DIR}/library\" \"\${TORCH_LIBRARY}\")\n")
  # The generator of this build: another's program (make) need not be there.
  execute_process(COMMAND "${CMAKE_COMMAND}" -S "${work}" -B "${work}/build" -G "${CMAKE_GENERATOR}"
                          "-DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM}" "-DTorch_DIR=${folder}" "-DCMAKE_PREFIX_PATH=${prefix}"
                          "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}" "-DCMAKE_C_COMPILER=${CMAKE_C_COMPILER}"
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    string(REGEX MATCH "CMake Error[^\n]*\n+ *[^\n]*" cause "${output}")
    string(REGEX REPLACE "[ \n]+" " " cause "${cause}")
    set(${result} "its CMake files in ${folder} fail: ${cause}; pass -DTorch_DIR= with another LibTorch's folder \
share/cmake/Torch, or -DLOCKSTEP_LIBTORCH=OFF" PARENT_SCOPE)
    return()
  endif()
  file(READ "${work}/build/library" library)
  string(FIND "${library}" "${prefix}/" at)
  if(NOT at EQUAL 0)
    set(${result} "its CMake files in ${folder} take the library of another LibTorch, ${library}; remove one of the two, or \
pass -DTorch_DIR= with the other's folder share/cmake/Torch" PARENT_SCOPE)
    return()
  endif()
  set(${result} "" PARENT_SCOPE)
endfunction()

if(LOCKSTEP_LIBTORCH STREQUAL "OFF")
  set(LOCKSTEP_LIBTORCH_REASON "it was switched off (LOCKSTEP_LIBTORCH=OFF)")
elseif(LOCKSTEP_SANITIZE AND NOT LOCKSTEP_LIBTORCH STREQUAL "ON")
  set(LOCKSTEP_LIBTORCH_REASON "LibTorch is built without sanitizers, which then see what it writes but not how it \
synchronises; LOCKSTEP_LIBTORCH=ON builds it all the same")
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND NOT LOCKSTEP_LIBTORCH STREQUAL "ON")
  # c10::IValue holds a std::vector of itself; clang 14 refuses that in C++20 with GCC 12's library.
  set(LOCKSTEP_LIBTORCH_REASON "clang does not compile the headers of LibTorch 1.13 as C++20; LOCKSTEP_LIBTORCH=ON tries it")
else()
  # Only where it is, at first: find_package would run its files.
  set(torch_asked "${Torch_DIR}")
  if(NOT torch_asked)
    set(torch_asked "$ENV{Torch_DIR}")
  endif()
  # Another one than before is asked for, or the one of before has gone.
  if(torch_asked AND NOT torch_asked STREQUAL "${LOCKSTEP_TORCH_CONFIG}"
     OR NOT EXISTS "${LOCKSTEP_TORCH_CONFIG}/TorchConfig.cmake")
    unset(LOCKSTEP_TORCH_CONFIG CACHE)
  endif()
  # Torch: below what Python calls torch.utils.cmake_prefix_path.
  set(suffixes share/cmake/Torch "lib/${CMAKE_LIBRARY_ARCHITECTURE}/cmake/Torch" lib/cmake/Torch cmake/Torch Torch)
  set(python_torch "")
  if(torch_asked)
    find_path(LOCKSTEP_TORCH_CONFIG NAMES TorchConfig.cmake PATHS "${torch_asked}" PATH_SUFFIXES ${suffixes} NO_DEFAULT_PATH)
  else()
    lockstep_python_torch(python_torch)
    find_path(LOCKSTEP_TORCH_CONFIG NAMES TorchConfig.cmake
              PATHS ${CMAKE_PREFIX_PATH} /usr /usr/local "${python_torch}" PATH_SUFFIXES ${suffixes})
  endif()
  mark_as_advanced(LOCKSTEP_TORCH_CONFIG)
  if(NOT LOCKSTEP_TORCH_CONFIG AND torch_asked)
    set(LOCKSTEP_LIBTORCH_REASON "Torch_DIR is '${torch_asked}', which has no TorchConfig.cmake; pass -DTorch_DIR= with the \
folder share/cmake/Torch of an unpacked LibTorch, or -UTorch_DIR for the system's")
  elseif(NOT LOCKSTEP_TORCH_CONFIG)
    set(LOCKSTEP_LIBTORCH_REASON "LibTorch was not found; install libtorch-dev, or pass -DTorch_DIR= with the folder \
share/cmake/Torch of an unpacked LibTorch")
    if(python_torch)
      string(PREPEND LOCKSTEP_LIBTORCH_REASON "Python's torch in ${python_torch} has no C++ files (share/cmake/Torch); ")
    endif()
  else()
    if(NOT LOCKSTEP_TORCH_PROBED STREQUAL LOCKSTEP_TORCH_CONFIG)
      lockstep_probe_libtorch("${LOCKSTEP_TORCH_CONFIG}" LOCKSTEP_LIBTORCH_REASON)
    endif()
    if(NOT LOCKSTEP_LIBTORCH_REASON)
      set(LOCKSTEP_TORCH_PROBED "${LOCKSTEP_TORCH_CONFIG}" CACHE INTERNAL "The LibTorch that has been tried")
      set(Torch_DIR "${LOCKSTEP_TORCH_CONFIG}" CACHE PATH "The folder of TorchConfig.cmake" FORCE)
      # A project that lockstep is a part of links torch with lockstep::libtorch.
      set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)
      lockstep_torch_target("${Torch_DIR}")
      unset(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL)
      if(Torch_VERSION VERSION_LESS LOCKSTEP_LIBTORCH_OLDEST)
        set(LOCKSTEP_LIBTORCH_REASON "the LibTorch of ${LOCKSTEP_TORCH_CONFIG} is ${Torch_VERSION}; \
${LOCKSTEP_LIBTORCH_OLDEST} is the oldest that is supported; pass -DTorch_DIR= with a newer one's share/cmake/Torch")
      else()
        set(LOCKSTEP_HAVE_LIBTORCH TRUE)
      endif()
    endif()
  endif()
endif()

if(LOCKSTEP_HAVE_LIBTORCH)
  lockstep_torch_is_for_gpus("${LOCKSTEP_TORCH_CONFIG}" for_gpus)
  set(what "")
  if(for_gpus)
    set(what " for GPUs")
  endif()
  message(STATUS "lockstep::libtorch: LibTorch ${Torch_VERSION}${what} of ${LOCKSTEP_TORCH_CONFIG}")
elseif(LOCKSTEP_LIBTORCH STREQUAL "ON")
  message(FATAL_ERROR "LOCKSTEP_LIBTORCH=ON, but ${LOCKSTEP_LIBTORCH_REASON}")
else()
  message(STATUS "lockstep::libtorch is not built: ${LOCKSTEP_LIBTORCH_REASON}")
endif()
