// SPDX-License-Identifier: Apache-2.0
// The server's sessions over one set of tables: several clients that send anything, in any pieces, wait, read or don't,
// let timers end, break off and come again, with a secret and without.
//
// Input: what server it is (below), then actions. What must hold: nothing but the session's own answer closes it; the
// same answers however the bytes are cut; who has not proved itself touches nothing and hears nothing; nothing is left
// of who has gone.
#include <array>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "proto/push.h"
#include "proto/reply.h"
#include "runtime/store/auth.h"
#include "runtime/store/secret.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/membership/member_bench.h"

namespace lockstep::fuzz {
namespace {

using proto::Op;
using store::ServerState;
using store::SessionId;

constexpr SessionId kClients = 4;
constexpr std::size_t kClientMask = kClients - 1;
// How often an action that lets time pass looks for silent members.
constexpr int kLooks = 3;
// No reply or push is larger with limits that short inputs reach.
constexpr std::size_t kOneReply = 4096;

// The first byte of an input.
constexpr std::uint8_t kSecret = 1;  // the server has one
constexpr std::uint8_t kLazy = 2;    // clients read only when an action says so
constexpr std::uint8_t kTight = 4;   // limits that short inputs reach

const store::Secret& secret() {
  static const store::Secret value = store::Secret::parse(std::string(64, '5'));
  return value;
}

store::TcpStoreServerOptions rules_of(std::uint8_t flags) {
  store::TcpStoreServerOptions rules;
  rules.run_id = "run7";
  if ((flags & kSecret) != 0) rules.secret = secret();
  if ((flags & kTight) != 0) {
    rules.limits = {
        .max_key_bytes = 16, .max_value_bytes = 64, .max_count = 4, .max_list_items = 4, .max_message_bytes = 256};
    rules.max_stored_bytes = 256;
    rules.max_keys = 8;
    rules.max_waited_keys = 4;
    rules.max_watched_keys = 3;
    rules.max_client_bytes = 1024;
  }
  return rules;
}

// What a run has come to, for comparing two.
struct Outcome {
  std::map<SessionId, std::string> sent;
  std::map<SessionId, std::string> close_reasons;  // of the last connection
  std::vector<std::tuple<std::string, std::string>> stored;
  bool had_members = false;

  bool operator==(const Outcome&) const = default;
};

class Run {
 public:
  // Requests arrive in pieces of at most `piece` bytes.
  Run(std::uint8_t flags, std::size_t piece) : flags_(flags), piece_(piece), bench_(rules_of(flags)) {
    bench_.reading = (flags & kLazy) == 0;
    for (SessionId id = 0; id < kClients; ++id) bench_.connect(id);
  }

  Outcome operator()(Input input) {
    while (!input.empty()) act(input);
    for (SessionId id = 0; id < kClients; ++id) read(id, SIZE_MAX);
    Outcome outcome = outcome_;
    for (SessionId id = 0; id < kClients; ++id) outcome.close_reasons[id] = bench_.close_reason(id);
    for (const std::string_view key : bench_.state.keys.keys()) {
      outcome.stored.emplace_back(key, *bench_.state.keys.find(key));
    }
    for (SessionId id = 0; id < kClients; ++id) bench_.disconnect(id);
    check(bench_.state.held_bytes == 0, "nothing is held for clients that have gone");
    check(bench_.members.table().present() == 0, "no member is present whose connection has gone");
    return outcome;
  }

 private:
  void act(Input& input) {
    const std::uint8_t action = input.byte();
    const SessionId id = action & kClientMask;
    switch (action >> 2 & 7) {
      case 2: bench_.pass(std::chrono::milliseconds(10 * input.byte()), kLooks); break;
      case 3: send(id, input.bytes(std::size_t{16} * input.byte())); break;
      case 4:
        if (!bench_.closed(id) && bench_.has_timer(id)) bench_.expire(id);
        break;
      case 5: read(id, input.byte()); break;
      case 6: reconnect(id); break;
      case 7: greet(id); break;
      default: send(id, input.bytes(input.byte())); break;
    }
    flush();
    check(bench_.most_unread <= bench_.state.options.max_client_bytes + kOneReply,
          "a session holds what its limit allows, and one reply");
    outcome_.had_members = bench_.member_requests > 0;
    if ((flags_ & kSecret) != 0 && !somebody_proved_) {
      check(bench_.state.keys.size() == 0, "a stranger stores nothing");
      check(bench_.members.table().size() == 0, "a stranger is not a member");
    }
  }

