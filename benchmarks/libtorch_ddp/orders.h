// SPDX-License-Identifier: Apache-2.0
// A rank of run_libtorch_ddp: PROGRAM MODEL RANK WORLD FOLDER DEVICE. It says its version and its contenders, then
// reads lines "CONTENDER STEPS", and answers each with the microseconds of every step, and of a DDP with the part of
// its communication that ran behind backward: "... hidden 0.87". All ranks get the same line at once. FOLDER is where
// the ranks meet. DEVICE is cpu or cuda: rank r computes on GPU r, and a step ends when the GPU has done it.
#pragma once

#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/trace/step_record.h"

namespace lockstep::benchmark {

// The steps of one order.
class Answer {
 public:
  // `step` does one, and returns its record, or null where no DDP takes part.
  template <typename Step>
  void time(const Step& step) {
    const auto begin = std::chrono::steady_clock::now();
    const trace::StepRecord* const record = step();
    microseconds_.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    if (record == nullptr) return;
    hidden_ += record->under_way;
    waited_ += record->waited;
  }
  void print() const {
    for (const double time : microseconds_) std::printf("%.2f ", time);
    const auto all = static_cast<double>((hidden_ + waited_).count());
    if (all > 0) std::printf("hidden %.4f", static_cast<double>(hidden_.count()) / all);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  std::vector<double> microseconds_;
  std::chrono::nanoseconds hidden_{};
  std::chrono::nanoseconds waited_{};
};

// main(). Rank(model, rank, world, folder, device) has hello() and run(contender, steps).
template <typename Rank>
int serve_orders(const char* program, int argc, char** argv) {
  try {
    if (argc != 6) throw std::invalid_argument("wanted: MODEL RANK WORLD FOLDER DEVICE");
    Rank rank(argv[1], std::stoi(argv[2]), std::stoi(argv[3]), argv[4], argv[5]);
    std::cout << rank.hello() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string contender;
      int steps = 0;
      if (!(words >> contender >> steps)) throw std::invalid_argument("no order: '" + line + "'");
      rank.run(contender, steps);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}

}  // namespace lockstep::benchmark
