# Included right after the project() of a project that has lockstep in it and asks for mpi and libtorch: at its end, that what
# was found can be built and linked there.
# SPDX-License-Identifier: Apache-2.0
function(check_asked)
  if(MPI_C_FOUND AND NOT TARGET lockstep_plugin_mpi)
    message(SEND_ERROR "MPI is in ${MPI_C_INCLUDE_DIRS}, and there is no target lockstep_plugin_mpi")
  endif()
  if(TARGET lockstep::libtorch)
    if(NOT TARGET torch)
      message(SEND_ERROR "lockstep::libtorch links torch, which the project does not see")
    endif()
  elseif(EXISTS "${Torch_DIR}/TorchConfig.cmake")
    message(SEND_ERROR "LibTorch is in ${Torch_DIR}, and there is no target lockstep::libtorch")
  endif()
endfunction()
cmake_language(DEFER CALL check_asked)
