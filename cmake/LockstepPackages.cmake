# Debian packages of the install tree, one per component, by CPack: scripts/package builds them. Their names and what they
# need of each other are here; what they need of the system dpkg-shlibdeps finds out.
# SPDX-License-Identifier: Apache-2.0
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_CONTACT "lockstep maintainers <maintainers@lockstep.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "data-parallel training in C++")
set(CPACK_PACKAGING_INSTALL_PREFIX "${CMAKE_INSTALL_PREFIX}")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages" CACHE PATH "Where CPack puts the packages")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
                                                WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY "=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/LockstepPackageDocuments.cmake")
set(CPACK_LOCKSTEP_SOURCE "${PROJECT_SOURCE_DIR}")

set(CPACK_COMPONENTS_ALL "")
# lockstep_package(component NAME package SECTION section DEPENDS "..." RECOMMENDS "..." SUMMARY "words" TEXT "lines of at most 79")
macro(lockstep_package component)
  cmake_parse_arguments(P "" "NAME;SECTION;DEPENDS;RECOMMENDS;SUMMARY;TEXT" "" ${ARGN})
  string(TOUPPER "${component}" upper)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${P_NAME})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${P_SECTION})
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${P_DEPENDS}")
  set(CPACK_DEBIAN_${upper}_PACKAGE_RECOMMENDS "${P_RECOMMENDS}")
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${P_SUMMARY}\n${P_TEXT}")
endmacro()

set(same "(= ${PROJECT_VERSION})")
lockstep_package(runtime NAME lockstep SECTION science SUMMARY "data-parallel training in C++: launcher and libraries"
  TEXT "The program lockstep starts the ranks of a job on one host or several, and ends\n\
them together. Programs built with lockstep-dev need the libraries of this\npackage.")
lockstep_package(devel NAME lockstep-dev SECTION libdevel DEPENDS "lockstep ${same}" RECOMMENDS "g++, pkg-config | cmake"
  SUMMARY "data-parallel training in C++: headers"
  TEXT "Headers, and the files that find_package(lockstep) and pkg-config read.")
set(CPACK_DEBIAN_DEVEL_PACKAGE_SHLIBDEPS OFF)
# The loader's cache is made anew behind a package with libraries that programs link.
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/triggers" CONTENT "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA "${PROJECT_BINARY_DIR}/triggers")
set(CPACK_DEBIAN_LIBTORCH_PACKAGE_CONTROL_EXTRA "${PROJECT_BINARY_DIR}/triggers")
if(TARGET lockstep_plugin_mpi)
  lockstep_package(mpi NAME lockstep-plugin-mpi SECTION science DEPENDS "lockstep ${same}" RECOMMENDS openmpi-bin
    SUMMARY "data-parallel training in C++: several hosts over Open MPI"
    TEXT "The plug-in for the backend mpi: collectives between the processes\nthat mpirun starts.")
endif()
if(TARGET lockstep_plugin_cuda)
  lockstep_package(cuda NAME lockstep-plugin-cuda SECTION science DEPENDS "lockstep ${same}" RECOMMENDS "libnccl2 (>= 2.27)"
    SUMMARY "data-parallel training in C++: NVIDIA GPUs"
    TEXT "The plug-in for the device cuda and the backend nccl. It loads the\ndriver, NCCL and cuBLASLt of the machine where it runs.")
endif()
if(LOCKSTEP_HAVE_LIBTORCH)
  # Its files name the folder of this LibTorch, which is the system's only where the system's packages put it.
  set(torch_packages "")
  if(Torch_DIR MATCHES "^/usr/(lib|share)/")
    set(torch_packages ", libtorch-dev")
  endif()
  lockstep_package(libtorch NAME lockstep-libtorch SECTION libdevel DEPENDS "lockstep ${same}, lockstep-dev ${same}${torch_packages}"
    SUMMARY "data-parallel training in C++: LibTorch"
    TEXT "DistributedDataParallel for a torch::nn::Module: library, headers, and\n\
what find_package(lockstep COMPONENTS libtorch) and pkg-config read.")
endif()
include(CPack)
