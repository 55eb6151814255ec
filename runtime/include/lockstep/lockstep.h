// SPDX-License-Identifier: Apache-2.0
// Includes all of lockstep: #include <lockstep/lockstep.h>. Programs that include this header link lockstep::lockstep.
//
// A program that computes its gradients without lockstep, and needs only the Reducer to average them, includes
// lockstep/core.h instead of this header, and links the CMake target lockstep::core.
#pragma once

#include "lockstep/autograd/graph.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core.h"
#include "lockstep/data/tensor/batch.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "lockstep/train/gather.h"
#include "lockstep/train/snapshots.h"
#include "lockstep/train/weights.h"
