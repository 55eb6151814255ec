// Losses, where users look for them. What each computes: autograd/ops.h.
#pragma once

#include "lockstep/autograd/ops.h"

namespace lockstep::nn {

using lockstep::cross_entropy;
using lockstep::CrossEntropyOptions;
using lockstep::mse_loss;

}  // namespace lockstep::nn
