// All of lockstep in one include: #include <lockstep/lockstep.h>. Link lockstep::lockstep.
#pragma once

#include "runtime/base/error.h"
#include "runtime/comm/init/init_process_group.h"
#include "runtime/comm/process_group.h"
#include "runtime/ddp/reducer.h"
