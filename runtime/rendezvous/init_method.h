// The URL of init_process_group: where the ranks meet, told by the program. A pure function, no sockets.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::rendezvous {

struct InitMethod {
  enum class Kind {
    environment,  // "" or "env://": what the launcher offers, else MASTER_ADDR and MASTER_PORT
    tcp,          // "tcp://host:port?rank=&world_size=": rank 0 hosts the store there
    file,         // "file:///path?rank=&world_size=": rank 0 writes its address into a shared file
  };
  Kind kind = Kind::environment;
  std::string host;  // tcp; an IPv6 address without its brackets
  int port = 0;      // tcp
  std::string path;  // file; absolute
  std::optional<int> rank;
  std::optional<int> world_size;
};

// Throws InvalidArgument, with the URL, what is wrong and a right one. Parameters other than rank and world_size are
// refused.
InitMethod parse_init_method(std::string_view url);

// "host:port" or "[v6]:port" into its parts. Throws InvalidArgument; `what` names it in the message.
struct HostPort {
  std::string host;
  int port = 0;
};
HostPort parse_host_port(std::string_view text, std::string_view what);
// The other way; brackets around what has a colon.
std::string format_host_port(std::string_view host, int port);

}  // namespace lockstep::rendezvous
