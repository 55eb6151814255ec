// LibTorch under lockstep in one include: #include <lockstep/libtorch.h>. Link lockstep::libtorch.
#pragma once

#include "runtime/base/error.h"
#include "runtime/comm/init/init_process_group.h"
#include "runtime/comm/process_group.h"
#include "runtime/libtorch/distributed_data_parallel.h"
#include "runtime/libtorch/distributed_sampler.h"
#include "runtime/libtorch/state_file.h"
#include "runtime/libtorch/sync_batch_norm.h"
#include "runtime/libtorch/torch_stream.h"
