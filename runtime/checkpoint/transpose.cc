// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/transpose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

template <typename Element>
void transpose_elements(std::span<std::byte> matrix, std::int64_t rows, std::int64_t columns) {
  const auto from = std::make_unique_for_overwrite<Element[]>(static_cast<std::size_t>(rows * columns));
  std::memcpy(from.get(), matrix.data(), matrix.size());
  auto* const to = reinterpret_cast<Element*>(matrix.data());
  // Lines of 64 bytes are read and written whole.
  constexpr auto kBlock = static_cast<std::int64_t>(64 / sizeof(Element));
  for (std::int64_t r = 0; r < rows; r += kBlock) {
    for (std::int64_t c = 0; c < columns; c += kBlock) {
      for (std::int64_t i = r; i < std::min(rows, r + kBlock); ++i) {
        for (std::int64_t j = c; j < std::min(columns, c + kBlock); ++j) to[j * rows + i] = from[i * columns + j];
      }
    }
  }
}

}  // namespace

void transpose(std::span<std::byte> matrix, std::int64_t rows, std::int64_t columns, std::size_t width) {
  if (rows <= 1 || columns <= 1) return;
  switch (width) {
    case 1: return transpose_elements<std::uint8_t>(matrix, rows, columns);
    case 2: return transpose_elements<std::uint16_t>(matrix, rows, columns);
    case 4: return transpose_elements<std::uint32_t>(matrix, rows, columns);
    case 8: return transpose_elements<std::uint64_t>(matrix, rows, columns);
    default:
      throw InvalidArgument(
          fmt::format("transpose: the matrix has elements of {} bytes; give elements of 1, 2, 4 or 8 bytes", width));
  }
}

}  // namespace lockstep::checkpoint
