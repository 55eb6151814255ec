// All of the room.
#pragma once

#include "runtime/autograd/graph.h"
#include "runtime/nn/activation.h"
#include "runtime/nn/embedding.h"
#include "runtime/nn/layer_norm.h"
#include "runtime/nn/linear.h"
#include "runtime/nn/loss.h"
#include "runtime/nn/module.h"
#include "runtime/nn/sequential.h"
#include "runtime/nn/transformer.h"
