// SPDX-License-Identifier: Apache-2.0
#include "launcher/live/run_server.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/base/random_bytes.h"
#include "runtime/net/unix_socket.h"

namespace lockstep::launcher {
namespace {

constexpr std::size_t kMostSessions = 32;
constexpr std::size_t kMostRequestBytes = 256;
constexpr std::chrono::seconds kLastLines{1};
constexpr std::chrono::seconds kPause{1};
constexpr std::chrono::milliseconds kLook{500};  // interval of heartbeats

}  // namespace

RunServer::RunServer(std::string run_id, std::function<void()> stop, RecentLines& lines)
    : stop_(std::move(stop)),
      lines_(lines),
      user_(geteuid()),
      name_(run_socket_name(user_, random_hex(8), run_id)),
      listener_(net::unix_listen_abstract(name_)),
      facts_{.run_id = std::move(run_id), .pid = getpid()} {
  loop_.add(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
  loop_.run_after(kLook, [this] { look(); });
  thread_ = start_quiet_thread([this] { serve(); });
  lines_.set_listener([this] {
    if (!is_waking_.exchange(true)) loop_.post([this] { pump_followers(); });
  });
}

// The sessions belong to the loop's thread, so end() runs there, and stops the loop once the followers have received
// the last lines. The listener is removed first, since new lines must not wake a loop that may be gone.
RunServer::~RunServer() {
  lines_.set_listener({});
  loop_.post([this] { end(); });
  thread_.join();
}

void RunServer::serve() {
  try {
    loop_.run([this](const std::exception& error) { on_error(error); });
  } catch (const std::exception& error) {
    log_warn("lockstep ps, top, logs and stop do not reach this run any more: {}", error.what());
  }
}

void RunServer::on_error(const std::exception& error) {
  if (ending_) throw;  // out of run(), so that the destructor's wait ends
  while (!sessions_.empty()) close_session(sessions_.begin()->first);
  if (!std::exchange(has_failed_, true)) {
    log_warn("lockstep ps, top, logs or stop were left without an answer: {}", error.what());
  }
}

void RunServer::end() {
  ending_ = true;
  loop_.remove(listener_.get());
  listener_.reset();  // new clients don't find the socket
  pump_followers();
  if (sessions_.empty()) return loop_.stop();
  loop_.run_after(kLastLines, [this] { loop_.stop(); });
}

void RunServer::accept() {
  UniqueFd fd;
  try {
    fd = net::unix_accept(listener_.get(), Deadline::after(std::chrono::seconds(0)));
    if (net::peer_credentials(fd.get()).uid != user_) return;
  } catch (const Timeout&) {
    return;  // the client has gone
  } catch (const SystemError&) {
    // No descriptor is free for the client, which reports itself that it gets no answer. Until one may be free, the
    // listener's readiness would keep this thread busy.
    loop_.change(listener_.get(), 0);
    loop_.run_after(kPause, [this] {
      if (listener_) loop_.change(listener_.get(), EPOLLIN);
    });
    return;
  }
  if (sessions_.size() >= kMostSessions) return;
  const int number = fd.get();
  sessions_[number].fd = std::move(fd);
  loop_.add(number, EPOLLIN, [this, number](std::uint32_t events) { on_event(number, events); });
}

void RunServer::on_event(int fd, std::uint32_t events) {
  Session& session = sessions_.at(fd);
  // epoll reports that a client has gone for any watched descriptor, whatever its events are.
  const bool is_gone = session.answered && (events & (EPOLLHUP | EPOLLERR)) != 0;
  if (!is_gone && (session.answered ? send(session) : read_request(session))) return;
  close_session(fd);
}

void RunServer::close_session(int fd) {
  loop_.remove(fd);
  sessions_.erase(fd);
  if (ending_ && sessions_.empty()) loop_.stop();
}

bool RunServer::read_request(Session& session) {
  char buffer[kMostRequestBytes];
  const auto bytes = uninterrupted([&] { return read(session.fd.get(), buffer, sizeof buffer); });
  if (bytes < 0 && errno == EAGAIN) return true;
  if (bytes <= 0) return false;
  session.request.append(buffer, static_cast<std::size_t>(bytes));
  const auto end = session.request.find('\n');
  if (end == std::string::npos) return session.request.size() < kMostRequestBytes;
  const auto request = decode_run_request(std::string_view(session.request).substr(0, end));
  if (!request) return false;
  session.answered = true;
  answer(session, *request);
  return send(session);
}

void RunServer::answer(Session& session, const RunRequest& request) {
  if (request.what == RunRequest::What::logs) {
    session.out = kLogsHeader;
    session.reads_log = true;
    session.follows = request.follow;
    session.position = lines_.last(request.lines);
    session.until = lines_.last(0);
    return;
  }
  if (request.what == RunRequest::What::stacks) return ask_for_stacks(session, request);
  if (request.what == RunRequest::What::stop) {
    ++stops_;
    stop_();
  }
  session.out = request.what == RunRequest::What::top ? as_json(report()) : encode(facts_now());
}

void RunServer::ask_for_stacks(Session& session, const RunRequest& request) {
  MutexLock lock(mutex_);
  if (!ask_) return;
  session.question = ++questions_;
  ask_(session.question, request.rank, request.pid);
}

void RunServer::stacks_came(int question, std::vector<std::string> lines) {
  loop_.post([this, question, lines = std::move(lines)] {
    for (auto& [fd, session] : sessions_) {
      if (session.question != question) continue;
      session.question = 0;
      session.out = kStacksHeader;
      for (const std::string& line : lines) session.out += line + "\n";
      if (!send(session)) close_session(fd);
      return;
    }
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
  loop_.run_after(kLook, [this] { look(); });  // scheduled before the calls that may throw
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

// Moves bytes of the log into `out`. Returns false if there is nothing to send, now or ever.
bool RunServer::take_more(Session& session) {
  if (!session.reads_log || (!session.follows && session.position >= session.until)) return false;
  auto part = lines_.after(session.position);
  if (part.missed > 0) {
    session.out =
        fmt::format("lockstep logs: {} bytes are missing here: they came faster than they were read\n", part.missed);
  }
  session.out += part.text;
  session.position = part.next;
  return !session.out.empty();
}

bool RunServer::send(Session& session) {
  while (!session.out.empty() || take_more(session)) {
    // The launcher ignores SIGPIPE.
    const std::size_t sent = write_all(session.fd.get(), session.out);
    if (sent < session.out.size() && errno != EAGAIN) return false;
    session.out.erase(0, sent);
    if (session.out.empty()) continue;
    loop_.change(session.fd.get(), EPOLLOUT);
    return true;
  }
  const bool waits = session.follows || session.question != 0;
  if (!waits || ending_) return false;
  loop_.change(session.fd.get(), 0);  // until there are bytes for the client, or it goes
  return true;
}

void RunServer::pump_followers() {
  is_waking_ = false;
  std::vector<int> over;
  for (auto& [fd, session] : sessions_) {
    const bool may_send = session.follows || (ending_ && session.answered);
    if (may_send ? !send(session) : ending_) over.push_back(fd);
  }
  for (const int fd : over) close_session(fd);
}

}  // namespace lockstep::launcher
