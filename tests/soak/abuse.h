// SPDX-License-Identifier: Apache-2.0
// Everything that a bad client does to a store server, drawn at random.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "lockstep/base/random.h"
#include "runtime/net/address.h"
#include "runtime/store/endpoint.h"

namespace lockstep::soak {

// The servers that are abused: one with a secret, one without, which also serves PyTorch's clients.
struct Targets {
  store::Endpoint guarded;
  store::Endpoint open;
};

class Abuser {
 public:
  Abuser(Targets targets, std::uint64_t seed) : targets_(std::move(targets)), random_(seed) {}

  // Does one bad thing, for a second at most.
  void act();
  // "connections opened and dropped 4711, ..." of what was done.
  std::string summary() const;
  // What never came off although it was often tried; empty if all did.
  std::string failure() const;

 private:
  const store::Endpoint& any_target() { return random_.below(2) == 0 ? targets_.guarded : targets_.open; }
  // A number of bytes between, small ones more often.
  std::size_t some_bytes(std::size_t most);
  std::string noise(std::size_t bytes);
  // Requests that a server of either kind might take, of an opened client.
  std::string requests(std::size_t count);

  void open_and_drop();
  void send_half_a_request();
  void send_noise();
  void flood();
  void read_slowly();
  void use_a_wrong_secret();
  void stay_idle();
  void wait_in_vain();
  void announce_much();
  void write_much();
  void kill_a_member();
  void flood_as_a_member();
  void crowd_for_a_value();
  static void send_until_stuck(int fd, const std::string& bytes);

  static constexpr std::size_t kKindCount = 13;
  struct Kind {
    const char* name;
    void (Abuser::*act)();
  };
  static const std::array<Kind, kKindCount> kKinds;

  const Targets targets_;
  Generator random_;
  std::array<std::uint64_t, kKindCount> tries_{};
  std::array<std::uint64_t, kKindCount> done_{};  // without an error
  std::array<std::string, kKindCount> last_errors_{};
};

}  // namespace lockstep::soak
