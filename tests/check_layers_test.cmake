# cmake -DCHECK=check_layers.cmake -DWORK=folder -P check_layers_test.cmake: the check finds what it is there to find.
cmake_minimum_required(VERSION 3.25)

# expect(NAME PATH TEXT FRAGMENT): a tree with one file of TEXT fails with FRAGMENT in its message; empty: it passes.
function(expect name path text fragment)
  set(root "${WORK}/${name}")
  file(REMOVE_RECURSE "${root}")
  file(WRITE "${root}/runtime/base/ok.h" "#include <string>\n")
  file(WRITE "${root}/${path}" "${text}\n")
  execute_process(COMMAND "${CMAKE_COMMAND}" -DROOT=${root} -P "${CHECK}" RESULT_VARIABLE code OUTPUT_VARIABLE out
                  ERROR_VARIABLE err)
  string(REGEX REPLACE "[ \n]+" " " err "${err}")
  string(FIND "${err}" "${fragment}" at)
  if(fragment STREQUAL "" AND NOT code EQUAL 0)
    message(SEND_ERROR "${name}: should pass, but: ${err}")
  elseif(NOT fragment STREQUAL "" AND (code EQUAL 0 OR at LESS 0))
    message(SEND_ERROR "${name}: should fail with '${fragment}', got code ${code}: ${err}")
  endif()
endfunction()

expect(upward runtime/store/a.cc "#include \"runtime/ddp/reducer.h\"" "runtime/store may not include runtime/ddp")
expect(nested runtime/comm/a.cc "#include \"runtime/comm/shm/x.h\"" "runtime/comm may not include runtime/comm/shm")
expect(package runtime/ddp/a.h "  #  include <spdlog/spdlog.h>" "runtime/ddp may not include <spdlog/spdlog.h>")
expect(socket runtime/comm/shm/a.cc "#include <sys/socket.h>" "its place: runtime/net")
expect(relative runtime/store/a.cc "#include \"store.h\"" "no path from the root")
expect(homeless runtime/attic/a.cc "#include <vector>" "in no room")
expect(launcher launcher/a.cc "#include \"runtime/comm/work.h\"" "launcher may not include runtime/comm")
expect(transitive runtime/ddp/a.cc "#include \"runtime/base/error.h\"" "")
expect(inner runtime/comm/shm/a.cc "#include \"runtime/comm/work.h\"" "")
