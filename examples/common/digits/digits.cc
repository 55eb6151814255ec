// SPDX-License-Identifier: Apache-2.0
#include "examples/common/digits/digits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>

namespace digits {
namespace {

struct Point {
  double x = 0;
  double y = 0;
};
using Stroke = std::vector<Point>;

// A piece of an ellipse, by degrees, clockwise from the right: y grows downwards.
Stroke arc(Point centre, double width, double height, double from, double to) {
  Stroke stroke;
  for (int i = 0; i <= 12; ++i) {
    const double angle = (from + (to - from) * i / 12) * 3.14159265358979 / 180;
    stroke.push_back({centre.x + width * std::cos(angle), centre.y + height * std::sin(angle)});
  }
  return stroke;
}

// In a box of 1 x 1, its origin in the middle.
std::vector<Stroke> strokes_of(int digit) {
  switch (digit) {
    case 0: return {arc({0, 0}, 0.3, 0.45, 0, 360)};
    case 1: return {{{-0.15, -0.3}, {0.05, -0.45}, {0.05, 0.45}}};
    case 2: return {arc({0, -0.2}, 0.27, 0.25, 180, 380), {{0.25, -0.1}, {-0.28, 0.45}, {0.3, 0.45}}};
    case 3: return {arc({0, -0.22}, 0.25, 0.23, 200, 450), arc({0, 0.23}, 0.28, 0.22, 270, 520)};
    case 4: return {{{0.15, 0.45}, {0.15, -0.45}, {-0.3, 0.15}, {0.32, 0.15}}};
    case 5: return {{{0.27, -0.45}, {-0.22, -0.45}, {-0.25, -0.03}}, arc({0, 0.17}, 0.28, 0.27, 220, 510)};
    case 6: return {arc({0, 0.2}, 0.27, 0.25, 0, 360), {{-0.26, 0.15}, {-0.15, -0.2}, {0.15, -0.45}}};
    case 7: return {{{-0.28, -0.45}, {0.3, -0.45}, {-0.08, 0.45}}};
    case 8: return {arc({0, -0.23}, 0.22, 0.22, 0, 360), arc({0, 0.22}, 0.28, 0.23, 0, 360)};
    default: return {arc({0, -0.2}, 0.27, 0.25, 0, 360), {{0.26, -0.15}, {0.2, 0.15}, {-0.05, 0.45}}};
  }
}

// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream)
      : state_(seed * 0x9e3779b97f4a7c15 ^ (stream + 1) * 0xd1342543de82ef95) {}
  double between(double low, double high) {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return low + (high - low) * static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }

 private:
  std::uint64_t state_;
};

double distance(Point p, Point a, Point b) {
  const double dx = b.x - a.x;
  const double dy = b.y - a.y;
  const double length = dx * dx + dy * dy;
  const double along = length == 0 ? 0 : std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / length, 0.0, 1.0);
  return std::hypot(p.x - a.x - along * dx, p.y - a.y - along * dy);
}

void draw(int digit, Random& random, std::uint8_t* pixels) {
  const double size = random.between(14, 22);
  const double slant = random.between(-0.35, 0.35);
  const double width = random.between(0.8, 1.8);
  const double stretch = random.between(0.8, 1.2);
  const Point middle{13.5 + random.between(-2.5, 2.5), 13.5 + random.between(-2, 2)};
  std::vector<Stroke> strokes = strokes_of(digit);
  for (Stroke& stroke : strokes) {
    for (Point& p : stroke) {
      p = {middle.x + size * (p.x * stretch - p.y * slant), middle.y + size * p.y};
    }
  }
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      double nearest = 100;
      for (const Stroke& stroke : strokes) {
        for (std::size_t i = 1; i < stroke.size(); ++i) {
          nearest = std::min(nearest, distance({double(x), double(y)}, stroke[i - 1], stroke[i]));
        }
      }
      const double ink = std::clamp(width + 0.5 - nearest, 0.0, 1.0) * 230 + random.between(0, 25);
      pixels[y * kSide + x] = static_cast<std::uint8_t>(ink);
    }
  }
}

std::string hex(std::uint32_t number) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08x", number);
  return text;
}

// What follows the header of an IDX file: items of `item` bytes, as many as its second number says.
std::vector<std::uint8_t> read_file(const std::filesystem::path& path, std::uint32_t magic, std::size_t header,
                                    std::size_t item) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("'" + path.string() + "' can't be read; is it there, unpacked?");
  const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  const auto number = [&](std::size_t at) {
    return std::uint32_t{bytes[at]} << 24 | std::uint32_t{bytes[at + 1]} << 16 | std::uint32_t{bytes[at + 2]} << 8 |
           bytes[at + 3];
  };
  const auto refuse = [&](const std::string& why) {
    throw std::runtime_error("'" + path.string() + "' is not an IDX file of MNIST's: " + why);
  };
  if (bytes.size() < header) {
    refuse(std::to_string(bytes.size()) + " bytes are less than its header of " + std::to_string(header) +
           "; fetch it again");
  }
  if (number(0) != magic) {
    refuse("it begins with " + hex(number(0)) + ", not with " + hex(magic) +
           "; is it still packed, or are images and labels exchanged?");
  }
  if (header == 16 && (number(8) != kSide || number(12) != kSide)) {
    refuse("its images are " + std::to_string(number(8)) + " x " + std::to_string(number(12)) + ", not 28 x 28");
  }
  if (const std::size_t wanted = header + std::size_t{number(4)} * item; bytes.size() != wanted) {
    refuse(std::to_string(bytes.size()) + " bytes, and its header says " + std::to_string(wanted) + " (" +
           std::to_string(number(4)) + " items); is it cut short? Fetch it again");
  }
  return {bytes.begin() + static_cast<std::ptrdiff_t>(header), bytes.end()};
}

}  // namespace

Images render(std::int64_t count, std::uint64_t seed) {
  Images images;
  images.pixels.resize(static_cast<std::size_t>(count) * kSide * kSide);
  for (std::int64_t i = 0; i < count; ++i) {
    Random random(seed, static_cast<std::uint64_t>(i));
    const int digit = static_cast<int>(random.between(0, 10));
    images.labels.push_back(static_cast<std::uint8_t>(digit));
    draw(digit, random, images.pixels.data() + i * kSide * kSide);
  }
  return images;
}

Images read_idx(const std::filesystem::path& images, const std::filesystem::path& labels) {
  Images result{read_file(images, 0x803, 16, kSide * kSide), read_file(labels, 0x801, 8, 1)};
  if (result.pixels.size() != result.labels.size() * kSide * kSide) {
    throw std::runtime_error("'" + images.string() + "' has " + std::to_string(result.pixels.size() / (kSide * kSide)) +
                             " images, and '" + labels.string() + "' " + std::to_string(result.labels.size()) +
                             " labels; they are not of one set");
  }
  for (std::size_t i = 0; i < result.labels.size(); ++i) {
    if (result.labels[i] < 10) continue;
    throw std::runtime_error("'" + labels.string() + "': label " + std::to_string(i) + " is " +
                             std::to_string(result.labels[i]) + "; digits are 0 to 9");
  }
  return result;
}

}  // namespace digits
