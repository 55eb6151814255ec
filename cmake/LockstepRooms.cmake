# The rooms: each folder that is a CMake target, in the order of the data flow. This is the only list of them:
# lockstep_room() links a room with what it may include, tests/check_layers.cmake holds every #include to it and wants no
# arrow without an #include, and tests/check_docs.cmake wants a row for each in docs/ARCHITECTURE.md.
# SPDX-License-Identifier: Apache-2.0

# lockstep_may_include(FOLDER others...): the room FOLDER may include itself and `others`, which come before it; not what
# those may include, so that a row tells all that a room knows. runtime/base and runtime/job it may include where it links
# them. reach_FOLDER is all that it links.
macro(lockstep_may_include folder)
  set(reach_${folder} ${folder})
  foreach(other ${ARGN})
    if(NOT DEFINED reach_${other})
      message(FATAL_ERROR "LockstepRooms: '${folder}' names '${other}', which is not a room before it")
    endif()
    list(APPEND reach_${folder} ${reach_${other}})
  endforeach()
  list(REMOVE_DUPLICATES reach_${folder})
  set(may_include_${folder} ${ARGN})
  set(includes_${folder} ${folder} ${ARGN})
  foreach(everywhere runtime/base runtime/job)
    if(${everywhere} IN_LIST reach_${folder})
      list(APPEND includes_${folder} ${everywhere})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES includes_${folder})
  list(APPEND LOCKSTEP_ROOMS ${folder})
endmacro()

# lockstep_public_headers(FOLDER headers...): the public headers of a room whose users know only the folder of another one.
macro(lockstep_public_headers folder)
  foreach(header ${ARGN})
    set(room_of_${header} ${folder})
  endforeach()
endmacro()

lockstep_may_include(proto)
lockstep_may_include(runtime/base)
lockstep_may_include(runtime/job runtime/base)
lockstep_may_include(runtime/trace runtime/base)
lockstep_may_include(runtime/net runtime/base)
lockstep_may_include(runtime/store proto runtime/net)
lockstep_may_include(runtime/store/server proto runtime/net runtime/store)
lockstep_may_include(runtime/store/client proto runtime/net runtime/store)
lockstep_may_include(runtime/membership proto runtime/job runtime/net runtime/store runtime/store/server
                     runtime/store/client)
lockstep_may_include(runtime/rendezvous/identity runtime/net runtime/membership)
lockstep_may_include(runtime/rendezvous runtime/net runtime/store runtime/membership runtime/rendezvous/identity)
lockstep_may_include(runtime/rendezvous/meeting runtime/net runtime/store runtime/store/server runtime/store/client
                     runtime/membership runtime/rendezvous/identity runtime/rendezvous)
lockstep_may_include(runtime/device runtime/base)
lockstep_may_include(runtime/comm runtime/trace runtime/store runtime/membership runtime/rendezvous/identity
                     runtime/rendezvous runtime/device)
lockstep_may_include(runtime/comm/failure runtime/job runtime/membership)
lockstep_may_include(runtime/comm/shm runtime/net runtime/rendezvous runtime/comm runtime/comm/failure)
lockstep_may_include(runtime/comm/wire runtime/rendezvous runtime/comm runtime/comm/failure)
lockstep_may_include(runtime/comm/hosts runtime/store runtime/rendezvous runtime/comm runtime/comm/shm
                     runtime/comm/wire)
lockstep_may_include(runtime/comm/tcp proto runtime/net runtime/store runtime/rendezvous runtime/comm
                     runtime/comm/wire runtime/comm/hosts)
lockstep_may_include(runtime/comm/mpi runtime/comm runtime/comm/failure runtime/comm/wire)
lockstep_may_include(runtime/comm/init runtime/trace runtime/net runtime/store runtime/membership
                     runtime/rendezvous/identity runtime/rendezvous runtime/rendezvous/meeting runtime/device
                     runtime/comm runtime/comm/shm runtime/comm/tcp)
lockstep_may_include(runtime/data runtime/trace)
lockstep_may_include(runtime/ddp/plan runtime/device runtime/comm runtime/data)
lockstep_public_headers(runtime/ddp/plan lockstep/ddp/bucket_plan.h lockstep/ddp/reproducible.h lockstep/ddp/step_note.h)
lockstep_may_include(runtime/ddp/equality runtime/trace runtime/rendezvous runtime/device runtime/comm
                     runtime/ddp/plan)
lockstep_public_headers(runtime/ddp/equality lockstep/ddp/replica_check.h lockstep/ddp/data_identity.h)
lockstep_may_include(runtime/ddp runtime/trace runtime/rendezvous runtime/device runtime/comm runtime/data
                     runtime/ddp/plan runtime/ddp/equality)
