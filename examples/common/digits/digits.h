// SPDX-License-Identifier: Apache-2.0
// Images of digits, 28 x 28 grey values: those of MNIST's files, or rendered ones that need no download.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace digits {

inline constexpr int kSide = 28;

struct Images {
  std::vector<std::uint8_t> pixels;  // kSide * kSide per image, rows from the top; 255 is ink
  std::vector<std::uint8_t> labels;  // 0 to 9
};

// Strokes of the ten digits with random position, scale, slant, width and noise. Equal for equal arguments on every
// machine; image i depends on (seed, i) only.
Images render(std::int64_t count, std::uint64_t seed);

// A pair of IDX files (http://yann.lecun.com/exdb/mnist/): images of 28 x 28 bytes, and their labels. Throws
// std::runtime_error, with the path and what is wrong.
Images read_idx(const std::filesystem::path& images, const std::filesystem::path& labels);

}  // namespace digits
