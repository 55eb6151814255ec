// SPDX-License-Identifier: Apache-2.0
// The classes below implement the greeting between a lockstep client and a store server. The classes compute the
// greeting's messages, and neither send nor receive. In the greeting, the client names itself, proves that it knows the
// run's secret, and gets the server's proof.
//
// Client and server prove to each other that they hold the run's secret, without showing the secret. Each side signs
// both nonces, the run's id and the client's role with HMAC-SHA256 (proto/proof.h). Each side draws a fresh nonce for
// each greeting, so a proof from an earlier connection is worthless. After the greeting, the bytes of the connection
// are neither encrypted nor signed. The greeting keeps strangers out of a run, but not attackers who can change packets
// on the way.
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

// Returns proto::kNonceBytes random bytes, which nobody can guess. Throws the exceptions of fill_random().
std::string random_nonce();

// ChallengeResponse has the fields that client and server exchange in the greeting of one connection, and computes the
// proofs of client and server. The client and the server each fill in all fields of a ChallengeResponse. To check a
// proof of the other end, verify() computes the expected proof and compares the two proofs. Ranks also use
// ChallengeResponse when they connect to each other (comm/tcp/greeting.h); the rank that connects is the client.
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

// ServerGreeting computes the server's messages in the greeting of one connection.
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

  // If `secret` is null, the server admits every client of the run. `secret` and `run_id` must outlive this object.
  ServerGreeting(const Secret* secret, const std::string& run_id) : claim_{.secret = secret}, run_id_(run_id) {}
  // Answers HELLO. If the server has no secret, hello() refuses a client of another run. If the server has a secret,
  // prove() refuses a client of another run.
  Answer hello(const proto::Contents& hello);
  // Answers PROVE. REQUIRES: hello() has returned Next::prove, and prove() has not been called.
  Answer prove(std::string_view mac) const;
  // Returns the role that the client claims, as printable text.
  const std::string& role() const { return role_; }
  // Returns the id of the run that the client claims. The id may be empty.
  const std::string& run_id() const { return claim_.run_id; }

 private:
  std::optional<Answer> wrong_run() const;

  ChallengeResponse claim_;
  const std::string& run_id_;
  std::string role_;
};

// ClientGreeting computes the client's messages in the greeting of one connection. If the greeting fails, prove() and
// check() throw StoreError. The error's message has the server's address if the caller gave the address.
class ClientGreeting {
 public:
  // `secret` may be null, and must outlive this object if it is not null.
  ClientGreeting(const Secret* secret, std::string run_id, std::string role, std::string server = "an unknown address");
  // Returns the bytes of HELLO.
  std::string hello() const;
  // Takes the server's answer to HELLO and returns the bytes of the PROVE request. Returns an empty text if neither
  // side has a secret.
  std::string prove(const proto::Contents& answer);
  // Takes the server's answer to PROVE, and checks the server's proof that it knows the secret.
  void check(const proto::Contents& answer) const;

 private:
  ChallengeResponse own_;
  std::string server_;
};

}  // namespace lockstep::store
