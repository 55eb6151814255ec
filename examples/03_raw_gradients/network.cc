// SPDX-License-Identifier: Apache-2.0
#include "network.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <lockstep/base/random.h>

namespace ls = lockstep;

const std::vector<ls::ParameterSpec> kSpecs{{"w1", ls::DType::f32, {kInputs, kHidden}},
                                            {"b1", ls::DType::f32, {kHidden}},
                                            {"w2", ls::DType::f32, {kHidden}},
                                            {"b2", ls::DType::f32, {1}}};

Model initial_model() {
  Model model;
  ls::Generator random(1);
  for (const ls::ParameterSpec& spec : kSpecs) model.emplace_back(spec.count());
  for (float& weight : model[kW1]) weight = random.normal();
  for (float& weight : model[kW2]) weight = random.normal() / 6;
  return model;
}

Row row_of(unsigned step, int row) {
  const auto bits = ls::philox({step, static_cast<unsigned>(row), 0, 0}, {2026, 0});
  Row result;
  for (int i = 0; i < kInputs; ++i) result.x[i] = 4 * ls::uniform01(bits[i]) - 2;
  result.y = std::sin(result.x[0]) * std::cos(result.x[1]);
  return result;
}

int first_row(int rank, int ranks) { return kBatch * rank * (rank + 1) / (ranks * (ranks + 1)); }

float forward_backward(const Model& model, unsigned step, int begin, int end, const Gradients& gradients) {
  const auto rows = static_cast<std::size_t>(end - begin);
  std::vector<Row> batch;
  std::vector<float> hidden(rows * kHidden), d_output(rows);
  float loss = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const Row& it = batch.emplace_back(row_of(step, begin + static_cast<int>(row)));
    float output = model[kB2][0];
    for (int h = 0; h < kHidden; ++h) {
      float sum = model[kB1][h];
      for (int i = 0; i < kInputs; ++i) sum += it.x[i] * model[kW1][i * kHidden + h];
      hidden[row * kHidden + h] = std::tanh(sum);
      output += hidden[row * kHidden + h] * model[kW2][h];
    }
    const float error = output - it.y;
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
      for (int i = 0; i < kInputs; ++i) d_w1[i * kHidden + h] += d_sum * batch[row].x[i];
    }
  }
  gradients.ready(kB1);
  gradients.ready(kW1);
  return loss;
}

void train_alone(Model& model, unsigned step) {
  Model gradient = model;
  forward_backward(model, step, 0, kBatch, {[&](int p) { return gradient[p].data(); }, [](int) {}});
  for (std::size_t p = 0; p < model.size(); ++p) {
    for (std::size_t i = 0; i < model[p].size(); ++i) model[p][i] -= kRate * gradient[p][i] / kBatch;
  }
}

int compare(const Model& model, const Model& alone, int rank, int ranks) {
  float largest = 0, worst = 0;
  for (std::size_t p = 0; p < model.size(); ++p) {
    for (std::size_t i = 0; i < model[p].size(); ++i) {
      const float apart = std::abs(model[p][i] - alone[p][i]);
      largest = std::max(largest, std::abs(alone[p][i]));
      worst = std::isnan(apart) ? INFINITY : std::max(worst, apart);
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
