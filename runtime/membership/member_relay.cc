// SPDX-License-Identifier: Apache-2.0
#include "runtime/membership/member_relay.h"

#include <utility>

#include "runtime/base/process_state.h"
#include "runtime/membership/member_link.h"
#include "runtime/net/tcp_liveness.h"

namespace lockstep::membership {

// The table, on the server's thread but for flush().
class MemberRelay::Extension final : public store::ServerExtension {
 public:
  explicit Extension(const MembershipOptions& options)
      : options_(options),
        table_(ProcessInfo::of_this_process(), options,
               {.host_answers = [this](store::SessionId client) { return host_answers(client); }}) {}

  void attach(store::ExtensionHost& host) override { host_ = &host; }

  Answer serve(store::SessionId client, const proto::Request& request) override EXCLUDES(mutex_) {
    Answer answer;
    {
      MutexLock lock(mutex_);
      table_.observe(std::chrono::steady_clock::now());
      auto frame = table_.serve(client, request);
      answer.is_later = !frame;
      if (frame) answer.frame = std::move(*frame);
      answer.is_urgent = table_.is_member(client);
      send();
      if (!looking_) look_again();
    }
    return answer;
  }

  void ended(store::SessionId client) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    table_.ended(client);
    send();
  }

  GivenUp given_up() const override { return {}; }

  void connect(MemberLink* link) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    link_ = link;
  }

  // The server has taken what comes from the link, in its order.
  template <typename What>
  void deliver(What what) EXCLUDES(mutex_) {
    host_->post([this, what = std::move(what)] {
      MutexLock lock(mutex_);
      table_.deliver(what);
      tell();
    });
  }

  void flush() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    table_.flush_beats();
    send();
  }

 private:
  void look() EXCLUDES(mutex_) {
    const bool traced = this_process_is_traced();
    MutexLock lock(mutex_);
    look_again();
    table_.observe(std::chrono::steady_clock::now());
    table_.set_traced(traced);
    table_.check_members();
    send();
    tell();
  }

  // As long as there are members.
  void look_again() REQUIRES(mutex_) {
    looking_ = table_.present() > 0;
    if (looking_) host_->call_after(options_.look_interval, [this] { look(); });
  }

  // Under the lock, so that requests reach the link in the order in which the table made them.
  void send() REQUIRES(mutex_) {
    const auto requests = table_.take_requests();
    if (link_ != nullptr && !requests.empty()) link_->forward(requests);
  }

  void tell() REQUIRES(mutex_) {
    for (auto& [to, frame] : table_.take_frames()) host_->push(to, std::move(frame));
  }

  bool host_answers(store::SessionId client) const {
    const int fd = host_->socket_of(client);
    return fd >= 0 && net::all_is_acknowledged(fd);
  }

  const MembershipOptions options_;
  store::ExtensionHost* host_ = nullptr;  // the server, which owns this

  Mutex mutex_;
  RelayTable table_ GUARDED_BY(mutex_);
  MemberLink* link_ GUARDED_BY(mutex_) = nullptr;
  bool looking_ GUARDED_BY(mutex_) = false;
};

MemberRelay::MemberRelay(const store::Endpoint& store, const MembershipOptions& options)
    : extension_(std::make_shared<Extension>(options)),
      server_({.listen = {"127.0.0.1", 0}, .secret = store.secret, .run_id = store.run_id, .extension = extension_}) {}

MemberRelay::~MemberRelay() = default;

void MemberRelay::connect(MemberLink* link) { extension_->connect(link); }
void MemberRelay::deliver(std::vector<ForwardedFrame> frames) { extension_->deliver(std::move(frames)); }
void MemberRelay::deliver(const MemberEvent& of_store) { extension_->deliver(of_store); }
void MemberRelay::flush() { extension_->flush(); }

}  // namespace lockstep::membership
