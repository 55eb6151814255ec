// SPDX-License-Identifier: Apache-2.0
// The greeting of lockstep's own clients, as pure functions of its messages: the client names itself, proves its
// secret, and gets the server's proof.
//
// Client and server prove to each other that they hold the run's secret, without showing it: each signs both nonces,
// the run's id and the client's role with HMAC-SHA256 (proto/proof.h). A fresh nonce from either side makes an old
// proof worthless. The bytes after the greeting are neither encrypted nor signed: it keeps strangers out of a run, but
// not those who can change packets on the way.
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

// A text of proto::kNonceBytes that nobody can guess. Throws as fill_random().
std::string random_nonce();

// The challenge-response of one connection: both ends' messages, and the two proofs over them. Each end fills in the
// same fields and compares the other end's proof with its own proof for that prover. Ranks that connect to each other
// use it too (comm/tcp/greeting.h): the rank that connects is the client.
struct ChallengeResponse {
  const Secret* secret = nullptr;  // outlives this object; null: zeros in its place
  std::string run_id = {};         // the client's claim, like the role
  std::string role = {};
  std::string client_nonce = {};
  std::string server_nonce = {};

  std::string prove(proto::Prover prover) const;
  // Compares the proof in constant time.
  bool verify(proto::Prover prover, std::string_view proof) const;
};

// The server's side of one connection.
class ServerGreeting {
 public:
  enum class Next {
    prove,         // the client must answer the challenge
    serve,         // the client may proceed
    close,         // send the answer, then close
    close_slowly,  // send the answer after a delay, then close: the client may be guessing
  };
  struct Answer {
    Frame frame;
    Next next = Next::close;
    std::string log = {};  // the reason of a refusal, for the server's own log
  };

  // Answers HELLO. `secret` may be null: then every client may proceed. `secret` and `run_id` outlive this object. A
  // client of another run is refused, here or after it has proved its secret.
  ServerGreeting(const Secret* secret, const std::string& run_id) : claim_{.secret = secret}, run_id_(run_id) {}
  Answer hello(const proto::Contents& hello);
  // Answers PROVE. Only after a challenge, and only once.
  Answer prove(std::string_view mac) const;
  // The role that the client claims, made printable.
  const std::string& role() const { return role_; }
  // The run that the client claims; may be empty.
  const std::string& run_id() const { return claim_.run_id; }

 private:
  std::optional<Answer> wrong_run() const;

  ChallengeResponse claim_;
  const std::string& run_id_;
  std::string role_;
};

// The client's side of one connection. A failure is a StoreError, whose message lacks only the server's address.
class ClientGreeting {
 public:
  // `secret` may be null; otherwise it outlives this object.
  ClientGreeting(const Secret* secret, std::string run_id, std::string role);
  // The bytes of HELLO.
  std::string hello() const;
  // Takes the answer to HELLO and returns the bytes of PROVE, or none if neither side has a secret.
  std::string prove(const proto::Contents& answer);
  // Takes the answer to PROVE, and checks that the server knows the secret too.
  void check(const proto::Contents& answer) const;

 private:
  ChallengeResponse own_;
};

}  // namespace lockstep::store
