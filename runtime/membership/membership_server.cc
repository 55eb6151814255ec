// SPDX-License-Identifier: Apache-2.0
#include "runtime/membership/membership_server.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "runtime/base/process_state.h"
#include "runtime/membership/forwarding.h"
#include "runtime/net/tcp_liveness.h"
#include "runtime/store/server/tcp_store_server.h"

namespace lockstep::membership {
namespace {

using Clock = std::chrono::steady_clock;

static_assert(store::kMaxClients >= 2 * std::size_t{kMaxWorldSize}, "each rank holds two connections");

}  // namespace

MembershipServer::MembershipServer(const MembershipOptions& options, OnNews on_news)
    : options_(options),
      on_news_(std::move(on_news)),
      service_(ProcessInfo::of_this_process(),
               {.host_answers = [this](store::SessionId client) { return host_answers(client); }}, options) {}

void MembershipServer::attach(store::ExtensionHost& host) { host_ = &host; }

std::vector<MemberView> MembershipServer::members() const {
  MutexLock lock(mutex_);
  return service_.table().members();
}

void MembershipServer::forget(std::string_view prefix) {
  MutexLock lock(mutex_);
  service_.table().forget(prefix);
}

store::ServerExtension::Answer MembershipServer::serve(store::SessionId client, const proto::Request& request) {
  Answer answer;
  {
    MutexLock lock(mutex_);
    service_.table().observe(Clock::now());
    answer.frame = service_.serve(client, request);
    answer.is_urgent = service_.table().is_member(client);
  }
  // Before the answer is sent: a process that has it may end, and the launcher then judges it by what it reported.
  tell();
  if (request.op == proto::Op::register_member && answer.frame.status == proto::kOk) {
    net::end_when_host_is_silent(host_->socket_of(client), kDeadHost);
    if (!looking_) check_members();
  }
  return answer;
}

void MembershipServer::ended(store::SessionId client) {
  {
    MutexLock lock(mutex_);
    service_.table().ended(client);
  }
  tell();
}

store::ServerExtension::GivenUp MembershipServer::given_up() const {
  MutexLock lock(mutex_);
  GivenUp result;
  for (const auto& [id, rank] : service_.table().given_up()) {
    if (carrier_of(id) == 0) {
      result.clients.push_back(id);
    } else {
      result.roles.push_back(fmt::format("rank {}", rank));  // as each of its clients calls itself
    }
  }
  return result;
}

void MembershipServer::check_members() {
  {
    MutexLock lock(mutex_);
    looking_ = service_.table().present() > 0;
  }
  if (!looking_) return;
  // Before what may throw: the next look comes in any case.
  host_->call_after(options_.look_interval, [this] { check_members(); });
  const bool traced = this_process_is_traced();
  {
    MutexLock lock(mutex_);
    service_.table().observe(Clock::now());
    service_.set_traced(traced);
    service_.table().check_members();
  }
  tell();
}

bool MembershipServer::host_answers(store::SessionId client) const {
  const int fd = host_->socket_of(connection_of(client));
  return fd >= 0 && net::all_is_acknowledged(fd);
}

// Without the lock: a callback may ask for the members.
void MembershipServer::tell() {
  std::vector<MemberNews> news;
  {
    MutexLock lock(mutex_);
    news = service_.table().take_news();
    if (!is_pushing_ && service_.table().has_pushes()) {
      host_->call_after({}, [this] { push(); });
      is_pushing_ = true;
    }
  }
  if (on_news_) {
    for (const MemberNews& item : news) on_news_(item);
  }
}

void MembershipServer::push() {
  std::vector<MembershipTable::Push> pushes;
  {
    MutexLock lock(mutex_);
    is_pushing_ = false;
    pushes = service_.table().take_pushes();
  }
  for (auto& [to, frame] : MemberService::frames_of(std::move(pushes))) host_->push(to, std::move(frame));
}

}  // namespace lockstep::membership
