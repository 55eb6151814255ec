# lockstep_room(NAME base DIR base DEPS ... LIBS ...): one folder, one target.
#
# A room is a static, position-independent library `lockstep_NAME`, alias `lockstep::NAME`, of every .cc in its folder
# (not below it). DEPS are other rooms, LIBS are packages. The shared libraries and the launcher are put together from
# rooms in runtime/CMakeLists.txt and launcher/CMakeLists.txt.
function(lockstep_room)
  cmake_parse_arguments(ROOM "" "NAME;DIR" "DEPS;LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${ROOM_DIR}/*.cc")
  list(TRANSFORM ROOM_DEPS PREPEND "lockstep_")
  if(sources)
    add_library(lockstep_${ROOM_NAME} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(lockstep_${ROOM_NAME} PRIVATE $<BUILD_INTERFACE:lockstep_flags>)
  else()
    add_library(lockstep_${ROOM_NAME} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(lockstep_${ROOM_NAME} ${scope} "${PROJECT_SOURCE_DIR}")
  target_link_libraries(lockstep_${ROOM_NAME} ${scope} ${ROOM_DEPS} ${ROOM_LIBS})
  add_library(lockstep::${ROOM_NAME} ALIAS lockstep_${ROOM_NAME})
endfunction()
