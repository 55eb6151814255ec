# The install tree: bin/lockstep, lib/liblockstep*.so, include/lockstep/, lib/cmake/lockstep for find_package and
# lib/pkgconfig for pkg-config. It may be moved as a whole. Components: runtime (what runs), devel (what compiles), libtorch,
# mpi and cuda (the plug-ins), and one per example, of its folder's name.
# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)
set(config_folder "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")
set(pkgconfig_folder "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

# lockstep_pkgconfig(NAME COMPONENT component): installs NAME.pc, from cmake/NAME.pc.in.
file(RELATIVE_PATH pkgconfig_to_prefix "/${pkgconfig_folder}" "/")
string(REGEX REPLACE "/$" "" pkgconfig_to_prefix "${pkgconfig_to_prefix}")
# A folder that the loader searches needs no rpath in the programs.
set(pkgconfig_rpath " -Wl,-rpath,\${libdir}")
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(pkgconfig_rpath "")
else()
  # The rpath of a program that pkg-config's words linked runs through this folder: it is there without 'devel' too.
  install(DIRECTORY DESTINATION "${pkgconfig_folder}" COMPONENT runtime)
endif()
function(lockstep_pkgconfig name component)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in" "${PROJECT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${name}.pc" DESTINATION "${pkgconfig_folder}" COMPONENT ${component})
endfunction()

lockstep_install("lockstep_launcher;lockstep_probe" RUNTIME COMPONENT runtime)
foreach(plugin mpi cuda cuda_nn)
  if(TARGET lockstep_plugin_${plugin})
    string(REGEX REPLACE "_nn$" "" component "${plugin}")
    lockstep_install(lockstep_plugin_${plugin} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT ${component})
  endif()
endforeach()
lockstep_install("lockstep_shared_core;lockstep_shared_nn" EXPORT lockstep-targets
                 LIBRARY COMPONENT runtime NAMELINK_COMPONENT devel)
install(EXPORT lockstep-targets NAMESPACE lockstep:: DESTINATION "${config_folder}" COMPONENT devel)
lockstep_pkgconfig(lockstep-core devel)
lockstep_pkgconfig(lockstep devel)
# find_package(lockstep COMPONENTS libtorch): the library is component libtorch, so that what runs without it needs no LibTorch.
if(LOCKSTEP_HAVE_LIBTORCH)
  lockstep_install(lockstep_shared_libtorch EXPORT lockstep-libtorch-targets
                   LIBRARY COMPONENT libtorch NAMELINK_COMPONENT libtorch)
  install(EXPORT lockstep-libtorch-targets NAMESPACE lockstep:: DESTINATION "${config_folder}" COMPONENT libtorch)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/LockstepTorchTarget.cmake" DESTINATION "${config_folder}" COMPONENT libtorch)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/runtime/include/lockstep/libtorch"
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep" COMPONENT libtorch FILES_MATCHING PATTERN "*.h")
  install(FILES "${PROJECT_SOURCE_DIR}/runtime/include/lockstep/libtorch.h"
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep" COMPONENT libtorch)
  lockstep_torch_flags(torch_cflags torch_libs)
  lockstep_pkgconfig(lockstep-libtorch libtorch)
endif()
# What users include is what lies below runtime/include, at the same paths, and nothing else.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/runtime/include/lockstep" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        COMPONENT devel FILES_MATCHING PATTERN "*.h" PATTERN "libtorch" EXCLUDE PATTERN "libtorch.h" EXCLUDE)

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/lockstep-config.cmake.in" "lockstep-config.cmake"
                              INSTALL_DESTINATION "${config_folder}")
write_basic_package_version_file("lockstep-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/lockstep-config.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/lockstep-config-version.cmake"
        DESTINATION "${config_folder}" COMPONENT devel)
install(FILES "${PROJECT_SOURCE_DIR}/launcher/lockstep.bash" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions"
        RENAME lockstep COMPONENT runtime)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/lockstep" COMPONENT runtime)
if(PROJECT_IS_TOP_LEVEL)
  include(LockstepPackages)
endif()
