// SPDX-License-Identifier: Apache-2.0
// Includes all headers of lockstep except the headers of the tensor engine and the headers for LibTorch. Programs that
// compute gradients with their own code include lockstep/core.h. A program that includes lockstep/core.h links to
// lockstep::core. The page docs/OWN_GRADIENTS.md shows a whole program.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/stop.h"
#include "lockstep/comm/values.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/mapped_dataset.h"
#include "lockstep/data/permutation.h"
#include "lockstep/data/sampler.h"
#include "lockstep/ddp/on_rank0.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/device/device_runtime.h"
#include "lockstep/metrics/metrics.h"
#include "lockstep/metrics/stop.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/progress/progress.h"
#include "lockstep/trace/span.h"
