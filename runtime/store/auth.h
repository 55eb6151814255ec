// SPDX-License-Identifier: Apache-2.0
// The greeting of lockstep's own clients as pure functions of its messages: who are you, prove it, so do I.
//
// Client and server prove to each other that they hold the run's secret, without showing it: each signs both nonces,
// the run's id and the client's role with HMAC-SHA256 (proto/proof.h). A fresh nonce from either side makes an old
// proof worthless. The bytes behind it are neither encrypted nor signed: it keeps strangers out of a run, not those who
// can change packets on the way.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "proto/fields.h"
#include "proto/proof.h"
#include "proto/protocol.h"
#include "runtime/store/frame.h"
#include "runtime/store/secret.h"

namespace lockstep::store {

// proto::kNonceBytes that nobody can guess. Throws as fill_random().
std::string random_nonce();

// The challenge-response of one connection: what both ends have said, and the two proofs over it. Each end fills in the
// same and compares the other's proof with its own of the same prover. Ranks that connect to each other use it too
// (comm/tcp/greeting.h): the one that connects is the client.
struct ChallengeResponse {
  const Secret* secret = nullptr;  // outlives this; null: zeros in its place
  std::string run_id = {};         // by the client's word, as the role
  std::string role = {};
  std::string client_nonce = {};
  std::string server_nonce = {};

  std::string prove(proto::Prover prover) const;
  // In constant time.
  bool verify(proto::Prover prover, std::string_view proof) const;
};

// The server's side for one connection.
class ServerGreeting {
 public:
  enum class Next {
    prove,         // the client must answer the challenge
    serve,         // it is welcome
    close,         // send the answer, then close
    close_slowly,  // the same after a delay: it may be guessing
  };
  struct Answer {
    Frame frame;
    Next next = Next::close;
    std::string log = {};  // why the client is refused, for the server's own log
  };

  // Answers HELLO. `secret` may be null: everybody is welcome. Both must outlive this. A client that names another run
  // is refused, here or when it has proved itself.
  ServerGreeting(const Secret* secret, const std::string& run_id) : claim_{.secret = secret}, run_id_(run_id) {}
  Answer hello(const proto::Contents& hello);
  // Answers PROVE. Only after a challenge, and only once.
  Answer prove(std::string_view mac) const;
  // The role that the client claims, made fit to print.
  const std::string& role() const { return role_; }
  // The run that the client says it is of; may be empty.
  const std::string& run_id() const { return claim_.run_id; }

 private:
  std::optional<Answer> wrong_run() const;

  ChallengeResponse claim_;
  const std::string& run_id_;
  std::string role_;
};

// The client's side for one connection. A failure is a StoreError; its message lacks only the server's address.
class ClientGreeting {
 public:
  // `secret` may be null, and must outlive this.
  ClientGreeting(const Secret* secret, std::string run_id, std::string role);
  // The bytes of HELLO.
  std::string hello() const;
  // Takes the answer to HELLO: the bytes of PROVE, or none if both sides are open.
  std::string prove(const proto::Contents& answer);
  // Takes the answer to PROVE: checks that the server knows the secret too.
  void check(const proto::Contents& answer) const;

 private:
  ChallengeResponse own_;
};

}  // namespace lockstep::store
