# Every package of the build, in one place. Nothing is downloaded; what is missing is named with what installs it.
# SPDX-License-Identifier: Apache-2.0
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
# libcrypto, for the HMAC of the store's greeting; nothing here opens a TLS connection.
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
# oneDNN by hand: Debian's CMake package demands OpenCL's development files, which nothing here needs.
find_library(DNNL_LIBRARY NAMES dnnl)
find_path(DNNL_INCLUDE_DIR NAMES oneapi/dnnl/dnnl.hpp)
if(NOT DNNL_LIBRARY OR NOT DNNL_INCLUDE_DIR)
  message(FATAL_ERROR "oneDNN was not found: install libdnnl-dev (scripts/quickstart does)")
endif()
add_library(lockstep_dnnl INTERFACE)
target_include_directories(lockstep_dnnl SYSTEM INTERFACE "${DNNL_INCLUDE_DIR}")
# Its threads are OpenMP's; g++'s runtime sets their number (clang finds it in g++'s folder).
target_link_libraries(lockstep_dnnl INTERFACE "${DNNL_LIBRARY}" gomp)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
if(LOCKSTEP_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_path(GMOCK_INCLUDE_DIR NAMES gmock/gmock.h)
  if(NOT GMOCK_INCLUDE_DIR)
    message(FATAL_ERROR "GoogleMock was not found: install libgmock-dev (scripts/test does)")
  endif()
  include(GoogleTest)
endif()

# What the plug-ins bring (LockstepPlugins.cmake).
if(NOT LOCKSTEP_MPI STREQUAL "OFF")
  # A compiler wrapper without MPI's headers, which Debian 13's openmpi-bin brings without libopenmpi-dev, would end the
  # configuration within find_package.
  find_program(LOCKSTEP_MPICC NAMES "${MPI_C_COMPILER}" mpicc)
  mark_as_advanced(LOCKSTEP_MPICC)
  set(mpi_has_no_header 0)
  if(LOCKSTEP_MPICC AND (MPI_C_COMPILER OR NOT MPI_HOME))
    file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/mpi_header.c" "#include <mpi.h>\n")
    execute_process(COMMAND "${LOCKSTEP_MPICC}" -E "${CMAKE_CURRENT_BINARY_DIR}/mpi_header.c" RESULT_VARIABLE mpi_has_no_header
                    OUTPUT_QUIET ERROR_QUIET)
  endif()
  if(mpi_has_no_header EQUAL 0)
    find_package(MPI QUIET COMPONENTS C)
  else()
    message(STATUS "lockstep: ${LOCKSTEP_MPICC} finds no mpi.h; set MPI_C_COMPILER to another MPI's wrapper")
  endif()
endif()
lockstep_plugin_choice(mpi "${MPI_C_FOUND}" "MPI ${MPI_C_VERSION} from ${MPI_C_INCLUDE_DIRS}" libopenmpi-dev)
