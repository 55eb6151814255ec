// SPDX-License-Identifier: Apache-2.0
// Slurm's short forms for lists. Pure; nothing for text that is not of the form.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::rendezvous {

// "n10" of "n[10,20-25],m3", "r1n08" of "r[1-2]n[08-11]".
std::optional<std::string> first_host(std::string_view node_list);

// 3 of "4(x2),3" at index 2; nothing past the end.
std::optional<int> tasks_on_node(std::string_view tasks_per_node, int index);

}  // namespace lockstep::rendezvous
