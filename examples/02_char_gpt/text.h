// SPDX-License-Identifier: Apache-2.0
// The text: its characters as numbers, its split, its windows, and the table that a model has to beat.
//
// Characters are bytes: every file is a text, and one in UTF-8 is learned byte by byte.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/data/tensor/batch.h>

namespace char_gpt {

// Tokens are the characters of a text in byte order, from 1. Token 0 stands for every character that it has not.
class Vocabulary {
 public:
  static constexpr std::int64_t kUnknown = 0;

  explicit Vocabulary(std::string_view text);
  std::int64_t size() const { return static_cast<std::int64_t>(characters_.size()) + 1; }
  std::vector<std::int64_t> encode(std::string_view text) const;
  // '?' for the unknown.
  char decode(std::int64_t token) const;
  // Its characters in hexadecimal, to be kept beside the weights, and back. InvalidArgument if that is not one.
  std::string hex() const;
  static Vocabulary from_hex(std::string_view hex);

 private:
  std::string characters_;  // sorted, each once
  std::array<std::int64_t, 256> token_{};
};

// Reads a whole file. InvalidArgument if it is missing, no regular file or empty.
std::string read_text(const std::string& path);

// A text cut in two at one place: what comes after it is never trained on, not even as the end of a window.
struct Split {
  std::string_view training;
  std::string_view held_out;
};
// The last tenth, at least one window of context + 1 characters, is held out. InvalidArgument if the text has no room
// for a window in either part.
Split split_text(std::string_view text, std::int64_t context);

using Tokens = std::shared_ptr<const std::vector<std::int64_t>>;

// Sample i: context characters from position i * stride as x, the ones after each of them as y. Stride 1 trains on
// every place; stride = context reads each character once, to measure.
class Windows {
 public:
  Windows(Tokens tokens, std::int64_t context, std::int64_t stride);
  std::int64_t size() const;
  // x and y [ids.size(), context], int64.
  lockstep::data::Batch batch(std::span<const std::int64_t> ids) const;

 private:
  Tokens tokens_;
  std::int64_t context_;
  std::int64_t stride_;
};

// How often which character follows which, counted; every pair once more than seen, so that nothing is impossible.
class BigramTable {
 public:
  BigramTable(std::span<const std::int64_t> training, std::int64_t vocabulary);
  // -log of the probability of `next` after `previous`, in nats.
  double loss(std::int64_t previous, std::int64_t next) const;
  // The mean over all targets of all windows: what a model's validation loss is compared with.
  double mean_loss(const Windows& windows) const;

 private:
  std::int64_t vocabulary_;
  std::vector<double> counts_;  // [previous, next]
  std::vector<double> totals_;  // [previous]
};

}  // namespace char_gpt
