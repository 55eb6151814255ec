// Data-parallel training without an engine: plain float arrays, gradients by hand, under the Reducer.
//
// A network of one hidden layer learns a function of two numbers. The ranks share each batch unevenly, on purpose: the
// result is that of one process on the whole batch, which every rank trains beside it to compare.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/comm/init/init_process_group.h"
#include "runtime/ddp/broadcast_parameters.h"
#include "runtime/ddp/reducer.h"
#include "runtime/ddp/replica_check.h"

namespace ls = lockstep;

constexpr int kInputs = 2, kHidden = 32, kBatch = 64, kSteps = 2000, kEvery = 400;
constexpr float kRate = 0.05f;

enum Parameter { kW1, kB1, kW2, kB2 };
const std::vector<ls::ParameterSpec> kSpecs{{"w1", ls::DType::f32, {kInputs, kHidden}},
                                            {"b1", ls::DType::f32, {kHidden}},
                                            {"w2", ls::DType::f32, {kHidden}},
                                            {"b2", ls::DType::f32, {1}}};
using Model = std::vector<std::vector<float>>;  // by Parameter

// Where a gradient is to be written, and whom to tell when it is final.
struct Gradients {
  std::function<float*(int)> slice;
  std::function<void(int)> ready;
};

// Forward and backward over rows [begin, end) of batch `step`. Writes the sum of the rows' gradients, last layer first,
// and returns the sum of their losses. Rows depend on their number only, whichever rank computes them.
float forward_backward(const Model& model, unsigned step, int begin, int end, const Gradients& gradients) {
  const auto rows = static_cast<std::size_t>(end - begin);
  std::vector<float> x(rows * kInputs), hidden(rows * kHidden), d_output(rows);
  float loss = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto bits = ls::philox({step, static_cast<unsigned>(begin) + static_cast<unsigned>(row), 0, 0}, {2026, 0});
    for (int i = 0; i < kInputs; ++i) x[row * kInputs + i] = 4 * ls::uniform01(bits[i]) - 2;
    float output = model[kB2][0];
    for (int h = 0; h < kHidden; ++h) {
      float sum = model[kB1][h];
      for (int i = 0; i < kInputs; ++i) sum += x[row * kInputs + i] * model[kW1][i * kHidden + h];
      hidden[row * kHidden + h] = std::tanh(sum);
      output += hidden[row * kHidden + h] * model[kW2][h];
    }
    const float error = output - std::sin(x[row * kInputs]) * std::cos(x[row * kInputs + 1]);
    d_output[row] = 2 * error;
    loss += error * error;
  }

  float *d_w2 = std::fill_n(gradients.slice(kW2), kHidden, 0.0f) - kHidden, *d_b2 = gradients.slice(kB2);
  *d_b2 = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    *d_b2 += d_output[row];
    for (int h = 0; h < kHidden; ++h) d_w2[h] += d_output[row] * hidden[row * kHidden + h];
  }
  gradients.ready(kB2);
  gradients.ready(kW2);

  float* d_w1 = std::fill_n(gradients.slice(kW1), kInputs * kHidden, 0.0f) - kInputs * kHidden;
  float* d_b1 = std::fill_n(gradients.slice(kB1), kHidden, 0.0f) - kHidden;
  for (std::size_t row = 0; row < rows; ++row) {
    for (int h = 0; h < kHidden; ++h) {
      const float t = hidden[row * kHidden + h], d_sum = d_output[row] * model[kW2][h] * (1 - t * t);
      d_b1[h] += d_sum;
      for (int i = 0; i < kInputs; ++i) d_w1[i * kHidden + h] += d_sum * x[row * kInputs + i];
    }
  }
  gradients.ready(kB1);
  gradients.ready(kW1);
  return loss;
}

int main() {
  const auto group = ls::init_process_group();
  const int rank = group->rank(), ranks = group->size();
  // Rank r's share of a batch grows with r: 21 and 43 rows of 64 on two ranks, perhaps none on the first of many.
  const auto share = [&](int r) { return kBatch * r * (r + 1) / (ranks * (ranks + 1)); };
  const int begin = share(rank), end = share(rank + 1);

  Model model;
  std::vector<ls::BufferView> views;
  std::vector<ls::NamedBuffer> named;
  ls::Generator random(1);
  for (const ls::ParameterSpec& spec : kSpecs) model.emplace_back(spec.count());
  for (float& weight : model[kW1]) weight = random.normal();
  for (float& weight : model[kW2]) weight = random.normal() / 6;
  for (auto& parameter : model) views.emplace_back(std::span(parameter));
  for (std::size_t p = 0; p < model.size(); ++p) named.push_back({kSpecs[p].name, views[p]});
  ls::broadcast_parameters(*group, views);  // rank 0's everywhere
  Model alone = model, alone_gradient = model;

  ls::Reducer reducer(kSpecs, group);
  const Gradients shared{[&](int p) { return reducer.gradient<float>(p); }, [&](int p) { reducer.mark_ready(p); }};
  const Gradients plain{[&](int p) { return alone_gradient[p].data(); }, [](int) {}};
  float loss = 0;  // of this rank's rows, since the last line
  for (unsigned step = 0; step < kSteps; ++step) {
    reducer.begin_step({.weight = end - begin});  // the sum over rows is rows times their mean
    loss += forward_backward(model, step, begin, end, shared);
    reducer.finish_step();  // gradients are now the mean over the whole batch
    for (int p = 0; p < static_cast<int>(model.size()); ++p) {
      const float* gradient = reducer.gradient<float>(p);
      for (std::size_t i = 0; i < model[p].size(); ++i) model[p][i] -= kRate * gradient[i];
    }
    forward_backward(alone, step, 0, kBatch, plain);
    for (std::size_t p = 0; p < alone.size(); ++p) {
      for (std::size_t i = 0; i < alone[p].size(); ++i) alone[p][i] -= kRate * alone_gradient[p][i] / kBatch;
    }
    if ((step + 1) % kEvery == 0) {
      group->all_reduce(std::span(&loss, 1), {.weight = kEvery * (end - begin)}).wait();  // the mean over all rows
      if (rank == 0) std::printf("step %4u  loss %.5f\n", step + 1, static_cast<double>(loss));
      loss = 0;
    }
  }

  ls::check_replicas(*group, named);  // throws, naming rank and parameter, if they are not equal to the last bit
  float largest = 0, worst = 0;
  for (std::size_t p = 0; p < model.size(); ++p) {
    for (std::size_t i = 0; i < model[p].size(); ++i) {
      largest = std::max(largest, std::abs(alone[p][i]));
      worst = std::max(worst, std::abs(model[p][i] - alone[p][i]));
    }
  }
  const bool equal = worst <= 1e-5f * largest;
  if (rank == 0) {
    std::printf(
        "%d replica%s bit-equal; weights %s those of one process on the whole batch (largest difference %.0e)\n", ranks,
        ranks == 1 ? "" : "s, all", equal ? "equal" : "DIFFER from", static_cast<double>(worst / largest));
  }
  return equal ? 0 : 1;
}
