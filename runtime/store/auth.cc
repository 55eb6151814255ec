// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/auth.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "proto/proof.h"
#include "proto/request.h"
#include "runtime/base/hmac.h"
#include "runtime/base/printable.h"
#include "runtime/base/random_bytes.h"

namespace lockstep::store {
namespace {

constexpr std::size_t kMaxNameBytes = 256;  // of a run's id or a role

std::string draw_nonce() {
  std::string nonce(proto::kNonceBytes, '\0');
  fill_random(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

Sha256Mac mac_of(const Secret& secret, const std::string& text) {
  const std::string_view part = text;
  return hmac_sha256(secret.bytes(), std::span(&part, 1));
}

std::string_view as_text(const Sha256Mac& mac) { return {reinterpret_cast<const char*>(mac.data()), mac.size()}; }

bool is_mac(std::string_view bytes, const Sha256Mac& expected) {
  return equal_in_constant_time(std::as_bytes(std::span(bytes)), expected);
}

// The one reason of a refused answer.
std::string why(const proto::Contents& answer) {
  return answer.values.empty() ? "it gave no reason" : printable(answer.values.front(), 500);
}

}  // namespace

ServerGreeting::Answer ServerGreeting::hello(const proto::Contents& hello) {
  const auto refuse = [](const std::string& text) {
    return Answer{.frame = {proto::kRefused, {text}}, .next = Next::close, .log = text};
  };
  const auto& values = hello.values;
  if (hello.number != proto::kVersion) {
    return refuse(
        fmt::format("the client speaks version {} of lockstep's protocol, this server version {}: use one "
                    "release of lockstep in a run",
                    hello.number, proto::kVersion));
  }
  claimed_run_ = values[0];
  claimed_role_ = values[1];
  client_nonce_ = values[2];
  role_ = printable(claimed_role_);
  if (client_nonce_.size() != proto::kNonceBytes) {
    return refuse(
        fmt::format("HELLO with a nonce of {} bytes, {} are wanted", client_nonce_.size(), proto::kNonceBytes));
  }
  if (claimed_run_.size() > kMaxNameBytes || claimed_role_.size() > kMaxNameBytes) {
    return refuse(fmt::format("HELLO with a run id of {} bytes and a role of {}; at most {} are possible",
                              claimed_run_.size(), claimed_role_.size(), kMaxNameBytes));
  }
  if (secret_ == nullptr) {
    if (auto wrong = wrong_run()) return *std::move(wrong);
    return {.frame = {}, .next = Next::serve};
  }
  server_nonce_ = draw_nonce();
  return {.frame = {proto::kOk, {server_nonce_}}, .next = Next::prove};
}

std::optional<ServerGreeting::Answer> ServerGreeting::wrong_run() const {
  if (run_id_.empty() || claimed_run_.empty() || run_id_ == claimed_run_) return std::nullopt;
  const std::string text = fmt::format(
      "this is the store of run '{}', {} is of run '{}': two runs share an address, or an "
      "old process is left",
      printable(run_id_), role_.empty() ? "the client" : role_, printable(claimed_run_));
  return Answer{.frame = {proto::kRefused, {text}}, .next = Next::close, .log = text};
}

ServerGreeting::Answer ServerGreeting::prove(std::string_view mac) const {
  using proto::Prover;
  const auto text = [&](Prover prover) {
    return proto::proof_text(prover, client_nonce_, server_nonce_, claimed_run_, claimed_role_);
  };
  if (!is_mac(mac, mac_of(*secret_, text(Prover::client)))) {
    return {.frame = {proto::kRefused, {"wrong secret"}},
            .next = Next::close_slowly,
            .log = fmt::format("wrong secret from a client that calls itself '{}'", role_)};
  }
  if (auto wrong = wrong_run()) return *std::move(wrong);
  return {.frame = {proto::kOk, {std::string(as_text(mac_of(*secret_, text(Prover::server))))}}, .next = Next::serve};
}

ClientGreeting::ClientGreeting(const Secret* secret, std::string run_id, std::string role)
    : secret_(secret), run_id_(std::move(run_id)), role_(std::move(role)), nonce_(draw_nonce()) {
  if (run_id_.size() > kMaxNameBytes || role_.size() > kMaxNameBytes) {
    throw InvalidArgument(
        fmt::format("a store's client with a run id of {} bytes and a role of {}; at most {} are "
                    "possible",
                    run_id_.size(), role_.size(), kMaxNameBytes));
  }
}

std::string ClientGreeting::hello() const {
  std::string bytes;
  proto::write_request(bytes, {proto::Op::hello, {{}, {run_id_, role_, nonce_}, proto::kVersion}});
  return bytes;
}

std::string ClientGreeting::prove(const proto::Contents& answer) {
  if (answer.number != proto::kOk) throw StoreError(fmt::format("the server refused the greeting: {}", why(answer)));
  if (answer.values.empty()) {
    if (secret_ == nullptr) return {};
    throw StoreError(
        "the server wants no secret, but this run has one: it is not this run's store; does another "
        "program listen there?");
  }
  if (secret_ == nullptr) {
    throw StoreError(
        "the server wants the run's secret: set LOCKSTEP_STORE_SECRET, or LOCKSTEP_STORE_SECRET_FILE to a "
        "file with it, as the launcher does for its ranks");
  }
  server_nonce_ = answer.values.front();
  if (server_nonce_.size() != proto::kNonceBytes) {
    throw StoreError(
        fmt::format("the server's challenge has {} bytes, {} are wanted", server_nonce_.size(), proto::kNonceBytes));
  }
  const Sha256Mac mac =
      mac_of(*secret_, proto::proof_text(proto::Prover::client, nonce_, server_nonce_, run_id_, role_));
  std::string bytes;
  proto::write_request(bytes, {proto::Op::prove, {{}, {as_text(mac)}, 0}});
  return bytes;
}

void ClientGreeting::check(const proto::Contents& answer) const {
  if (answer.number != proto::kOk) {
    throw StoreError(
        fmt::format("the server refused us: {}; is LOCKSTEP_STORE_SECRET (or the file of "
                    "LOCKSTEP_STORE_SECRET_FILE) that of the run at this address?",
                    why(answer)));
  }
  const Sha256Mac wanted =
      mac_of(*secret_, proto::proof_text(proto::Prover::server, nonce_, server_nonce_, run_id_, role_));
  if (answer.values.empty() || !is_mac(answer.values.front(), wanted)) {
    throw StoreError("the server could not prove that it knows the run's secret: it is not this run's store");
  }
}

}  // namespace lockstep::store
