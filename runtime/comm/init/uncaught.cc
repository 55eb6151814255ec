// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/uncaught.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/job/cause.h"
#include "runtime/base/at_fatal_error.h"
#include "runtime/base/line_output.h"
#include "runtime/base/printable.h"
#include "runtime/base/resource_limit.h"
#include "runtime/base/write_at_once.h"
#include "runtime/job/exit_code.h"
#include "runtime/job/step_board.h"

namespace lockstep {
namespace {

std::atomic<int> rank_of_process{-1};
std::atomic<std::terminate_handler> previous{nullptr};

// Another rank failed first: PeerLost, or what ranks throw together because of one of them.
bool is_consequence(const Error& error, int rank) {
  const Cause* const cause = error.cause();
  if (cause != nullptr && cause->rank == rank && cause->reporter == rank) return false;
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) return true;
  return cause != nullptr && cause->kind == Cause::Kind::failed && cause->rank >= 0 && rank >= 0 && cause->rank != rank;
}

// Not exit(): other threads still run, and their objects must not be destroyed under them.
[[noreturn]] void report_and_exit(std::string_view message, int exit_code) {
  const int rank = rank_of_process.load();
  const std::string text = printable_lines(message);
  std::string line =
      rank < 0 ? fmt::format("[lockstep] fatal: {}", text) : fmt::format("[lockstep rank {}] fatal: {}", rank, text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  stderr_output().write(line);  // if stderr is closed, the exit code has to say it
  run_at_fatal_error();
  flush_stderr();
  keep_exit_code(exit_code);
  ::_exit(exit_code);
}

// There may be no memory for more than the first line.
[[noreturn]] void report_out_of_memory() {
  try {
    const std::string limit = limit_behind(ENOMEM);
    report_and_exit(
        fmt::format("out of memory: an allocation failed (std::bad_alloc){}{}; raise the limit on memory of "
                    "this process or its container, or use a smaller batch or model",
                    limit.empty() ? "" : ": ", limit),
        1);
  } catch (const std::bad_alloc&) {
    constexpr int kPatience = 1000;
    write_within(STDERR_FILENO, "[lockstep] fatal: out of memory: an allocation failed (std::bad_alloc)\n", kPatience);
    keep_exit_code(1);
    ::_exit(1);
  }
}

// Every rank would write the backtrace of fifty lines into those of the others.
void report_if_torchs(std::string_view text) {
  const std::string_view error = without_backtrace(text);
  if (error == text || Environment::of_process().get("TORCH_SHOW_CPP_STACKTRACES") == std::string("1")) return;
  report_and_exit(error, 1);
}

[[noreturn]] void on_terminate() {
  if (const std::exception_ptr current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const Error& error) {
      report_and_exit(error.what(), is_consequence(error, rank_of_process.load()) ? kExitPeerLost : 1);
    } catch (const std::bad_alloc&) {
      report_out_of_memory();
    } catch (const std::exception& error) {
      report_if_torchs(error.what());
    } catch (...) {  // Not ours: as without us.
    }
  }
  run_at_fatal_error();
  flush_stderr();
  if (const std::terminate_handler handler = previous.load()) handler();
  std::abort();
}

}  // namespace

void install_uncaught_error_handler() {
  const std::terminate_handler before = std::get_terminate();
  if (before == on_terminate) return;
  previous.store(before);
  std::set_terminate(on_terminate);
}

void set_uncaught_error_rank(int rank) { rank_of_process.store(rank); }

}  // namespace lockstep
