// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/equality/gather_numbers.h"

namespace lockstep {

std::vector<std::uint64_t> gather_numbers(ProcessGroup& group, std::vector<std::uint64_t> mine) {
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(group.size()));
  const auto view = [](std::vector<std::uint64_t>& values) {
    return BufferView(values.data(), static_cast<std::int64_t>(values.size()), DType::i64);
  };
  group.all_gather(view(mine), view(all)).wait();
  return all;
}

}  // namespace lockstep
