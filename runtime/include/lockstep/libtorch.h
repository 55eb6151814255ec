// SPDX-License-Identifier: Apache-2.0
// This header includes all headers of lockstep for LibTorch. A program that includes <lockstep/libtorch.h> links the
// CMake target lockstep::libtorch.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/values.h"
#include "lockstep/ddp/on_rank0.h"
#include "lockstep/libtorch/autocast.h"
#include "lockstep/libtorch/collectives.h"
#include "lockstep/libtorch/comm_hook.h"
#include "lockstep/libtorch/data_loader.h"
#include "lockstep/libtorch/decay_groups.h"
#include "lockstep/libtorch/distributed_data_parallel.h"
#include "lockstep/libtorch/fused_optimizers.h"
#include "lockstep/libtorch/grad_scaler.h"
#include "lockstep/libtorch/linear.h"
#include "lockstep/libtorch/samplers.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "lockstep/libtorch/snapshots.h"
#include "lockstep/libtorch/state_file.h"
#include "lockstep/libtorch/sync_batch_norm.h"
#include "lockstep/libtorch/torch_stream.h"
#include "lockstep/metrics/metrics.h"
#include "lockstep/metrics/stop.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/progress/progress.h"
