// SPDX-License-Identifier: Apache-2.0
// All of the room.
#pragma once

#include "lockstep/autograd/graph.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/layer_norm.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/sequential.h"
#include "lockstep/nn/transformer.h"
