// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/tensor/batch.h"

#include <fmt/format.h>

#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.view().data); }

// Rows `ids` of dimension 0.
Tensor take_rows(const Tensor& tensor, std::span<const std::int64_t> ids) {
  if (!tensor) return {};
  Tensor result = Tensor::empty(tensor.shape().with_first(static_cast<std::int64_t>(ids.size())), tensor.dtype());
  const std::int64_t rows = tensor.size(0);
  const std::size_t stride = rows == 0 ? 0 : tensor.view().bytes() / static_cast<std::size_t>(rows);
  std::byte* out = bytes_of(result);
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= rows) {
      throw InvalidArgument(
          fmt::format("TensorDataset: sample {} was asked for, but the dataset has {} samples; give the sampler the "
                      "dataset's size()",
                      id, rows));
    }
    std::memcpy(out, bytes_of(tensor) + static_cast<std::size_t>(id) * stride, stride);
    out += stride;
  }
  return result;
}

Tensor stack(std::span<const std::int64_t> ids, std::span<const Sample> samples, const Tensor& like,
             Tensor Sample::*part) {
  if (!like) return {};
  std::vector<std::int64_t> extents{static_cast<std::int64_t>(samples.size())};
  extents.insert(extents.end(), like.shape().extents().begin(), like.shape().extents().end());
  Tensor result = Tensor::empty(Shape(std::span<const std::int64_t>(extents)), like.dtype());
  const std::size_t stride = like.view().bytes();
  std::byte* out = bytes_of(result);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Tensor& sample = samples[i].*part;
    if (!sample || sample.shape() != like.shape() || sample.dtype() != like.dtype()) {
      throw InvalidArgument(fmt::format(
          "collate: sample {} is {}, but the first sample of the dataset is {}; give all samples one shape and dtype",
          ids[i], sample.str(), like.str()));
    }
    if (stride > 0) std::memcpy(out, bytes_of(sample), stride);
    out += stride;
  }
  return result;
}

}  // namespace

Batch Batch::rows(std::int64_t begin, std::int64_t end) const {
  if (begin < 0 || end < begin || end > size()) {
    throw InvalidArgument(fmt::format(
        "Batch: rows {} to {} are not rows of a batch of {}; give 0 <= begin <= end, and end at most size()", begin,
        end, size()));
  }
  const auto copy = [&](const Tensor& tensor) { return tensor ? tensor.view_rows(begin, end).clone() : tensor; };
  return {copy(x), copy(y), {ids.begin() + begin, ids.begin() + end}};
}

Batch Batch::to(DeviceId device) const { return {x ? x.to(device) : x, y ? y.to(device) : y, ids}; }

TensorDataset::TensorDataset(Tensor x, Tensor y) : x_(std::move(x)), y_(std::move(y)) {
  if (!x_ || x_.shape().dims() == 0 || (y_ && (y_.shape().dims() == 0 || y_.size(0) != x_.size(0)))) {
    throw InvalidArgument(
        fmt::format("TensorDataset: x is {}, and y is {}; both must have one row per sample: give x and y the same "
                    "size in dimension 0",
                    x_.str(), y_.str()));
  }
  for (const Tensor& tensor : {x_, y_}) {
    if (!tensor || tensor.device().kind == DeviceKind::cpu) continue;
    throw InvalidArgument(
        fmt::format("TensorDataset: {} is on {}; keep samples on the CPU, and move each batch with to()", tensor.str(),
                    tensor.device().str()));
  }
}

Batch TensorDataset::batch(std::span<const std::int64_t> ids) const {
  return {take_rows(x_, ids), take_rows(y_, ids), {ids.begin(), ids.end()}};
}

Batch collate(std::span<const std::int64_t> ids, std::span<const Sample> samples, const Sample& like) {
  if (ids.size() != samples.size()) {
    throw InvalidArgument(
        fmt::format("collate: got {} ids for {} samples; give one id for each sample", ids.size(), samples.size()));
  }
  return {stack(ids, samples, like.x, &Sample::x), stack(ids, samples, like.y, &Sample::y), {ids.begin(), ids.end()}};
}

}  // namespace lockstep::data
