// SPDX-License-Identifier: Apache-2.0
// The classes below implement the greeting of lockstep's own clients, as pure functions of its messages. The client
// names itself, proves that it knows the secret, and gets the server's proof.
//
// Client and server prove to each other that they hold the run's secret, without showing the secret: each side signs
// both nonces, the run's id and the client's role with HMAC-SHA256 (proto/proof.h). A fresh nonce from either side
// makes an old proof worthless. The bytes after the greeting are neither encrypted nor signed. The greeting keeps
// strangers out of a run, but not attackers who can change packets on the way.
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

// Returns a text of proto::kNonceBytes bytes that nobody can guess. Throws the exceptions of fill_random().
std::string random_nonce();

// ChallengeResponse has the messages of both ends of one connection, and computes the two proofs over these messages.
// Each end fills in the same fields and compares the other end's proof with its own proof for that prover. Ranks that
// connect to each other also use ChallengeResponse (comm/tcp/greeting.h): the rank that connects is the client.
struct ChallengeResponse {
  const Secret* secret = nullptr;  // must outlive this object; null means zeros in place of a secret
  std::string run_id = {};         // the run that the client claims
  std::string role = {};
  std::string client_nonce = {};
  std::string server_nonce = {};

  std::string prove(proto::Prover prover) const;
  // Returns whether `proof` is right. Compares the proof in constant time.
  bool verify(proto::Prover prover, std::string_view proof) const;
};

// ServerGreeting is the server's side of the greeting of one connection.
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

  // If `secret` is null, every client of the run may proceed. `secret` and `run_id` must outlive this object.
  ServerGreeting(const Secret* secret, const std::string& run_id) : claim_{.secret = secret}, run_id_(run_id) {}
  // Answers HELLO. Refuses a client of another run if there is no secret; otherwise prove() refuses that client.
  Answer hello(const proto::Contents& hello);
  // Answers PROVE. Call prove() only after a challenge, and only once.
  Answer prove(std::string_view mac) const;
  // Returns the role that the client claims, made printable.
  const std::string& role() const { return role_; }
  // Returns the run that the client claims, which may be empty.
  const std::string& run_id() const { return claim_.run_id; }

 private:
  std::optional<Answer> wrong_run() const;

  ChallengeResponse claim_;
  const std::string& run_id_;
  std::string role_;
};

// ClientGreeting is the client's side of the greeting of one connection. A failure throws a StoreError, whose message
// lacks only the server's address.
class ClientGreeting {
 public:
  // `secret` may be null, and must outlive this object if it is not null.
  ClientGreeting(const Secret* secret, std::string run_id, std::string role);
  // Returns the bytes of HELLO.
  std::string hello() const;
  // Takes the answer to HELLO and returns the bytes of PROVE, or none if neither side has a secret.
  std::string prove(const proto::Contents& answer);
  // Takes the answer to PROVE, and checks that the server knows the secret too.
  void check(const proto::Contents& answer) const;

 private:
  ChallengeResponse own_;
};

}  // namespace lockstep::store
