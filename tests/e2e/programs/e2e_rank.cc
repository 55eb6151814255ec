// SPDX-License-Identifier: Apache-2.0
// A rank of a job: a program that uses the library, to be launched and hurt. See script.h; beside the plain actions:
//   init[:URL]     joins the group; URL is its init_method
//   backend:NAME   asks for a backend; before init
//   sum            all-reduces (rank + 1), prints "sum S of N"
//   barrier        passes one, prints "barrier of N"
//   split          makes a group of this rank's half of the job, "split 1, color 0" or "split 1, color 1"
//   half:sum       as sum, on that group: "half sum S of N"
//   half:loop      all-reduces on it until something goes wrong
//   lost:WHERE     all-reduces on the "job" or on the "half" until a rank is lost, and prints "WHERE: " and what it is
//   told
//   model:N        makes a Reducer for a model of one parameter of N elements
//   loop           all-reduces until something goes wrong
//   listen         stop_on_signals()
//   train[:N]      steps of a Reducer until all have agreed to stop, N at most; prints "training" after the first one,
//                  and "trained N: REASON" at the end
//   train-on       the same; goes on with the next action when another rank is lost
//   enough:STEP    within `train`, asks to stop in that step; before it
//   finish         the program returns exit_code()
//   return:CODE    the program returns CODE
//   fail:TEXT      throws std::runtime_error, and catches as the next one does
//   catch          catches what goes wrong in any action, prints it and returns 1; with a number it is the plain action
//   abort:TEXT     fails the group with TEXT, then reduces
//   give-up:RANK   all reduce until RANK fails the group, and let it go
//   kill           SIGKILL to itself
//   rank0:ERRNO    has rank 0 fail with ERRNO at what it does for all ranks, as when it saves weights
//   leave          says goodbye: the group is gone
//   fork:WHAT      forks; the child all-reduces ("sum") or does nothing ("exit"), prints what it throws and calls
//   exit(),
//                  and the parent waits for it
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/comm/stop.h"
#include "lockstep/ddp/on_rank0.h"
#include "lockstep/ddp/reducer.h"
#include "tests/e2e/programs/plain_actions.h"

namespace lockstep::e2e {
namespace {

class Rank {
 public:
  void perform(const Action& action) {
    const auto& [name, value] = action;
    if (name == "init") {
      options_.init_method = value;
      group_ = init_process_group(options_);
    } else if (name == "backend") {
      options_.backend = value;
    } else if (name == "sum") {
      sum();
    } else if (name == "barrier") {
      group_->barrier().wait();
      std::printf("barrier of %d\n", group_->size());
      std::fflush(stdout);
    } else if (name == "split") {
      half_ = group_->split(group_->rank() * 2 / group_->size());
    } else if (name == "half" && value == "sum") {
      const float total = all_reduce(*half_, static_cast<float>(own_rank() + 1));
      std::printf("half sum %g of %d\n", static_cast<double>(total), half_->size());
      std::fflush(stdout);
    } else if (name == "half") {
      while (true) all_reduce(*half_, 1.0f);
    } else if (name == "lost") {
      wait_for_loss(value);
    } else if (name == "model") {
      const std::vector<ParameterSpec> model = {{"w", DType::f32, {std::stoll(value)}}};
      const Reducer reducer(model, group_);
    } else if (name == "listen") {
      stop_on_signals(*group_);
    } else if (name == "enough") {
      enough_ = std::stoll(value);
    } else if (name == "train") {
      train(value.empty() ? std::numeric_limits<std::int64_t>::max() : std::stoll(value));
    } else if (name == "train-on") {
      try {
        train(std::numeric_limits<std::int64_t>::max());
      } catch (const PeerLost&) {
        // as a program that saves what it has
      }
    } else if (name == "return") {
      exit_code_ = std::stoi(value);
    } else if (name == "finish") {
      exit_code_ = exit_code(*group_);
    } else if (name == "loop") {
      while (true) all_reduce(1.0f);
    } else if (name == "catch" && value.empty()) {
      // main() has seen it
    } else if (name == "abort") {
      group_->abort(value);
      all_reduce(1.0f);
    } else if (name == "give-up") {
      try {
        for (int k = 0;; ++k) {
          if (k == 3 && group_->rank() == std::stoi(value)) group_->abort("given up");
          all_reduce(1.0f);
        }
      } catch (const PeerLost&) {
        group_.reset();
      }
    } else if (name == "kill") {
      ::kill(::getpid(), SIGKILL);
    } else if (name == "rank0") {
      const int error = std::stoi(value);
      on_rank0(
          "save", [error]() -> std::string { throw SystemError("write", error); }, *group_);
    } else if (name == "fail") {
      throw std::runtime_error(value);
    } else if (name == "leave") {
      group_.reset();
    } else if (name == "fork") {
      fork_child(value);
    } else if (!perform_plain(action)) {
      throw std::runtime_error("e2e_rank: unknown action " + name);
    }
  }

