// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "runtime/tensor/cpu/cpu_kernels.h"

namespace lockstep {
namespace {

void copy(void* target, DeviceId, const void* source, DeviceId, std::size_t bytes) {
  std::memmove(target, source, bytes);
}

void zero(void* data, std::size_t bytes) { std::memset(data, 0, bytes); }

constexpr KernelTable kTable = {
    .allocate = cpu::allocate,
    .release = cpu::release,
    .copy = copy,
    .zero = zero,
    .fill = cpu::fill,
    .gemm = cpu::gemm,
    .transpose = cpu::transpose,
    .add = cpu::add,
    .multiply = cpu::multiply,
    .scale = cpu::scale,
    .relu = cpu::relu,
    .relu_backward = cpu::relu_backward,
    .tanh = cpu::tanh,
    .tanh_backward = cpu::tanh_backward,
    .gelu = cpu::gelu,
    .gelu_backward = cpu::gelu_backward,
    .add_row = cpu::add_row,
    .sum_rows = cpu::sum_rows,
    .sum = cpu::sum,
    .expand = cpu::expand,
    .sum_squares = cpu::sum_squares,
    .layer_norm = cpu::layer_norm,
    .layer_norm_backward = cpu::layer_norm_backward,
    .first_bad_index = cpu::first_bad_index,
    .embedding = cpu::embedding,
    .embedding_backward = cpu::embedding_backward,
    .attention = cpu::attention,
    .attention_backward = cpu::attention_backward,
    .dropout = cpu::dropout,
    .dropout_backward = cpu::dropout_backward,
    .cross_entropy = cpu::cross_entropy,
    .cross_entropy_backward = cpu::cross_entropy_backward,
    .mse = cpu::mse,
    .mse_backward = cpu::mse_backward,
    .adamw = cpu::adamw,
    .sgd = cpu::sgd,
};

}  // namespace

const KernelTable& cpu_kernels() { return kTable; }

}  // namespace lockstep
