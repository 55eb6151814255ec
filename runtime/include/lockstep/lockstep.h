// SPDX-License-Identifier: Apache-2.0
// All of lockstep in one include: #include <lockstep/lockstep.h>. Link lockstep::lockstep.
//
// Programs with gradients of their own (the Reducer, no engine) include lockstep/ddp/reducer.h and
// lockstep/comm/init/init_process_group.h instead, and link lockstep::core.
#pragma once

#include "lockstep/autograd/graph.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/values.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/mapped_dataset.h"
#include "lockstep/data/permutation.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/tensor/batch.h"
#include "lockstep/ddp/on_rank0.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/device/device_runtime.h"
#include "lockstep/metrics/metrics.h"
#include "lockstep/metrics/stop.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/progress/progress.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/trace/span.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "lockstep/train/gather.h"
#include "lockstep/train/snapshots.h"
#include "lockstep/train/weights.h"
