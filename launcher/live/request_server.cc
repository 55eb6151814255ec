// SPDX-License-Identifier: Apache-2.0
#include "launcher/live/request_server.h"

#include <sys/epoll.h>

#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::launcher {
namespace {

constexpr std::chrono::seconds kPause{1};

}  // namespace

RequestServer::Answer RequestServer::text(std::string part) {
  return [part = std::move(part)](std::string& output) mutable {
    output += std::exchange(part, {});
    return false;
  };
}

RequestServer::RequestServer(UniqueFd listener, Options options)
    : options_(std::move(options)), listener_(std::move(listener)) {
  loop_.add(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
  thread_ = start_quiet_thread([this] { serve(); });
}

// The sessions belong to the loop's thread, so end() runs there, and stops the loop once the clients have received what
// there was for them.
RequestServer::~RequestServer() {
  loop_.post([this] { end(); });
  thread_.join();
}

void RequestServer::wake() {
  if (!is_waking_.exchange(true)) loop_.post([this] { send_answers(); });
}

void RequestServer::serve() {
  try {
    loop_.run([this](const std::exception& error) { on_error(error); });
  } catch (const std::exception& error) {
    log_warn("{}: {}", options_.ended, error.what());
  }
}

void RequestServer::on_error(const std::exception& error) {
  if (ending_) throw;  // out of run(), so that the destructor's wait ends
  while (!sessions_.empty()) close_session(sessions_.begin()->first);
  if (!std::exchange(has_failed_, true)) log_warn("{}: {}", options_.failed, error.what());
}

void RequestServer::end() {
  ending_ = true;
  loop_.remove(listener_.get());
  listener_.reset();  // new clients don't find the socket
  send_answers();
  if (sessions_.empty()) return loop_.stop();
  loop_.run_after(options_.farewell, [this] { loop_.stop(); });
}

void RequestServer::accept() {
  UniqueFd fd;
  try {
    fd = options_.accept(listener_.get());
  } catch (const SystemError&) {
    // No descriptor is free for the client, which reports itself that it gets no answer. Until one may be free, the
    // listener's readiness would keep this thread busy.
    loop_.change(listener_.get(), 0);
    loop_.run_after(kPause, [this] {
      if (listener_) loop_.change(listener_.get(), EPOLLIN);
    });
    return;
  }
  if (!fd || sessions_.size() >= options_.most_clients) return;
  const int number = fd.get();
  Session& session = sessions_[number];
  session.connection = net::Connection(std::move(fd));
  if (options_.client_limit) {
    session.limit = loop_.run_after(*options_.client_limit, [this, number] { close_session(number); });
  }
  loop_.add(number, EPOLLIN, [this, number](std::uint32_t events) { on_event(number, events); });
}

void RequestServer::on_event(int fd, std::uint32_t events) {
  Session& session = sessions_.at(fd);
  // epoll reports that a client has gone for any watched descriptor, whatever its events are.
  const bool is_gone = session.answer && (events & (EPOLLHUP | EPOLLERR)) != 0;
  if (!is_gone && (session.answer ? send(session) : read_request(session))) return;
  close_session(fd);
}

void RequestServer::close_session(int fd) {
  loop_.cancel(sessions_.at(fd).limit);
  loop_.remove(fd);
  sessions_.erase(fd);
  if (ending_ && sessions_.empty()) loop_.stop();
}

bool RequestServer::read_request(Session& session) {
  if (!session.connection.receive_now()) return false;
  const std::string_view input = session.connection.input();
  const auto end = input.find(options_.end_of_request);
  if (end == std::string_view::npos) return input.size() < options_.most_request_bytes;
  session.answer = options_.answer(input.substr(0, end));
  return session.answer && send(session);
}

bool RequestServer::send(Session& session) {
  bool continues = true;
  do {
    if (!session.connection.send_now(session.output)) return false;
    if (!session.output.empty()) {
      loop_.change(session.connection.fd(), EPOLLOUT);
      return true;
    }
    continues = session.answer(session.output);
  } while (!session.output.empty());
  if (!continues || ending_) return false;
  loop_.change(session.connection.fd(), 0);  // until there is a part for the client, or it goes
  return true;
}

void RequestServer::send_answers() {
  is_waking_ = false;
  std::vector<int> over;
  for (auto& [fd, session] : sessions_) {
    if (session.answer ? !send(session) : ending_) over.push_back(fd);
  }
  for (const int fd : over) close_session(fd);
}

}  // namespace lockstep::launcher
