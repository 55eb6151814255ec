// SPDX-License-Identifier: Apache-2.0
// The server's part of membership: an extension of the job's store server that serves REGISTER, HEARTBEAT, GOODBYE and
// REPORT, and pushes to members what befalls the others (membership_table.h).
//
// The builder of the store server installs it: TcpStoreServerOptions::extension. One for each server.
//
// Threads: the server's, but for members(): any.
#pragma once

#include <functional>
#include <vector>

#include "proto/request.h"
#include "runtime/base/mutex.h"
#include "runtime/membership/member_service.h"
#include "runtime/membership/membership_table.h"
#include "runtime/store/server/server_extension.h"

namespace lockstep::membership {

class MembershipServer final : public store::ServerExtension {
 public:
  // `on_news` gets what befell members and what they reported, in order: of a report before the member that made it is
  // answered. Must not block.
  using OnNews = std::function<void(const MemberNews&)>;
  explicit MembershipServer(const MembershipOptions& options = {}, OnNews on_news = {});

  // The members of all scopes.
  std::vector<MemberView> members() const EXCLUDES(mutex_);

  // No member of these scopes is there, nor will be: forgets those whose names begin with `prefix`.
  void forget(std::string_view prefix) EXCLUDES(mutex_);

  void attach(store::ExtensionHost& host) override;
  Answer serve(store::SessionId client, const proto::Request& request) override EXCLUDES(mutex_);
  void ended(store::SessionId client) override EXCLUDES(mutex_);
  GivenUp given_up() const override EXCLUDES(mutex_);

 private:
  // Runs again and again as long as there are members.
  void check_members() EXCLUDES(mutex_);
  bool host_answers(store::SessionId client) const;
  // Passes on the news since the last call, and has the pushes sent soon.
  void tell() EXCLUDES(mutex_);
  // Behind all requests that the server has read, so that what each member is pushed goes out in one write: when all
  // ranks of a group of a thousand say goodbye at once, that is a million words.
  void push() EXCLUDES(mutex_);

  const MembershipOptions options_;
  const OnNews on_news_;
  store::ExtensionHost* host_ = nullptr;  // the server, which owns this
  bool looking_ = false;
  bool is_pushing_ = false;

  mutable Mutex mutex_;
  MemberService service_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::membership
