// SPDX-License-Identifier: Apache-2.0
// replay FOLDER: runs a fuzz target over every file of a folder, as a test. Fails if there is none.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " FOLDER\n";
    return 2;
  }
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1], error)) files.push_back(entry.path());
  if (files.empty()) {
    std::cerr << argv[1] << ": no file" << (error ? ": " + error.message() : "") << '\n';
    return 1;
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (!in) {
      std::cerr << file << ": can't be read\n";
      return 1;
    }
    std::cout << file.filename().string() << std::endl;  // Flushed: the last name is the one that ended the process.
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::cout << files.size() << " inputs\n";
  return 0;
}