  void send(SessionId id, std::string_view bytes) { inbox_[id] += bytes; }

  // Hands over what has come, as far as the sessions want it.
  void flush() {
    for (bool busy = true; busy;) {
      busy = false;
      for (auto& [id, bytes] : inbox_) {
        if (bench_.closed(id)) bytes.clear();
        if (bytes.empty() || !bench_.session(id)->wants_input()) continue;
        const std::string piece = bytes.substr(0, piece_);
        bytes.erase(0, piece.size());
        bench_.send(id, piece);
        busy = true;
      }
    }
  }

  void read(SessionId id, std::size_t bytes) {
    bench_.read(id, bytes);
    flush();
    const std::string now = bench_.take_read(id);
    outcome_.sent[id] += now;
    if ((flags_ & kSecret) == 0 || proved_.contains(id)) return;
    heard_[id] += now;
    check_stranger(heard_[id]);
  }

  // A stranger hears a challenge, and then that it is refused, or this at once; nothing else.
  static void check_stranger(std::string_view heard) {
    proto::PushReader reader(proto::PushFormat::frame);
    for (bool challenged = false; !heard.empty() && reader.read(heard) == proto::Status::ok;) {
      const proto::Contents& frame = reader.contents();
      const bool is_challenge = !challenged && frame.number == proto::kOk && frame.values.size() == 1 &&
                                frame.values[0].size() == proto::kNonceBytes;
      const bool is_refusal = frame.number == proto::kRefused && frame.values.size() == 1;
      heard.remove_prefix(reader.size());
      check(is_challenge || (is_refusal && heard.empty()), "a stranger hears a challenge and a refusal");
      challenged = true;
    }
  }

  void reconnect(SessionId id) {
    read(id, SIZE_MAX);
    proved_.erase(id);
    heard_[id].clear();
    inbox_[id].clear();
    bench_.disconnect(id);
    bench_.connect(id);
  }

  // A client that has the secret comes in.
  void greet(SessionId id) {
    reconnect(id);
    const bool is_asked = (flags_ & kSecret) != 0;
    store::ClientGreeting client(is_asked ? &secret() : nullptr, "run7", "rank 3");
    send(id, client.hello());
    flush();
    const std::string proof = client.prove(frame(id, Op::hello));
    if (!is_asked) return;
    send(id, proof);
    flush();
    client.check(frame(id, Op::prove));
    proved_.insert(id);
    somebody_proved_ = true;
  }

  // The frame that a client that has the secret is answered.
  const proto::Contents& frame(SessionId id, Op op) {
    bench_.read(id);
    answer_ = bench_.take_read(id);
    reader_ = proto::ReplyReader(op);
    check(reader_.read(answer_) == proto::Status::ok, "a good greeting is answered");
    check(reader_.size() == answer_.size(), "a greeting is answered by one frame");
    return reader_.contents();
  }

  const std::uint8_t flags_;
  const std::size_t piece_;
  membership::MemberBench bench_;
  std::map<SessionId, std::string> inbox_;
  std::set<SessionId> proved_;
  bool somebody_proved_ = false;
  std::map<SessionId, std::string> heard_;  // by strangers
  std::string answer_;
  proto::ReplyReader reader_{Op::hello};
  Outcome outcome_;
};

}  // namespace
}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::fuzz;
  Input input(data, size);
  const std::uint8_t flags = input.byte();
  const Outcome outcome = Run(flags, std::string::npos)(input);
  // Nonces are new each time, and a tight limit on what is held for a client knows how much came at once.
  if ((flags & (kSecret | kTight)) != 0) return 0;
  // Single bytes, but of a long input, for the sake of the fuzzer's speed, no more than about 256 pieces.
  Outcome in_pieces = Run(flags, 1 + size / 256)(input);
  // A push comes when what arrived together has been served: between other replies, or too late for who is closed.
  if (outcome.had_members) in_pieces.sent = outcome.sent;
  check(in_pieces == outcome, "answers are the same however the requests are cut");
  return 0;
}
