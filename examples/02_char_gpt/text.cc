// SPDX-License-Identifier: Apache-2.0
#include "examples/02_char_gpt/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include <lockstep/base/error.h>

namespace char_gpt {

using lockstep::InvalidArgument;

Vocabulary::Vocabulary(std::string_view text) {
  std::set<unsigned char> seen;
  for (const char character : text) seen.insert(static_cast<unsigned char>(character));
  for (const unsigned char character : seen) {
    characters_.push_back(static_cast<char>(character));
    token_[character] = static_cast<std::int64_t>(characters_.size());
  }
}

std::vector<std::int64_t> Vocabulary::encode(std::string_view text) const {
  std::vector<std::int64_t> tokens;
  tokens.reserve(text.size());
  for (const char character : text) tokens.push_back(token_[static_cast<unsigned char>(character)]);
  return tokens;
}

char Vocabulary::decode(std::int64_t token) const {
  return token <= 0 || token >= size() ? '?' : characters_[static_cast<std::size_t>(token) - 1];
}

std::string Vocabulary::hex() const {
  std::string text;
  for (const char character : characters_) text += fmt::format("{:02x}", static_cast<unsigned char>(character));
  return text;
}

Vocabulary Vocabulary::from_hex(std::string_view hex) {
  const auto digit = [&](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    throw InvalidArgument(fmt::format("vocabulary '{}' is not written in hexadecimal", hex));
  };
  if (hex.size() % 2 != 0) throw InvalidArgument(fmt::format("vocabulary '{}' has half a character", hex));
  std::string characters;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    characters.push_back(static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1])));
  }
  Vocabulary vocabulary(characters);
  if (vocabulary.characters_ != characters) {
    throw InvalidArgument(fmt::format("vocabulary '{}' is not in order, each character once", hex));
  }
  return vocabulary;
}

std::string read_text(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    throw InvalidArgument(fmt::format("the text '{}' is not there; name another with --text FILE", path));
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw InvalidArgument(fmt::format("the text '{}' is not a regular file; name another with --text FILE", path));
  }
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw InvalidArgument(fmt::format("the text '{}' can't be read; check its permissions", path));
  if (text.empty()) throw InvalidArgument(fmt::format("the text '{}' is empty; name another with --text FILE", path));
  return text;
}

Split split_text(std::string_view text, std::int64_t context) {
  const auto window = static_cast<std::size_t>(context) + 1;
  const std::size_t held_out = std::max(text.size() / 10, window);
  if (text.size() < held_out + window) {
    throw InvalidArgument(
        fmt::format("the text has {} characters; a context of {} needs at least {}, {} to train on and {} to measure "
                    "with: take a longer text (--text) or a shorter --context",
                    text.size(), context, 2 * window, window, window));
  }
  return {text.substr(0, text.size() - held_out), text.substr(text.size() - held_out)};
}

Windows::Windows(Tokens tokens, std::int64_t context, std::int64_t stride)
    : tokens_(std::move(tokens)), context_(context), stride_(stride) {}

std::int64_t Windows::size() const {
  const auto length = static_cast<std::int64_t>(tokens_->size());
  return length <= context_ ? 0 : (length - context_ - 1) / stride_ + 1;
}

lockstep::data::Batch Windows::batch(std::span<const std::int64_t> ids) const {
  const auto rows = static_cast<std::int64_t>(ids.size());
  lockstep::data::Batch batch{lockstep::Tensor::empty({rows, context_}, lockstep::DType::i64),
                              lockstep::Tensor::empty({rows, context_}, lockstep::DType::i64),
                              {ids.begin(), ids.end()}};
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t* from = tokens_->data() + ids[static_cast<std::size_t>(row)] * stride_;
    std::copy_n(from, context_, batch.x.data<std::int64_t>() + row * context_);
    std::copy_n(from + 1, context_, batch.y.data<std::int64_t>() + row * context_);
  }
  return batch;
}

BigramTable::BigramTable(std::span<const std::int64_t> training, std::int64_t vocabulary)
    : vocabulary_(vocabulary),
      counts_(static_cast<std::size_t>(vocabulary * vocabulary), 1.0),
      totals_(static_cast<std::size_t>(vocabulary), static_cast<double>(vocabulary)) {
  for (std::size_t i = 0; i + 1 < training.size(); ++i) {
    counts_[static_cast<std::size_t>(training[i] * vocabulary + training[i + 1])] += 1;
    totals_[static_cast<std::size_t>(training[i])] += 1;
  }
}

double BigramTable::loss(std::int64_t previous, std::int64_t next) const {
  return std::log(totals_[static_cast<std::size_t>(previous)]) -
         std::log(counts_[static_cast<std::size_t>(previous * vocabulary_ + next)]);
}

double BigramTable::mean_loss(const Windows& windows) const {
  double sum = 0;
  std::int64_t targets = 0;
  for (std::int64_t id = 0; id < windows.size(); ++id) {
    const lockstep::data::Batch batch = windows.batch(std::span(&id, 1));
    const auto x = batch.x.values<std::int64_t>();
    const auto y = batch.y.values<std::int64_t>();
    for (std::size_t i = 0; i < x.size(); ++i) sum += loss(x[i], y[i]);
    targets += static_cast<std::int64_t>(x.size());
  }
  return targets == 0 ? 0 : sum / static_cast<double>(targets);
}

}  // namespace char_gpt
