// All of lockstep in one include: #include <lockstep/lockstep.h>. Link lockstep::lockstep.
//
// Programs with gradients of their own (the Reducer, no engine) include runtime/ddp/reducer.h and
// runtime/comm/init/init_process_group.h instead, and link lockstep::core.
#pragma once

#include "runtime/autograd/graph.h"
#include "runtime/autograd/ops.h"
#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/comm/init/init_process_group.h"
#include "runtime/comm/process_group.h"
#include "runtime/data/data_loader.h"
#include "runtime/data/sampler.h"
#include "runtime/ddp/reducer.h"
#include "runtime/device/device_runtime.h"
#include "runtime/nn/nn.h"
#include "runtime/optim/adamw.h"
#include "runtime/optim/clip.h"
#include "runtime/optim/schedule.h"
#include "runtime/optim/sgd.h"
#include "runtime/tensor/tensor.h"
#include "runtime/train/batch.h"
#include "runtime/train/distributed_data_parallel.h"
#include "runtime/train/gather.h"
#include "runtime/train/progress.h"
#include "runtime/train/weights.h"