  int exit_code_of_program() const { return exit_code_; }

 private:
  void train(std::int64_t most) {
    const std::vector<ParameterSpec> model = {{"w", DType::f32, {64}}};
    Reducer reducer(model, group_);
    std::int64_t steps = 0;
    while (steps < most && !should_stop(*group_)) {
      if (steps == enough_) request_stop(*group_, "good enough");
      reducer.begin_step({.weight = 1});
      *reducer.gradient<float>(0) = 1;
      reducer.mark_ready(0);
      reducer.finish_step();
      if (++steps == 1) std::printf("training\n");
      std::fflush(stdout);
    }
    std::printf("trained %lld: %s\n", static_cast<long long>(steps), should_stop(*group_).value_or("").c_str());
    std::fflush(stdout);
  }
  void fork_child(const std::string& what) {
    static std::shared_ptr<ProcessGroup> copy;  // whose destructor exit() runs
    copy = group_;
    const pid_t child = ::fork();
    if (child != 0) {
      int status = 0;
      ::waitpid(child, &status, 0);
      copy.reset();
      std::printf("child ended with %d\n", status);
      std::fflush(stdout);
      return;
    }
    group_.reset();
    try {
      if (what == "sum") copy->barrier().wait();
    } catch (const Error& error) {
      std::printf("child: %s\n", error.what());
    }
    std::exit(0);
  }
  float all_reduce(float value) { return all_reduce(*group_, value); }
  static float all_reduce(ProcessGroup& group, float value) {
    std::vector<float> values(4096, value);
    group.all_reduce(std::span<float>(values)).wait();
    return values.back();
  }
  void wait_for_loss(const std::string& where) {
    try {
      while (true) all_reduce(where == "half" ? *half_ : *group_, 1.0f);
    } catch (const PeerLost& lost) {
      std::printf("%s: %s\n", where.c_str(), lost.what());
      std::fflush(stdout);
    }
  }
  void sum() {
    const float total = all_reduce(static_cast<float>(group_->rank() + 1));
    std::printf("sum %g of %d\n", static_cast<double>(total), group_->size());
    std::fflush(stdout);
  }

  InitOptions options_;
  std::int64_t enough_ = -1;
  int exit_code_ = 0;
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<ProcessGroup> half_;
};

}  // namespace
}  // namespace lockstep::e2e

// For LeakSanitizer, which asks for it by name: Open MPI's PMIx client keeps some memory to the end, in part of texts
// that vasprintf made, whose stack ends there. Nothing of ours calls that, so nothing of ours is left out.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libpmix\nleak:vasprintf\n"; }

int main(int count, char** arguments) {
  using namespace lockstep::e2e;
  const auto actions = script(count, arguments);
  block_awaited_signals(actions);
  bool caught_here = false;
  for (const auto& action : actions) {
    caught_here = caught_here || action.name == "fail" || (action.name == "catch" && action.value.empty());
  }
  const auto perform_all = [&actions] {
    Rank rank;
    for (const auto& action : actions) rank.perform(action);
    return rank.exit_code_of_program();
  };
  if (!caught_here) return perform_all();  // as most programs are written: what goes wrong is uncaught
  try {
    return perform_all();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "main caught: %s\n", error.what());
    return 1;
  }
}
