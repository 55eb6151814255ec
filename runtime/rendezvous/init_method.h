// SPDX-License-Identifier: Apache-2.0
// The URL of init_process_group: where the ranks meet, told by the program. A pure function, no sockets.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/net/address.h"

namespace lockstep::rendezvous {

struct InitMethod {
  enum class Kind {
    environment,  // "" or "env://": what the launcher offers, else MASTER_ADDR and MASTER_PORT
    tcp,          // "tcp://host:port?rank=&world_size=": rank 0 hosts the store there
    file,         // "file:///path?rank=&world_size=": rank 0 writes its address into a shared file
  };
  Kind kind = Kind::environment;
  net::HostPort address;  // tcp
  std::string path;       // file; absolute
  std::optional<int> rank;
  std::optional<int> world_size;
};

// Throws InvalidArgument, with the URL, what is wrong and a right one. Parameters other than rank and world_size are
// refused.
InitMethod parse_init_method(std::string_view url);

}  // namespace lockstep::rendezvous
