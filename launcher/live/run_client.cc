// SPDX-License-Identifier: Apache-2.0
#include "launcher/live/run_client.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/procfs.h"
#include "runtime/base/text.h"
#include "runtime/net/stream.h"
#include "runtime/net/unix_socket.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kSockets = "/proc/net/unix";
// Limit for an answer to "ps" or "stop".
constexpr std::size_t kMostAnswerBytes = 64 * 1024;
// Limit for an answer to "top", which lists each rank.
constexpr std::size_t kMostReportBytes = 64 * 1024 * 1024;

struct Pending {
  FoundRun run;
  UniqueFd fd;  // empty: the launcher could not be asked
};

std::vector<std::string> listening() {
  const std::string text = read_kernel_file(kSockets);
  if (text.empty()) throw SystemError(fmt::format("read {}", kSockets), ENOENT);
  return run_sockets(text, geteuid());
}

bool has_ended(const std::string& socket) {
  const auto names = listening();
  return std::find(names.begin(), names.end(), socket) == names.end();
}

// Returns nullopt if the socket is another user's, or its launcher has ended meanwhile.
std::optional<Pending> ask_for_facts(const std::string& socket) {
  Pending pending{.run = {.socket = socket, .run_id = run_id_of(socket)}, .fd = {}};
  const Deadline at_once = Deadline::after(std::chrono::seconds(0));
  try {
    pending.fd = net::unix_connect_abstract(socket, at_once);
    const auto listener = net::peer_credentials(pending.fd.get());
    if (listener.uid != geteuid()) return std::nullopt;
    pending.run.pid = listener.pid;
    net::send_all(pending.fd.get(), encode(RunRequest{.what = RunRequest::What::ps}), at_once);
  } catch (const Error&) {
    if (has_ended(socket)) return std::nullopt;
    pending.fd.reset();  // its queue of connections is full: it does not answer
  }
  return pending;
}

std::optional<RunFacts> answer_of(UniqueFd fd, const Deadline& deadline) {
  net::Connection launcher(std::move(fd));
  const auto text = read_answer(launcher, kMostAnswerBytes, deadline);
  return text ? decode_run_facts(*text) : std::nullopt;
}

std::string describe_found(const FoundRun& run) {
  if (run.pid != 0) return fmt::format("{} (pid {})", run.run_id, run.pid);
  return fmt::format("{} (in another pid namespace)", run.run_id);
}

}  // namespace

std::vector<FoundRun> find_runs() {
  // All launchers are asked before the first answer is awaited.
  std::vector<Pending> asked;
  for (const std::string& socket : listening()) {
    if (auto pending = ask_for_facts(socket)) asked.push_back(std::move(*pending));
  }
  const Deadline deadline = Deadline::after(kAnswerLimit);
  std::vector<FoundRun> runs;
  for (Pending& pending : asked) {
    FoundRun& run = pending.run;
    if (pending.fd) run.facts = answer_of(std::move(pending.fd), deadline);
    if (!run.facts && has_ended(run.socket)) continue;
    if (run.facts) run.run_id = run.facts->run_id;
    runs.push_back(std::move(run));
  }
  std::sort(runs.begin(), runs.end(), [](const FoundRun& one, const FoundRun& other) {
    const auto key = [](const FoundRun& run) {
      return std::tuple(std::string_view(run.run_id), run.facts ? run.facts->node_rank : 0, run.pid);
    };
    return key(one) < key(other);
  });
  return runs;
}

FoundRun choose_run(const std::vector<FoundRun>& runs, std::string_view name) {
  std::vector<FoundRun> fitting;
  for (const FoundRun& run : runs) {
    if (run.run_id == name) return run;
    const bool is_another = fitting.empty() || fitting.back().run_id != run.run_id;
    if (run.run_id.starts_with(name) && is_another) fitting.push_back(run);
  }
  if (fitting.size() == 1) return fitting.front();
  if (fitting.empty() && name.empty())
    throw Error("no run of this user is on this host; start one with lockstep run, or look on the job's other hosts");
  if (fitting.empty()) {
    throw Error(fmt::format(
        "no run of this user on this host begins with '{}'; lockstep ps shows the runs of this host", printable(name)));
  }
  const std::string several = joined(fitting, describe_found, " or ", 8);
  if (name.empty()) throw Error(fmt::format("several runs are on this host: {}; name one of these runs", several));
  throw Error(fmt::format("'{}' may mean {}; give more characters of the run id", printable(name), several));
}

FoundRun choose_run_that_answers(const std::vector<FoundRun>& runs, std::string_view name) {
  FoundRun run = choose_run(runs, name);
  if (!run.facts) throw Error(describe_silent(run));
  return run;
}

std::string describe_silent(const FoundRun& run) {
  return fmt::format("{} has not answered within {} s: if its launcher is stopped, kill -CONT {} resumes the launcher",
                     describe_found(run), std::chrono::duration<double>(kAnswerLimit).count(), run.pid);
}

UniqueFd ask(const FoundRun& run, const RunRequest& request) {
  try {
    const Deadline deadline = Deadline::after(kAnswerLimit);
    UniqueFd fd = net::unix_connect_abstract(run.socket, deadline);
    if (const uid_t user = net::peer_credentials(fd.get()).uid; user != geteuid()) {
      throw Error(fmt::format(
          "{}: a process of user {} answers instead of this run's launcher; end this run, and start the job again",
          describe_found(run), user));
    }
    net::send_all(fd.get(), encode(request), deadline);
    return fd;
  } catch (const Timeout&) {
    throw Error(
        fmt::format("{} has ended, or does not answer; lockstep ps shows the runs that answer", describe_found(run)));
  }
}

std::optional<std::string> read_answer(net::Connection& launcher, std::size_t most, const Deadline& deadline) {
  try {
    while (launcher.input().size() < most) launcher.receive(deadline);
  } catch (const net::ConnectionClosed&) {
    return std::string(launcher.input());
  } catch (const Timeout&) {
  }
  return std::nullopt;
}

std::string answer_to(const FoundRun& run, const RunRequest& request) {
  net::Connection launcher(ask(run, request));
  auto text = read_answer(launcher, kMostReportBytes, Deadline::after(kAnswerLimit));
  if (!text) throw Error(describe_silent(run));
  return std::move(*text);
}

}  // namespace lockstep::launcher
