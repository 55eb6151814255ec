# The CMake target torch, for the build and for those who use what it has installed.
# SPDX-License-Identifier: Apache-2.0

# The folder under which the LibTorch lies whose TorchConfig.cmake is in `folder`.
function(lockstep_torch_prefix folder result)
  get_filename_component(prefix "${folder}/../../.." ABSOLUTE)
  set(${result} "${prefix}" PARENT_SCOPE)
endfunction()

# Sets `result` to true for a LibTorch for GPUs. Its CMake files demand a CUDA Toolkit that this CMake can compile with,
# which nothing here does: its headers and libraries are taken as they are.
function(lockstep_torch_is_for_gpus folder result)
  lockstep_torch_prefix("${folder}" prefix)
  set(${result} FALSE PARENT_SCOPE)
  if(EXISTS "${prefix}/lib/libtorch_cuda.so")
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()

# Makes the target torch. A macro: what Torch's own files set belongs to the caller.
macro(lockstep_torch_target folder)
  lockstep_torch_prefix("${folder}" lockstep_torch_at)
  lockstep_torch_is_for_gpus("${folder}" lockstep_torch_for_gpus)
  if(TARGET torch)
    # The program has found it already.
  elseif(lockstep_torch_for_gpus)
    add_library(torch INTERFACE IMPORTED)
    set_target_properties(
      torch PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${lockstep_torch_at}/include;${lockstep_torch_at}/include/torch/csrc/api/include"
      # libtorch.so itself holds nothing: it brings the GPU's kernels, and is kept all the same. A program that calls
      # libtorch_cuda.so or libc10_cuda.so itself (a CapturedStep) needs them; others don't keep them.
      INTERFACE_LINK_LIBRARIES "-Wl,--push-state,--no-as-needed;${lockstep_torch_at}/lib/libtorch.so;-Wl,--pop-state;\
${lockstep_torch_at}/lib/libtorch_cpu.so;${lockstep_torch_at}/lib/libc10.so;\
-Wl,--push-state,--as-needed,${lockstep_torch_at}/lib/libtorch_cuda.so,${lockstep_torch_at}/lib/libc10_cuda.so,--pop-state")
    if(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL)
      set_target_properties(torch PROPERTIES IMPORTED_GLOBAL TRUE)
    endif()
    set(PACKAGE_FIND_VERSION "")
    include("${folder}/TorchConfigVersion.cmake")
    set(Torch_VERSION "${PACKAGE_VERSION}")
  else()
    # Torch's files look for its libraries in the system first, and would take another version's.
    list(PREPEND CMAKE_PREFIX_PATH "${lockstep_torch_at}")
    find_package(Torch CONFIG QUIET HINTS "${folder}")
    list(POP_FRONT CMAKE_PREFIX_PATH)
  endif()
endmacro()