lockstep_may_include(runtime/metrics runtime/trace runtime/comm)
lockstep_may_include(runtime/progress runtime/trace runtime/comm runtime/ddp)
lockstep_may_include(runtime/checkpoint runtime/device)
lockstep_may_include(runtime/checkpoint/snapshot runtime/device runtime/checkpoint)
lockstep_may_include(runtime/snapshot runtime/trace runtime/device runtime/comm runtime/data runtime/ddp
                     runtime/metrics runtime/checkpoint runtime/checkpoint/snapshot)
lockstep_may_include(runtime/tensor runtime/device)
lockstep_may_include(runtime/tensor/cpu runtime/tensor)
lockstep_may_include(runtime/autograd runtime/tensor)
lockstep_may_include(runtime/data/tensor runtime/data runtime/tensor)
lockstep_may_include(runtime/nn runtime/tensor runtime/autograd)
lockstep_may_include(runtime/optim runtime/trace runtime/tensor)
lockstep_may_include(runtime/train runtime/trace runtime/comm runtime/ddp/plan runtime/ddp/equality runtime/ddp
                     runtime/checkpoint runtime/snapshot runtime/tensor runtime/autograd runtime/data/tensor
                     runtime/nn runtime/optim)
lockstep_may_include(runtime/libtorch runtime/trace runtime/device runtime/comm runtime/data runtime/ddp/plan
                     runtime/ddp/equality runtime/ddp runtime/checkpoint runtime/snapshot)
# The plug-in's core is the device; it says to the core what it brings, collectives among it.
lockstep_may_include(runtime/cuda runtime/device runtime/comm)
lockstep_may_include(runtime/comm/nccl runtime/rendezvous runtime/device runtime/comm
                     runtime/comm/failure runtime/cuda)
lockstep_may_include(runtime/tensor/cuda runtime/device runtime/comm runtime/tensor runtime/cuda)

# Of the library's upper half the launcher reads what a job has left on disk, which is bytes and JSON.
lockstep_may_include(launcher/base runtime/checkpoint)
lockstep_may_include(launcher/flags runtime/net runtime/store/server runtime/membership launcher/base)
lockstep_may_include(launcher/process runtime/job runtime/net launcher/base)
lockstep_may_include(launcher/placement runtime/store launcher/base launcher/flags launcher/process)
lockstep_may_include(launcher/output launcher/base launcher/flags launcher/process)
lockstep_may_include(launcher/observe runtime/trace runtime/store runtime/membership launcher/base launcher/flags
                     launcher/placement launcher/output)
lockstep_may_include(launcher/live runtime/trace runtime/net launcher/output launcher/observe)
lockstep_may_include(launcher/watch runtime/membership launcher/base launcher/process launcher/placement
                     launcher/output launcher/observe)
lockstep_may_include(launcher/verdict runtime/membership runtime/rendezvous launcher/base launcher/process
                     launcher/placement launcher/output)
lockstep_may_include(launcher/run runtime/net runtime/store runtime/store/server runtime/store/client
                     runtime/membership runtime/rendezvous/identity runtime/rendezvous launcher/base launcher/flags
                     launcher/process launcher/placement launcher/output launcher/observe launcher/live
                     launcher/watch launcher/verdict)
lockstep_may_include(launcher/hosts runtime/net runtime/store runtime/store/client runtime/membership
                     runtime/rendezvous launcher/base launcher/flags launcher/process launcher/placement
                     launcher/output launcher/verdict launcher/run)
lockstep_may_include(launcher/client runtime/trace runtime/net runtime/membership launcher/base launcher/flags
                     launcher/process launcher/placement launcher/observe launcher/live)
lockstep_may_include(launcher/doctor runtime/net runtime/store runtime/store/server runtime/store/client
                     runtime/rendezvous/identity runtime/rendezvous/meeting launcher/base launcher/flags
                     launcher/process launcher/placement launcher/hosts)
lockstep_may_include(launcher/serve runtime/net runtime/store runtime/store/client runtime/membership
                     runtime/rendezvous launcher/base launcher/flags)
lockstep_may_include(launcher/snapshots runtime/device runtime/checkpoint runtime/checkpoint/snapshot launcher/base
                     launcher/flags)
lockstep_may_include(launcher/bisect launcher/base launcher/flags)
lockstep_may_include(launcher/replay runtime/checkpoint/snapshot launcher/base launcher/flags launcher/snapshots
                     launcher/bisect)
lockstep_may_include(launcher launcher/base launcher/flags launcher/placement launcher/observe launcher/run
                     launcher/hosts launcher/client launcher/doctor launcher/serve launcher/snapshots launcher/bisect
                     launcher/replay)
# A program beside the launcher, which must not load what this one is there to load.
lockstep_may_include(launcher/probe runtime/store runtime/device runtime/comm runtime/comm/init runtime/ddp
                     runtime/tensor)
