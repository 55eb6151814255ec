// SPDX-License-Identifier: Apache-2.0
// The network of this example: its sizes, its data, and its gradients by hand on the CPU.
#pragma once

#include <functional>
#include <vector>

#include <lockstep/ddp/bucket_plan.h>

constexpr int kInputs = 2, kHidden = 32, kBatch = 64, kSteps = 2000, kEvery = 400;
constexpr float kRate = 0.05f;

enum Parameter { kW1, kB1, kW2, kB2 };
extern const std::vector<lockstep::ParameterSpec> kSpecs;  // by Parameter
using Model = std::vector<std::vector<float>>;             // by Parameter
Model initial_model();

// One row of a batch, which depends on its number only, whichever rank computes it: two numbers, and what is to be
// learned of them.
struct Row {
  float x[kInputs];
  float y;
};
Row row_of(unsigned step, int row);

// The first row of a batch that is rank `rank`'s: its number of rows grows with its number. 21 and 43 rows of 64 on two
// ranks, perhaps none on the first of many.
int first_row(int rank, int ranks);

// Where a gradient is to be written, and whom to tell when it is final.
struct Gradients {
  std::function<float*(int)> slice;
  std::function<void(int)> ready;
};

// Forward and backward over rows [begin, end) of batch `step`. Writes the sum of the rows' gradients, last layer first,
// and returns the sum of their losses.
float forward_backward(const Model& model, unsigned step, int begin, int end, const Gradients& gradients);

// One step of one process on the whole batch.
void train_alone(Model& model, unsigned step);

// Says on rank 0 whether the weights are equal to those of one process; the program's exit code.
int compare(const Model& model, const Model& alone, int rank, int ranks);
