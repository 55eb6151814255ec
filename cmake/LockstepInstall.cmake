# The install tree: bin/lockstep, lib/liblockstep*.so, include/lockstep/, and lib/cmake/lockstep for find_package. It may
# be moved as a whole. Components: runtime (what runs), devel (what compiles), and one per
# example, of its folder's name.
include(CMakePackageConfigHelpers)
set(config_folder "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")

install(TARGETS lockstep_shared_core lockstep_shared_nn EXPORT lockstep-targets
        LIBRARY COMPONENT runtime NAMELINK_COMPONENT devel)
install(EXPORT lockstep-targets NAMESPACE lockstep:: DESTINATION "${config_folder}" COMPONENT devel)
# find_package(lockstep COMPONENTS libtorch): the library is component libtorch, so that what runs without it needs no LibTorch.
if(LOCKSTEP_HAVE_LIBTORCH)
  install(TARGETS lockstep_shared_libtorch EXPORT lockstep-libtorch-targets
          LIBRARY COMPONENT libtorch NAMELINK_COMPONENT libtorch)
  install(EXPORT lockstep-libtorch-targets NAMESPACE lockstep:: DESTINATION "${config_folder}" COMPONENT libtorch)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/LockstepTorchTarget.cmake" DESTINATION "${config_folder}" COMPONENT libtorch)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/runtime/include/lockstep/libtorch"
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep" COMPONENT libtorch FILES_MATCHING PATTERN "*.h")
  install(FILES "${PROJECT_SOURCE_DIR}/runtime/include/lockstep/libtorch.h"
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep" COMPONENT libtorch)
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
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/lockstep" COMPONENT runtime)
