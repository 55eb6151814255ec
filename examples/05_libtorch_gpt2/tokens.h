// SPDX-License-Identifier: Apache-2.0
// llm.c's token files, or the bytes of texts, as a dataset of torch::data.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "examples/05_libtorch_gpt2/flags.h"

// The tokens of a file, mapped into memory: the uint16 of a token file as torch::kShort, or the bytes of a text.
inline torch::Tensor map_tokens(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  require(file && std::filesystem::is_regular_file(path), "'{}' is not a file that can be read; check the path", path);
  std::array<int32_t, 256> header{};  // what kind of file it is, its version, and how many tokens it has
  file.read(reinterpret_cast<char*>(header.data()), sizeof(header));
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
  require(size > 0, "'{}' is empty; give a text, or a token file of llm.c's", path);
  const torch::Tensor bytes = torch::from_file(path, /*shared=*/false, size, torch::kByte);
  const bool has_tokens = header[0] == 20240520;
  require(has_tokens || !path.ends_with(".bin"),
          "'{}' begins with {}, and llm.c's GPT-2 tokens with 20240520; rename it if it is a text", path, header[0]);
  if (!has_tokens) return bytes;
  const int64_t wanted = 1024 + 2 * int64_t{header[2]};
  require(header[1] == 1 && size == wanted, "'{}' has version {} and {} bytes, and must have 1 and {}; copy it again",
          path, header[1], size, wanted);
  return bytes.slice(0, 1024).view(torch::kShort);
}

// Row i is `length` tokens and, as targets, those that follow each of them. The rows of a file lie end to end.
struct TokenRows : torch::data::datasets::BatchDataset<TokenRows, torch::data::Example<>> {
  TokenRows(const std::vector<std::string>& names, int64_t length_of_row) : paths(names), length(length_of_row) {
    for (const std::string& path : paths) {
      files.push_back(map_tokens(path));
      ends.push_back(end += (files.back().numel() - 1) / length);
      require(is_text() == (files.back().dtype() == torch::kByte),
              "'{}' and '{}': one is a text, the other a token file; give one kind", paths[0], path);
    }
  }
  bool is_text() const { return files[0].dtype() == torch::kByte; }
  torch::optional<size_t> size() const override { return static_cast<size_t>(end - begin); }
  torch::data::Example<> get_batch(torch::ArrayRef<size_t> indices) override {
    std::vector<torch::Tensor> rows;
    for (const size_t index : indices) rows.push_back(row(begin + static_cast<int64_t>(index)));
    const torch::Tensor all = torch::stack(rows);
    return {all.slice(1, 0, length), all.slice(1, 1)};
  }
  torch::Tensor row(int64_t index) const {
    const auto file = std::upper_bound(ends.begin(), ends.end(), index) - ends.begin();
    const int64_t at = (index - (file == 0 ? 0 : ends[file - 1])) * length;
    const torch::Tensor tokens = files[file].slice(0, at, at + length + 1).to(torch::kLong).bitwise_and_(0xffff);
    const auto largest = tokens.max().item<int64_t>();
    require(largest < vocabulary, "'{}' has token {} behind its first {}, and the model has {}; write it for GPT-2",
            paths[file], largest, at, vocabulary);
    return tokens;
  }

  std::vector<std::string> paths;
  std::vector<torch::Tensor> files;
  std::vector<int64_t> ends;  // of each file's rows
  int64_t length, begin = 0, end = 0;
  int64_t vocabulary = 0;  // of the model: other tokens are refused when they are read
};
