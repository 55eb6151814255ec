// SPDX-License-Identifier: Apache-2.0
#include "launcher/live/run_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/random_bytes.h"
#include "runtime/net/unix_socket.h"

namespace lockstep::launcher {
namespace {

constexpr std::chrono::milliseconds kLook{500};  // interval of heartbeats

}  // namespace

RunServer::RunServer(std::string run_id, std::function<void()> stop, RecentLines& lines)
    : stop_(std::move(stop)),
      lines_(lines),
      user_(geteuid()),
      name_(run_socket_name(user_, random_hex(8), run_id)),
      facts_{.run_id = std::move(run_id), .pid = getpid()},
      server_(net::unix_listen_abstract(name_),
              {.farewell = std::chrono::seconds(1),
               .ended = "lockstep ps, top, logs and stop do not reach this run any more",
               .failed = "lockstep ps, top, logs or stop were left without an answer",
               .accept = [this](int listener) { return accept(listener); },
               .answer = [this](std::string_view request) { return answer(request); }}) {
  server_.loop().post([this] { look(); });
  lines_.set_listener([this] { server_.wake(); });
}

// New lines must not wake a loop that may be gone.
RunServer::~RunServer() { lines_.set_listener({}); }

UniqueFd RunServer::accept(int listener) const {
  try {
    UniqueFd fd = net::unix_accept(listener, Deadline::after(std::chrono::seconds(0)));
    if (net::peer_credentials(fd.get()).uid == user_) return fd;
  } catch (const Timeout&) {  // the client has gone
  }
  return {};
}

RequestServer::Answer RunServer::answer(std::string_view line) {
  const auto request = decode_run_request(line);
  if (!request) return {};
  switch (request->what) {
    case RunRequest::What::logs: return log_of(*request);
    case RunRequest::What::stacks: return stacks_of(*request);
    case RunRequest::What::top: return RequestServer::text(as_json(report()));
    case RunRequest::What::stop:
      ++stops_;
      stop_();
      break;
    case RunRequest::What::ps: break;
  }
  return RequestServer::text(encode(facts_now()));
}

RequestServer::Answer RunServer::log_of(const RunRequest& request) const {
  return [&lines = lines_, header = kLogsHeader, follows = request.follow, position = lines_.last(request.lines),
          until = lines_.last(0)](std::string& output) mutable {
    output += std::exchange(header, {});
    if (!follows && position >= until) return false;
    const auto part = lines.after(position);
    if (part.missed > 0) {
      output +=
          fmt::format("lockstep logs: {} bytes are missing here: they came faster than they were read\n", part.missed);
    }
    output += part.text;
    position = part.next;
    return follows || !part.text.empty();
  };
}

RequestServer::Answer RunServer::stacks_of(const RunRequest& request) {
  MutexLock lock(mutex_);
  if (!ask_) return RequestServer::text({});
  const auto stacks = std::make_shared<Stacks>();
  std::erase_if(awaited_, [](const auto& one) { return one.second.expired(); });
  awaited_[++questions_] = stacks;
  ask_(questions_, request.rank, request.pid);
  return [stacks](std::string& output) {
    if (*stacks) output += std::exchange(**stacks, {});
    return !*stacks;
  };
}

void RunServer::stacks_came(int question, std::vector<std::string> lines) {
  server_.loop().post([this, question, lines = std::move(lines)] {
    const auto stacks = awaited_[question].lock();
    if (!stacks || *stacks) return;
    *stacks = kStacksHeader;
    for (const std::string& line : lines) **stacks += line + "\n";
    server_.wake();
  });
}

LiveReport RunServer::report() const {
  const RunFacts facts = facts_now();
  MutexLock lock(mutex_);
  return live_report(facts, live_);
}

// A rate needs two looks, so the first client already gets one. `members_` is called with the mutex held, here and
// below: once forget_members() has returned, no call is under way, and the store that it asks may end.
void RunServer::look() {
  server_.loop().run_after(kLook, [this] { look(); });  // scheduled before the calls that may throw
  MutexLock lock(mutex_);
  if (members_) live_.look(members_());
}

RunFacts RunServer::facts_now() const {
  MutexLock lock(mutex_);
  RunFacts facts = facts_;
  const auto age = std::chrono::steady_clock::now() - started_;
  facts.age_ms = std::chrono::duration_cast<std::chrono::milliseconds>(age).count();
  if (members_) {
    for (const auto& member : members_()) facts.step = std::max(facts.step, member.position.step);
  }
  facts.stops = stops_;
  return facts;
}

void RunServer::set_run(RunFacts facts, Members members, AskForStacks ask) {
  MutexLock lock(mutex_);
  facts_ = std::move(facts);
  members_ = std::move(members);
  ask_ = std::move(ask);
}

void RunServer::forget_members() {
  MutexLock lock(mutex_);
  members_ = {};
  ask_ = {};
  live_.look({});
}

}  // namespace lockstep::launcher
