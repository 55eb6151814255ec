// SPDX-License-Identifier: Apache-2.0
// A program over lockstep::core alone: the ranks of a job sum what they have.
#include <lockstep/comm/init/init_process_group.h>

#include <cstdio>
#include <span>
#include <vector>

int main() {
  auto group = lockstep::init_process_group();
  std::vector<float> sum = {static_cast<float>(group->rank() + 1)};
  group->all_reduce(std::span(sum)).wait();
  const int ranks = group->size();
  std::printf("rank %d: %g\n", group->rank(), sum[0]);
  return sum[0] == static_cast<float>(ranks * (ranks + 1)) / 2 ? 0 : 1;
}
