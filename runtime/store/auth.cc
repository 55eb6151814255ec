// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/auth.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "proto/request.h"
#include "runtime/base/hmac.h"
#include "runtime/base/printable.h"
#include "runtime/base/random_bytes.h"

namespace lockstep::store {
namespace {

constexpr std::size_t kMaxNameBytes = 256;  // the most bytes of a run's id or a role

// Returns the reason in a refused answer.
std::string why(const proto::Contents& answer) {
  return answer.values.empty() ? "it gave no reason" : printable(answer.values.front(), 500);
}

}  // namespace

std::string random_nonce() {
  std::string nonce(proto::kNonceBytes, '\0');
  fill_random(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

std::string ChallengeResponse::prove(proto::Prover prover) const {
  static constexpr std::array<std::byte, Secret::kBytes> kNone{};
  const std::string text = proto::proof_text(prover, client_nonce, server_nonce, run_id, role);
  const std::string_view part = text;
  const Sha256Mac mac = hmac_sha256(secret == nullptr ? std::span(kNone) : secret->bytes(), std::span(&part, 1));
  return {reinterpret_cast<const char*>(mac.data()), mac.size()};
}

bool ChallengeResponse::verify(proto::Prover prover, std::string_view proof) const {
  const std::string wanted = prove(prover);
  return equal_in_constant_time(std::as_bytes(std::span(proof)), std::as_bytes(std::span(wanted)));
}

ServerGreeting::Answer ServerGreeting::hello(const proto::Contents& hello) {
  const auto refuse = [](const std::string& text) {
    return Answer{.frame = {proto::kRefused, {text}}, .next = Next::close, .log = text};
  };
  const auto& values = hello.values;
  if (hello.number != proto::kVersion) {
    return refuse(
        fmt::format("the client speaks version {} of lockstep's protocol, and this server speaks version {}: use one "
                    "release of lockstep in a run",
                    hello.number, proto::kVersion));
  }
  claim_.run_id = values[0];
  claim_.role = values[1];
  claim_.client_nonce = values[2];
  role_ = printable(claim_.role);
  if (claim_.client_nonce.size() != proto::kNonceBytes) {
    return refuse(fmt::format(
        "the client's HELLO has a nonce of {} bytes, and this server takes {}: use one release of lockstep in a run",
        claim_.client_nonce.size(), proto::kNonceBytes));
  }
  if (claim_.run_id.size() > kMaxNameBytes || claim_.role.size() > kMaxNameBytes) {
    return refuse(fmt::format(
        "the client's HELLO has a run id of {} bytes and a role of {} bytes; give at most {} bytes for each",
        claim_.run_id.size(), claim_.role.size(), kMaxNameBytes));
  }
  if (claim_.secret == nullptr) {
    if (auto wrong = wrong_run()) return *std::move(wrong);
    return {.frame = {}, .next = Next::serve};
  }
  // If the run has a secret, prove() compares the client's run id with run_id_ only after the client's proof, so that a
  // stranger does not learn this run's id.
  claim_.server_nonce = random_nonce();
  return {.frame = {proto::kOk, {claim_.server_nonce}}, .next = Next::prove};
}

std::optional<ServerGreeting::Answer> ServerGreeting::wrong_run() const {
  if (run_id_.empty() || claim_.run_id.empty() || run_id_ == claim_.run_id) return std::nullopt;
  const std::string text = fmt::format(
      "this is the store of run '{}', and {} is of run '{}': give each run its own address, or end the process that an "
      "earlier run has left",
      printable(run_id_), role_.empty() ? "the client" : role_, printable(claim_.run_id));
  return Answer{.frame = {proto::kRefused, {text}}, .next = Next::close, .log = text};
}

ServerGreeting::Answer ServerGreeting::prove(std::string_view mac) const {
  if (!claim_.verify(proto::Prover::client, mac)) {
    // Answer slowly, so that guessing takes long. The session serves no request meanwhile.
    return {.frame = {proto::kRefused, {"wrong secret"}},
            .next = Next::close_slowly,
            .log = fmt::format("wrong secret from a client that calls itself '{}'", role_)};
  }
  if (auto wrong = wrong_run()) return *std::move(wrong);
  return {.frame = {proto::kOk, {claim_.prove(proto::Prover::server)}}, .next = Next::serve};
}

ClientGreeting::ClientGreeting(const Secret* secret, std::string run_id, std::string role, std::string server)
    : own_{.secret = secret, .run_id = std::move(run_id), .role = std::move(role), .client_nonce = random_nonce()},
      server_(std::move(server)) {
  if (own_.run_id.size() > kMaxNameBytes || own_.role.size() > kMaxNameBytes) {
    throw InvalidArgument(fmt::format(
        "a client of a store was given a run id of {} bytes and a role of {} bytes; give at most {} bytes for each",
        own_.run_id.size(), own_.role.size(), kMaxNameBytes));
  }
}

std::string ClientGreeting::hello() const {
  std::string bytes;
  proto::write_request(bytes, {proto::Op::hello, {{}, {own_.run_id, own_.role, own_.client_nonce}, proto::kVersion}});
  return bytes;
}

std::string ClientGreeting::prove(const proto::Contents& answer) {
  if (answer.number != proto::kOk)
    throw StoreError(
        fmt::format("the server at {} refused the greeting: {}; check that this address is that of this run's store",
                    server_, why(answer)));
  if (answer.values.empty()) {
    if (own_.secret == nullptr) return {};
    // A server that asks for no proof can't prove that it knows the run's secret, so the client refuses the server.
    throw StoreError(fmt::format(
        "the server at {} wants no secret, but this run has a secret, so the server is not this run's store; "
        "see which program listens at this address",
        server_));
  }
  if (own_.secret == nullptr) {
    throw StoreError(
        fmt::format("the server at {} wants the run's secret, but this process has none: set LOCKSTEP_STORE_SECRET to "
                    "the secret, or LOCKSTEP_STORE_SECRET_FILE to a file with the secret",
                    server_));
  }
  own_.server_nonce = answer.values.front();
  if (own_.server_nonce.size() != proto::kNonceBytes) {
    throw StoreError(
        fmt::format("the challenge of the server at {} has {} bytes, and this client takes {}: use one release of "
                    "lockstep in a run",
                    server_, own_.server_nonce.size(), proto::kNonceBytes));
  }
  const std::string proof = own_.prove(proto::Prover::client);
  std::string bytes;
  proto::write_request(bytes, {proto::Op::prove, {{}, {proof}, 0}});
  return bytes;
}

void ClientGreeting::check(const proto::Contents& answer) const {
  if (answer.number != proto::kOk) {
    throw StoreError(
        fmt::format("the server at {} refused this client: {}; see whether LOCKSTEP_STORE_SECRET (or the file of "
                    "LOCKSTEP_STORE_SECRET_FILE) holds the secret of the run at this address",
                    server_, why(answer)));
  }
  if (answer.values.empty() || !own_.verify(proto::Prover::server, answer.values.front())) {
    throw StoreError(fmt::format(
        "the server at {} could not prove that it knows the run's secret; see which program listens at this address",
        server_));
  }
}

}  // namespace lockstep::store
