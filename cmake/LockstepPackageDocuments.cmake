# Run by CPack before it makes the packages: gives each the two documents that Debian wants, copyright and changelog. The
# license itself is one of Debian's own files.
file(READ "${CPACK_LOCKSTEP_SOURCE}/CHANGELOG.md" changes)
if(NOT changes MATCHES "## ${CPACK_PACKAGE_VERSION}, ([^\n]*)\n")
  message(FATAL_ERROR "CHANGELOG.md has no section '## ${CPACK_PACKAGE_VERSION}, DATE'")
endif()
set(released "${CMAKE_MATCH_1}")
set(distribution unstable)
if(released STREQUAL "unreleased")
  set(distribution UNRELEASED)
endif()
# The date of the sources: SOURCE_DATE_EPOCH, which scripts/package sets, or now.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER "${component}" upper)
  set(package "${CPACK_DEBIAN_${upper}_PACKAGE_NAME}")
  set(documents "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${component}${CPACK_PACKAGING_INSTALL_PREFIX}/share/doc")
  file(REMOVE "${documents}/lockstep/LICENSE")
  file(WRITE "${documents}/${package}/copyright" "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: lockstep
Comment: SPDX-License-Identifier: Apache-2.0

Files: *
Copyright: 2026 the lockstep authors
License: Apache-2.0
 On Debian systems the full text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
")
  set(plain "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/changelog")
  file(WRITE "${plain}" "lockstep (${CPACK_PACKAGE_VERSION}) ${distribution}; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}; CHANGELOG.md in the sources says what is new.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  file(ARCHIVE_CREATE OUTPUT "${documents}/${package}/changelog.gz" PATHS "${plain}" FORMAT raw COMPRESSION GZip
       COMPRESSION_LEVEL 9 MTIME "1970-01-01 00:00:00 UTC")
  file(REMOVE "${plain}")
  file(CHMOD "${documents}/${package}/copyright" "${documents}/${package}/changelog.gz"
       PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endforeach()
